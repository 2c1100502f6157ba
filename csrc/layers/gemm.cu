// The fully connected layer as one matrix product (§16.4 does so for convolutions), and the bias. On the CPU, the BLAS
// adds the product to the bias.
//
// On CUDA, the bias is added to the product. For half types, the BLAS rounds the product when it stores it, and adding
// a bias afterwards would round twice. So the bias becomes a part of the product: [A | 1 0 ...] [B ; bias ; 0 ...],
// with the inner dimension padded to a multiple of 8, which tensor cores require.
#include <algorithm>

#include "block/per_output.h"
#include "layers/linear.h"

namespace tp::linear {
namespace {

template <class T>
struct AddBias {
  static constexpr const char* name = "linear_bias";
  const T* bias;
  T* out;
  int64_t rows, cols;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto biases = block.global("bias", bias, cols);
    const auto y = block.global("out", out, rows * cols);
    return [=, *this](int64_t i) {
      return [=, *this](int64_t j) { y[i * cols + j] = T(load<T>(y, i * cols + j) + load<T>(biases, j)); };
    };
  }
};

// The rows of a matrix, each followed by one more element (from a vector, or 1) and then by zeros up to `width`.
template <class T>
struct Append {
  static constexpr const char* name = "linear_append";
  const T *matrix, *last;
  int64_t rows, inner, row_stride, col_stride, width;
  T* out;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("matrix", matrix, rows * inner);
    const auto ends = block.global("last", last, rows);
    const auto to = block.global("out", out, rows * width);
    return [=, *this](int64_t i) {
      return [=, *this](int64_t k) {
        T value(k == inner ? 1.0f : 0.0f);
        if (k < inner) value = from[i * row_stride + k * col_stride];
        if (k == inner && last) value = ends[i];
        to[i * width + k] = value;
      };
    };
  }
};

template <class T>
void with_bias(const Gemm& p, const T* bias, Context& context) {
  if (!context.device.cuda) {
    Gemm sum = p;
    sum.accumulates = true;
    T* out = static_cast<T*>(p.c);
    for (int64_t i = 0; i < p.rows; ++i) std::copy(bias, bias + p.cols, out + i * p.cols);
    return context.gemm(sum);
  }
  if constexpr (std::is_same<acc_t<T>, T>::value) {
    context.gemm(p);
    ThreadPerOutput{context}({p.rows, p.cols}, AddBias<T>{bias, static_cast<T*>(p.c), p.rows, p.cols});
  } else {
    Gemm wide = p;
    wide.inner = ceil_div(p.inner + 1, int64_t(8)) * 8;
    const auto append = [&](const Matrix& m, int64_t rows, int64_t row_stride, int64_t col_stride, const T* last) {
      T* out = context.workspace<T>(rows * wide.inner);
      ThreadPerOutput{context}({rows, wide.inner}, Append<T>{static_cast<const T*>(m.data), last, rows, p.inner,
                                                             row_stride, col_stride, wide.inner, out});
      return out;
    };
    wide.a = {append(p.a, p.rows, p.a.row_stride, p.a.col_stride, nullptr), wide.inner, 1, 0};
    wide.b = {append(p.b, p.cols, p.b.col_stride, p.b.row_stride, bias), 1, wide.inner, 0};
    context.gemm(wide);
  }
}

}  // namespace

void gemm(const Args& args, Context& context) {
  if (!args.bias) return context.gemm(args.product);
  dispatch(FloatTypes{}, args.product.dtype, "linear", [&](auto type) {
    with_bias(args.product, static_cast<const typename decltype(type)::type*>(args.bias), context);
  });
}

}  // namespace tp::linear
