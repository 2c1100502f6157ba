// What the operators share that apply an activation function.
#pragma once
#include "block/activation.h"
#include "torch/glue.h"

namespace tp {

Activation activation_of(const char* pattern, Str name);

// torch_patterns::activation_backward
Tensor call_activation_backward(const Tensor& grad, const Tensor& y, Str activation, Str algorithm);

// The gradients of <into, activation_backward(grad, y)> for grad and for y.
std::pair<Tensor, Tensor> activation_double_backward(const Tensor& into, const Tensor& grad, const Tensor& y,
                                                     Str activation, Str algorithm);

}  // namespace tp
