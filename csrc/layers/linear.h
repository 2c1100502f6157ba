// The fully connected layer (PMPP §16.1-16.2): every output is a perceptron over all inputs, y = W x + b. Over a
// minibatch that is a matrix product (§16.4), and so are its gradients: dE/dx = W^T dE/dy and dE/dW = dE/dy x^T. The
// three differ only in their strides, so one computation serves all of them.
#pragma once
#include "core/ladder.h"

namespace tp::linear {

struct Args {
  Gemm product;      // out = A B; batch is 1
  const void* bias;  // [cols], added to every row, or null
};

#define TP_RUNGS "layers/rungs_linear.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::linear
