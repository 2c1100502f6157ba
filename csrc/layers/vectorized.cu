// Activations at the speed of memory: a thread reads and writes several elements, 16 bytes at a time, so few
// instructions move many bytes, and many bytes are in flight.
#include "layers/layers.h"
#ifdef __CUDACC__
#include "layers/elementwise.cuh"

namespace tp::layers {
namespace {

template <Activation f>
struct Forward {
  TP_DEVICE Forward bind() const { return *this; }
  template <class A>
  TP_DEVICE A operator()(const A (&x)[1]) const {
    return activate<f>(x[0]);
  }
};

template <Activation f>
struct Backward {
  TP_DEVICE Backward bind() const { return *this; }
  template <class A>
  TP_DEVICE A operator()(const A (&grad_and_y)[2]) const {
    return activate_backward<f>(grad_and_y[0], grad_and_y[1]);
  }
};

}  // namespace

void activations::vectorized(const Args& args, Context& context) {
  const int64_t n = args.rows * args.columns;
  dispatch(FloatTypes{}, args.dtype, "activation", [&](auto type) {
    using T = typename decltype(type)::type;
    const T *x = static_cast<const T*>(args.x), *y = static_cast<const T*>(args.y);
    const T* grad = static_cast<const T*>(args.grad);
    T* out = static_cast<T*>(args.out);
    with_activation(args.activation, [&](auto f) {
      if (args.step == Step::activation) {
        map("activation", streams<T>(n, x), out, Forward<f.value>{}, context);
      } else {
        map("activation_backward", streams<T>(n, grad, y), out, Backward<f.value>{}, context);
      }
    });
  });
}

}  // namespace tp::layers
#endif
