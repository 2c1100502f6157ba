// A thread an output: an element, a sample's loss, or a perceptron, whose inner product stays a loop.
#include "layers/compute.h"
#include "layers/perceptron.h"

namespace tp {

void layers::thread_per_output(const Args& args, Context& context) { compute(args, ThreadPerOutput{context}); }

void linear::thread_per_output(const Args& args, Context& context) { compute(args, ThreadPerOutput{context}); }

}  // namespace tp
