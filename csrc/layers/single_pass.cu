// Losses at the speed of memory: every input is read once, 16 bytes at a time if addresses allow.
//
// A squared or absolute error is a function of single elements (elementwise.cuh), and a cross-entropy is a function of
// rows (softmax.cuh). If losses are reduced, each block adds up its own, and a second small launch adds up the sums of
// the blocks. The shape determines every tree, so every run gives the same bits.
#include "layers/layers.h"
#ifdef __CUDACC__
#include "layers/elementwise.cuh"
#include "layers/softmax.cuh"

namespace tp::layers {
namespace {

template <bool squared>
struct Error {
  TP_DEVICE Error bind() const { return *this; }
  template <class A>
  TP_DEVICE A operator()(const A (&x)[2]) const {
    const A d = x[0] - x[1];
    return squared ? d * d / 2 : d < 0 ? -d : d;
  }
};

template <bool squared, class A>
TP_DEVICE A slope(A d) {
  return squared ? d : activate<Activation::sign>(d);
}

// One gradient for all elements, divided by their number if the loss is their mean.
template <bool squared, class T>
struct ReducedBackward {
  const T* grad;
  acc_t<T> divisor;

  struct Scaled {
    acc_t<T> grad;
    template <class A>
    TP_DEVICE A operator()(const A (&x)[2]) const {
      return grad * slope<squared>(x[0] - x[1]);
    }
  };
  TP_DEVICE Scaled bind() const { return {acc_t<T>(grad[0]) / divisor}; }
};

template <bool squared>
struct EachBackward {
  TP_DEVICE EachBackward bind() const { return *this; }
  template <class A>
  TP_DEVICE A operator()(const A (&x)[3]) const {
    return x[2] * slope<squared>(x[0] - x[1]);
  }
};

template <bool squared, class T>
void error(const Args& a, Context& context) {
  using A = acc_t<T>;
  const char* name = squared ? "squared_error" : "absolute_error";
  const T *y = static_cast<const T*>(a.x), *t = static_cast<const T*>(a.y), *grad = static_cast<const T*>(a.grad);
  T* out = static_cast<T*>(a.out);
  const int64_t n = a.rows * a.columns;
  const A divisor(a.reduction == Reduction::mean ? n : 1);
  const bool each = a.reduction == Reduction::none;
  if (a.step == Step::squared_error || a.step == Step::absolute_error) {
    if (each) return map(name, streams<T>(n, y, t), out, Error<squared>{}, context);
    return sum(name, streams<T>(n, y, t), Error<squared>{}, out, divisor, context);
  }
  if (each) return map(name, streams<T>(n, y, t, grad), out, EachBackward<squared>{}, context);
  map(name, streams<T>(n, y, t), out, ReducedBackward<squared, T>{grad, divisor}, context);
}

// ---- cross-entropy

// The threads per block of cross_entropy. Few samples of few classes fit in one block and so need only one launch.
constexpr int warp_row_threads = 256, few_rows_threads = 1024;

template <class T>
void reduce_losses(const SoftmaxArgs<T>& a, int64_t blocks, Context& context) {
  if (a.reduction == Reduction::none || blocks == 1) return;
  const acc_t<T> divisor(a.reduction == Reduction::mean ? a.rows : 1);
  sum("cross_entropy", streams<acc_t<T>>(blocks, a.partial), Identity{}, a.out, divisor, context, true);
}

template <class T, int width, int values, int lanes>
void warp_rows(SoftmaxArgs<T> a, bool backward, Context& context) {
  const cudaStream_t stream = cudaStream_t(context.stream);
  if (backward) {
    const unsigned blocks(ceil_div(a.rows, int64_t(warp_row_threads / lanes)));
    warp_row_gradients<T, width, values, lanes, warp_row_threads><<<blocks, warp_row_threads, 0, stream>>>(a);
    return check_launch("cross_entropy_backward");
  }
  if constexpr (lanes < block::warp_size) {
    if (a.reduction != Reduction::none && a.rows <= 4 * few_rows_threads / lanes) {
      a.rows_per_block = a.rows;
      warp_row_losses<T, width, values, lanes, few_rows_threads><<<1, few_rows_threads, 0, stream>>>(a);
      return check_launch("cross_entropy");
    }
  }
  // If there are many rows, a block takes up to eight rounds, so that few sums are left for the second launch.
  constexpr int64_t round = warp_row_threads / lanes;
  a.rows_per_block = round * tp::min(tp::max(a.rows / round / 2048, int64_t(1)), int64_t(8));
  const int64_t blocks = ceil_div(a.rows, a.rows_per_block);
  if (a.reduction != Reduction::none) a.partial = context.workspace<acc_t<T>>(blocks);
  warp_row_losses<T, width, values, lanes, warp_row_threads><<<unsigned(blocks), warp_row_threads, 0, stream>>>(a);
  check_launch("cross_entropy");
  reduce_losses(a, blocks, context);
}

template <class T, int width>
void block_rows(SoftmaxArgs<T> a, bool backward, Context& context) {
  const cudaStream_t stream = cudaStream_t(context.stream);
  if (backward) {
    block_row_gradients<T, width><<<unsigned(a.rows), block_row_threads, 0, stream>>>(a);
    return check_launch("cross_entropy_backward");
  }
  if (a.reduction != Reduction::none) a.partial = context.workspace<acc_t<T>>(a.rows);
  block_row_losses<T, width><<<unsigned(a.rows), block_row_threads, 0, stream>>>(a);
  check_launch("cross_entropy");
  reduce_losses(a, a.rows, context);
}

// Chooses a kernel by the number of classes. Rows consist of whole vectors of `width` classes.
template <class T, int width>
void cross_entropy_rows(const SoftmaxArgs<T>& a, bool backward, Context& context) {
  constexpr int values = width < 4 ? 4 : width;
  if (a.classes <= 32) return warp_rows<T, width, values, 8>(a, backward, context);
  if (a.classes <= 256) return warp_rows<T, width, 8, 32>(a, backward, context);
  if (a.classes <= warp_row_classes) return warp_rows<T, width, 32, 32>(a, backward, context);
  block_rows<T, width>(a, backward, context);
}

template <class T>
void cross_entropy(const Args& args, Context& context) {
  constexpr int width = vector_width<T>;
  const bool backward = args.step == Step::cross_entropy_backward;
  SoftmaxArgs<T> a{};
  a.x = static_cast<const T*>(args.x);
  a.target = args.target;
  a.rows = args.rows;
  a.classes = args.columns;
  a.grad = static_cast<const T*>(args.grad);
  a.out = static_cast<T*>(args.out);
  a.reduction = args.reduction;
  const auto on_vectors = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  a.aligned = on_vectors(a.x) && (!backward || on_vectors(a.out));
  if (a.rows == 0) {
    if (backward || a.reduction == Reduction::none) return;
    return sum("cross_entropy", streams<T>(0, a.x), Identity{}, a.out, acc_t<T>(a.reduction == Reduction::mean ? 0 : 1),
               context);
  }
  if (a.classes % width == 0) return cross_entropy_rows<T, width>(a, backward, context);
  cross_entropy_rows<T, 1>(a, backward, context);
}

}  // namespace

void losses::single_pass(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "loss", [&](auto type) {
    using T = typename decltype(type)::type;
    switch (args.step) {
      case Step::cross_entropy:
      case Step::cross_entropy_backward:
        return cross_entropy<T>(args, context);
      case Step::squared_error:
      case Step::squared_error_backward:
        return error<true, T>(args, context);
      default:
        return error<false, T>(args, context);
    }
  });
}

}  // namespace tp::layers
#endif
