// LeNet-5 as one operator (PMPP §16.2, Fig. 16.4): its outputs for images, and steps of stochastic gradient descent.
//
//   INPUT 1@32x32 - C1 6@28x28 - S2 6@14x14 - C3 16@10x10 - S4 16@5x5 - C5 120 - F6 84 - OUTPUT 10
//
// A training step takes a minibatch through the network, computes the mean loss and its gradient for every parameter,
// and updates each parameter p with its momentum v, gradient g, learning rate r, momentum factor u and weight decay d:
//   v = u v + (g + d p),   p = p - r v      (torch.optim.SGD without dampening and Nesterov's variant)
// An epoch is one such step after another over consecutive minibatches of `batch` images; the last may be smaller.
#pragma once
#include <functional>

#include "block/activation.h"
#include "core/ladder.h"

namespace tp::lenet {

// Shapes of Fig. 16.4. All convolutions are 5x5 without padding, both poolings are 2x2.
constexpr int image_size = 32, image_pixels = image_size * image_size, kernel = 5, taps = kernel * kernel;
constexpr int c1_maps = 6, s2_size = 14, s2_pixels = s2_size * s2_size;
constexpr int c3_maps = 16, s4_size = 5, s4_pixels = s4_size * s4_size, s4_values = c3_maps * s4_pixels;
constexpr int c5_outputs = 120, f6_outputs = 84, classes = 10;

// The parameters, in the order of LeNet5.parameters(). If a pooling has no bias, the convolution before it has one.
// Gaussian outputs have centres instead of weights, and no bias.
enum Parameter : int8_t {
  c1_weight,      // [6, 1, 5, 5]
  s2_bias,        // [6]
  c3_weight,      // [16, 6, 5, 5]
  s4_bias,        // [16]
  c5_weight,      // [120, 16, 5, 5]
  c5_bias,        // [120]
  f6_weight,      // [84, 120]
  f6_bias,        // [84]
  output_weight,  // [10, 84]
  output_bias     // [10]
};
constexpr int most_parameters = output_bias + 1;

enum class Pooling : int8_t { subsample, average, maximum };
enum class Output : int8_t { linear, rbf };
constexpr const char* pooling_names[] = {"subsample", "avg", "max"};
constexpr const char* output_names[] = {"linear", "rbf"};

// Bytes 0 to 255 become floats from -0.1 (background) to 1.175 (ink).
constexpr double pixel_scale = 1.275 / 255, pixel_offset = -0.1;
// The width of the Gaussians: corners of the cube [-1, 1]^84 are sqrt(2 * 84) apart on average, and the output of one
// at another is then exp(-4).
constexpr double sigma_squared = f6_outputs / 4.0;

struct Args {
  bool train;
  DType dtype;  // of the parameters
  Activation activation;
  Pooling pooling;
  Output output;

  int64_t images, batch;  // batch: images per step of training
  const void* x;          // [images, 1, 32, 32]: floats of `dtype`, or bytes
  bool x_is_bytes;
  const int64_t* target;  // [images]: the class of each image; only training reads it
  void* parameters[most_parameters];
  void* momenta[most_parameters];
  const void *lr, *momentum, *weight_decay;  // of `dtype`
  int64_t lr_stride;                         // 1: one learning rate per step; 0: one for all steps

  void* out;      // [images, 10]: the outputs; null when training
  void* losses;   // [steps]: the mean loss of each step's images before its update
  int64_t* hits;  // [steps]: the number of these images whose greatest output was that of their class

  // The same network composed of the operators of conv, pooling and layers. The caller composes it, because it can call
  // operators.
  std::function<void()> layers;
};

#define TP_RUNGS "lenet/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

// Returns why `fused` cannot compute a call, as the end of a sentence, or null if it can.
const char* fused_refuses(const Args&);

}  // namespace tp::lenet
