// One output after another. A fully connected layer is the loop over its perceptrons that §16.2 leaves as an exercise.
#include "layers/compute.h"
#include "layers/perceptron.h"

namespace tp {

void layers::sequential(const Args& args, Context& context) { compute(args, Sequential{context}); }

void linear::sequential(const Args& args, Context& context) { compute(args, Sequential{context}); }

}  // namespace tp
