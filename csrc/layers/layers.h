// The small layers around LeNet-5's convolutions (PMPP §16.1-16.2): activation functions, Gaussian outputs, losses.
//
// Each is a computation per output (block/per_output.h). An activation is computed per element; a squared or absolute
// error (§16.1) per element, and a softmax cross-entropy per sample, with their sum or mean as a tree whose shape
// depends only on the number of losses; a Gaussian (§16.2, "the output layer uses Gaussian filters") per sample and
// class. They share Args, but different methods make them fast, so each kind has its own ladder. The fully connected
// layer, a matrix product, is in linear.h.
#pragma once
#include "block/activation.h"
#include "core/ladder.h"

namespace tp::layers {

enum class Step : int8_t {
  activation,               // out = f(x)
  activation_backward,      // out = grad * f'(x), from y = f(x)
  cross_entropy,            // out = -log softmax(x)[target], reduced
  cross_entropy_backward,   // out = (softmax(x) - one_hot(target)) * grad
  squared_error,            // out = (x - y)^2 / 2, reduced
  squared_error_backward,   // out = (x - y) * grad
  absolute_error,           // out = |x - y|, reduced
  absolute_error_backward,  // out = sign(x - y) * grad
  rbf,                      // out[n, c] = exp(-|x[n] - y[c]|^2 / (2 sigma^2))
  rbf_backward              // out, out_y: gradients for x and y
};

enum class Reduction : int8_t { none, sum, mean };

struct Args {
  Step step;
  DType dtype;
  Activation activation;
  Reduction reduction;
  double sigma;
  int64_t rows, columns;  // samples and classes; an elementwise step has one row
  int64_t features;       // rbf

  const void* x;  // [rows, columns]; rbf: [rows, features]
  const void* y;  // like x: the value of the activation, or the target of an error; rbf: centres [columns, features]
  const int64_t* target;  // cross_entropy: [rows]
  const void* grad;       // like the result of the forward step
  void *out, *out_y;
};

// Each ladder takes the steps of its kind; choose() returns the rung that "auto" means.
namespace activations {
#define TP_RUNGS "layers/rungs_activation.def"
#include "core/ladder.inc"
const char* choose(const Args&, const Device&);
}  // namespace activations

namespace losses {
#define TP_RUNGS "layers/rungs_loss.def"
#include "core/ladder.inc"
const char* choose(const Args&, const Device&);
}  // namespace losses

namespace gaussians {
#define TP_RUNGS "layers/rungs_rbf.def"
#include "core/ladder.inc"
const char* choose(const Args&, const Device&);
}  // namespace gaussians

}  // namespace tp::layers
