// Shared by the operators that apply an activation function.
#pragma once
#include "block/activation.h"
#include "torch/operator.h"

namespace tp {

Activation activation_of(const char* pattern, Str name);

struct ActivationBackward {
  static constexpr auto schema =
      "activation_backward(Tensor grad, Tensor y, str activation, str algorithm=\"auto\") -> Tensor";
  Tensor grad, y;
  Str activation, algorithm;

  Tensor kernel() const;
  Tensors vjp(const Backward& b) const { return pull(b.grad(), b); }
  Tensors jvp(const Forward& f) const;
  bool keeps(size_t input) const { return input == 1 || curvature() != 0; }

  // The gradients of <into, activation_backward(grad, y)> for grad and for y; only those that `b` needs are computed.
  Tensors pull(const Tensor& into, const Backward& b) const;

 private:
  int curvature() const;
};

}  // namespace tp
