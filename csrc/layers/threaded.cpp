#include "layers/compute.h"
#include "layers/perceptron.h"

namespace tp {

void layers::threaded(const Args& args, Context& context) { compute(args, Threaded{context}); }

void linear::threaded(const Args& args, Context& context) { compute(args, Threaded{context}); }

}  // namespace tp
