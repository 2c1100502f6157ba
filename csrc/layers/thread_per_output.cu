// One thread per output: an element, a sample's loss, or a perceptron. The inner product of a perceptron stays a loop.
#include "layers/compute.h"
#include "layers/perceptron.h"

namespace tp {

void layers::activations::thread_per_output(const Args& args, Context& context) {
  compute_activations(args, ThreadPerOutput{context});
}

void layers::losses::thread_per_output(const Args& args, Context& context) {
  compute_losses(args, ThreadPerOutput{context});
}

void layers::gaussians::thread_per_output(const Args& args, Context& context) {
  compute_gaussians(args, ThreadPerOutput{context});
}

void linear::thread_per_output(const Args& args, Context& context) { compute(args, ThreadPerOutput{context}); }

}  // namespace tp
