// LeNet-5 composed of the library's operators, through the dispatcher: the rung `layers`, and the derivative of every
// rung.
#pragma once
#include "lenet/lenet.h"
#include "torch/activation.h"
#include "torch/checks.h"

namespace tp {

// The options that select a network's form, checked.
struct Form {
  Str activation;
  Activation function;
  lenet::Pooling pooling;
  lenet::Output output;

  Form(const char* op, Str activation, Str pooling, Str output)
      : activation(activation),
        function(activation_of(op, activation)),
        pooling(lenet::Pooling(choice(op, "pooling", pooling, lenet::pooling_names))),
        output(lenet::Output(choice(op, "output", output, lenet::output_names))) {
    TORCH_CHECK_VALUE(
        function == Activation::tanh || function == Activation::bipolar_sigmoid || function == Activation::relu, op,
        ": activation must be tanh, bipolar_sigmoid or relu, got '", std::string(activation), "'");
  }

  size_t parameters() const { return output == lenet::Output::rbf ? lenet::output_bias : lenet::most_parameters; }

 private:
  template <size_t n>
  static int choice(const char* op, const char* what, Str word, const char* const (&names)[n]) {
    std::string all;
    for (size_t i = 0; i < n; ++i) {
      if (word == names[i]) return int(i);
      all += std::string(i ? ", " : "") + names[i];
    }
    TORCH_CHECK_VALUE(false, op, ": ", what, " must be one of ", all, ", got '", std::string(word), "'");
  }
};

// A convolution, the activation and the pooling after it, with the tensors that their backward passes read.
struct ConvPool {
  const Form& form;
  const Tensor &weight, &bias;
  Tensor x, activated, pooled, indices;

  Tensor forward(const Tensor& input);
  // Returns the gradients of the weight and of the bias, and that of x if it is needed.
  Tensor backward(const Tensor& grad, bool wants_x, Tensor& grad_weight, Tensor& grad_bias) const;
};

struct LayeredNetwork {
  Form form;
  Tensors p;  // the parameters in their order
  ConvPool first{form, p[lenet::c1_weight], p[lenet::s2_bias], {}, {}, {}, {}};
  ConvPool second{form, p[lenet::c3_weight], p[lenet::s4_bias], {}, {}, {}, {}};
  Tensor c5, f6, out;  // c5 is [N, 120, 1, 1]

  Tensor forward(const Tensor& x);
  // Returns the mean loss and its gradient for `out`.
  Tensor loss(const Tensor& target, Tensor& grad) const;
  // Returns the gradients of all parameters, given that for `out`.
  Tensors backward(Tensor grad) const;

 private:
  Tensor activate(const Tensor& x) const;
  Tensor activate_backward(const Tensor& grad, const Tensor& y) const;
};

// Prepares images for the network: bytes become normalized floats.
Tensor normalized(const Tensor& x, at::ScalarType dtype);

// One update of all parameters as in torch.optim.SGD. On the CPU, where reading a number need not wait, even the
// roundings are the same.
void descend(const Tensors& weights, const Tensors& velocities, const Tensors& grads, const Tensor& lr,
             const Tensor& momentum, const Tensor& weight_decay);

}  // namespace tp
