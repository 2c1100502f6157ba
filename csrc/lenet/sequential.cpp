// One output after another. A fully connected layer is the loop over its perceptrons that §16.2 leaves as an exercise.
#include "lenet/compute.h"
#include "lenet/perceptron.h"

namespace tp {

void lenet::sequential(const Args& args, Context& context) { compute(args, Sequential{context}); }

void linear::sequential(const Args& args, Context& context) { compute(args, Sequential{context}); }

}  // namespace tp
