// Makes functors from the Args of a step, and runs them in one of the ways of block/per_output.h.
#pragma once
#include "pooling/average.h"
#include "pooling/maximum.h"

namespace tp::pooling {

template <class T>
const T* as(const void* data) {
  return static_cast<const T*>(data);
}
template <class T>
T* as(void* data) {
  return static_cast<T*>(data);
}

template <class T, class Run, class Axis>
void average(const Args& a, const Run& run, const Axis& h, const Axis& w) {
  const auto pool = [&](auto f, auto* y) {
    using Out = std::decay_t<decltype(*y)>;
    run(outputs(a.out, a.h.kernel * a.w.kernel),
        Average<f.value, T, Out, Axis>{as<T>(a.x), as<T>(a.bias), y, a.in, a.out, h, w, a.maps, a.count_include_pad});
  };
  T* y = as<T>(a.y);
  if (Run::fuses || a.activation == Activation::identity) {
    return with_activation(a.activation, [&](auto f) { pool(f, y); });
  }
  using Acc = acc_t<T>;
  const int64_t n = a.out.size();
  Acc* argument;
  if constexpr (std::is_same<Acc, T>::value) {
    argument = y;
  } else {
    argument = run.context.template workspace<Acc>(n);
  }
  pool(ActivationConstant<Activation::identity>{}, argument);
  with_activation(a.activation, [&](auto f) { run({1, n, 4}, Activate<f.value, Acc, T>{argument, y, n}); });
}

// The work of `pixels`: about the number of windows that cover each.
inline Outputs gathered(const Args& a) {
  return outputs(a.in, 4 * ceil_div(a.h.reach(), a.h.stride) * ceil_div(a.w.reach(), a.w.stride));
}

// The gradient of the subsampling layer's biases, from the gradients at the arguments of the activation.
template <class T, class Run>
void sum_bias_gradient(const Args& a, const acc_t<T>* grad, const Run& run) {
  using Acc = acc_t<T>;
  if (a.out.inner > 1) return sum_middle(run, grad, 1, a.out.size() / a.maps, a.maps, as<T>(a.grad_bias));
  Acc* sums = run.context.template workspace<Acc>(a.out.outer);
  sum_middle(run, grad, a.out.outer, a.out.h * a.out.w, 1, sums);
  sum_middle(run, static_cast<const Acc*>(sums), 1, a.out.outer / a.maps, a.maps, as<T>(a.grad_bias));
}

template <class T, class Run, class Axis>
void average_backward(const Args& a, const Run& run, const Axis& h, const Axis& w) {
  const auto spread = [&](const auto* grad) {
    using In = std::decay_t<decltype(*grad)>;
    run(gathered(a), AverageBackward<In, T, Axis>{grad, as<T>(a.grad_x), a.in, a.out, h, w, a.count_include_pad});
  };
  if (a.maps == 0) return spread(as<T>(a.grad));
  // Subsampling: first back through the activation; the rest of the chain rule, and of the sums, is in the
  // accumulator's type.
  using Acc = acc_t<T>;
  const int64_t n = a.out.size();
  Acc* grad = run.context.template workspace<Acc>(n);
  with_activation(a.activation,
                  [&](auto f) { run({1, n}, ActivateBackward<f.value, T, Acc>{as<T>(a.grad), as<T>(a.y), grad, n}); });
  spread(static_cast<const Acc*>(grad));
  sum_bias_gradient<T>(a, static_cast<const Acc*>(grad), run);
}

template <class T, class Run, class Axis>
void maximum(const Args& a, const Run& run, const Axis& h, const Axis& w) {
  const T *x = as<T>(a.x), *grad = as<T>(a.grad);
  T *y = as<T>(a.y), *grad_x = as<T>(a.grad_x);
  with_indices(a, [&](auto* indices) {
    using Index = std::decay_t<decltype(*indices)>;
    if (a.step == Step::maximum) {
      return run(outputs(a.out, a.h.kernel * a.w.kernel), Maximum<T, Index, Axis>{x, y, indices, a.in, a.out, h, w});
    }
    if constexpr (is_floating<T>) {
      if (a.step == Step::maximum_tangent) {
        return run(outputs(a.out, 4), MaximumTangent<T, Index, Axis>{x, indices, y, a.in, a.out, h, w});
      }
      run(gathered(a), MaximumBackward<T, Index, Axis>{grad, indices, grad_x, a.in, a.out, h, w});
    }
  });
}

template <class Run>
void compute(const Args& args, const Run& run) {
  with_axes(args, [&](const auto& h, const auto& w) {
    if (args.step == Step::average || args.step == Step::average_backward) {
      return dispatch(FloatTypes{}, args.dtype, "avg_pool2d", [&](auto type) {
        using T = typename decltype(type)::type;
        args.step == Step::average ? average<T>(args, run, h, w) : average_backward<T>(args, run, h, w);
      });
    }
    dispatch(AllTypes{}, args.dtype, "max_pool2d",
             [&](auto type) { maximum<typename decltype(type)::type>(args, run, h, w); });
  });
}

}  // namespace tp::pooling
