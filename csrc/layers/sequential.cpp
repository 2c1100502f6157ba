// Computes one output after another. A fully connected layer is a loop over its perceptrons, which §16.2 leaves as an
// exercise.
#include "layers/compute.h"
#include "layers/perceptron.h"

namespace tp {

void layers::activations::sequential(const Args& args, Context& context) {
  compute_activations(args, Sequential{context});
}

void layers::losses::sequential(const Args& args, Context& context) { compute_losses(args, Sequential{context}); }

void layers::gaussians::sequential(const Args& args, Context& context) { compute_gaussians(args, Sequential{context}); }

void linear::sequential(const Args& args, Context& context) { compute(args, Sequential{context}); }

}  // namespace tp
