// Makes functors from the Args of a step, and runs them in one of the ways of block/per_output.h.
#pragma once
#include "layers/loss.h"
#include "layers/rbf.h"

namespace tp::layers {

template <class T>
const T* as(const void* data) {
  return static_cast<const T*>(data);
}
template <class T>
T* as(void* data) {
  return static_cast<T*>(data);
}

template <class T, class Run>
void activation(const Args& a, const Run& run) {
  const int64_t n = a.rows * a.columns;
  with_activation(a.activation, [&](auto f) {
    if (a.step == Step::activation) return run({1, n, 4}, Activate<f.value, T, T>{as<T>(a.x), as<T>(a.out), n});
    run({1, n}, ActivateBackward<f.value, T, T>{as<T>(a.grad), as<T>(a.y), as<T>(a.out), n});
  });
}

// losses(pointer) is the functor that writes n losses to `pointer`. Losses that are to be reduced are summed before
// they are rounded.
template <class T, class Run, class Losses>
void loss(const Args& a, const Run& run, Outputs outputs, Losses losses) {
  if (a.reduction == Reduction::none) return run(outputs, losses(as<T>(a.out)));
  using A = acc_t<T>;
  const int64_t n = outputs.rows * outputs.columns;
  A* each = run.context.template workspace<A>(n);
  run(outputs, losses(each));
  sum_middle(run, static_cast<const A*>(each), 1, n, 1, as<T>(a.out), A(a.reduction == Reduction::mean ? n : 1));
}

template <bool squared, class T, class Run>
void error(const Args& a, const Run& run) {
  const int64_t n = a.rows * a.columns;
  const T *y = as<T>(a.x), *t = as<T>(a.y);
  if (a.step == Step::squared_error_backward || a.step == Step::absolute_error_backward) {
    return run({1, n}, ErrorBackward<squared, T>{y, t, as<T>(a.grad), as<T>(a.out), n, a.reduction});
  }
  loss<T>(a, run, {1, n}, [&](auto* out) { return Error<squared, T, std::decay_t<decltype(*out)>>{y, t, out, n}; });
}

template <class T, class Run>
void cross_entropy(const Args& a, const Run& run) {
  const int64_t n = a.rows, classes = a.columns;
  const T* x = as<T>(a.x);
  const Outputs samples{n, 1, 16 * classes};
  if (a.step == Step::cross_entropy) {
    return loss<T>(a, run, samples, [&](auto* out) {
      return CrossEntropy<T, std::decay_t<decltype(*out)>>{x, a.target, out, n, classes};
    });
  }
  acc_t<T>*max = run.context.template workspace<acc_t<T>>(n), *log_sum = run.context.template workspace<acc_t<T>>(n);
  run(samples, SoftmaxNorm<T>{x, max, log_sum, n, classes});
  run({n, classes, 8},
      CrossEntropyBackward<T>{x, as<T>(a.grad), a.target, max, log_sum, as<T>(a.out), n, classes, a.reduction});
}

template <class T, class Run>
void rbf(const Args& a, const Run& run) {
  const int64_t n = a.rows, classes = a.columns, features = a.features;
  const T *x = as<T>(a.x), *centres = as<T>(a.y);
  const Outputs distances{n, classes, features};
  const BySigma<acc_t<T>> by_sigma(a.sigma);
  if (a.step == Step::rbf) {
    return run(distances, Gaussian<T, T>{x, centres, nullptr, as<T>(a.out), n, classes, features, by_sigma});
  }
  acc_t<T>* pull = run.context.template workspace<acc_t<T>>(n * classes);
  run(distances, Gaussian<T, acc_t<T>>{x, centres, as<T>(a.grad), pull, n, classes, features, by_sigma});
  run({n, features, classes}, Pull<T>{pull, classes, 1, x, centres, as<T>(a.out), n, classes, features, by_sigma});
  run({classes, features, n}, Pull<T>{pull, 1, classes, centres, x, as<T>(a.out_y), classes, n, features, by_sigma});
}

// ---- the steps of each ladder

template <class Run>
void compute_activations(const Args& args, const Run& run) {
  dispatch(FloatTypes{}, args.dtype, "activation",
           [&](auto type) { activation<typename decltype(type)::type>(args, run); });
}

template <class Run>
void compute_losses(const Args& args, const Run& run) {
  dispatch(FloatTypes{}, args.dtype, "loss", [&](auto type) {
    using T = typename decltype(type)::type;
    switch (args.step) {
      case Step::cross_entropy:
      case Step::cross_entropy_backward:
        return cross_entropy<T>(args, run);
      case Step::squared_error:
      case Step::squared_error_backward:
        return error<true, T>(args, run);
      default:
        return error<false, T>(args, run);
    }
  });
}

template <class Run>
void compute_gaussians(const Args& args, const Run& run) {
  dispatch(FloatTypes{}, args.dtype, "rbf", [&](auto type) { rbf<typename decltype(type)::type>(args, run); });
}

}  // namespace tp::layers
