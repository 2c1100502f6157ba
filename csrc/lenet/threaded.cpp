#include "lenet/compute.h"
#include "lenet/perceptron.h"

namespace tp {

void lenet::threaded(const Args& args, Context& context) { compute(args, Threaded{context}); }

void linear::threaded(const Args& args, Context& context) { compute(args, Threaded{context}); }

}  // namespace tp
