// The fully connected layer, one output at a time.
#pragma once
#include "block/per_output.h"
#include "layers/linear.h"

namespace tp::linear {

// out[i, j] = sum over k of A[i, k] B[k, j], plus bias[j].
template <class T>
struct Perceptron {
  static constexpr const char* name = "linear";
  Gemm p;
  const void* bias;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto a = block.global("a", static_cast<const T*>(p.a.data), p.rows * p.inner);
    const auto b = block.global("b", static_cast<const T*>(p.b.data), p.inner * p.cols);
    const auto biases = block.global("bias", static_cast<const T*>(bias), p.cols);
    const auto out = block.global("out", static_cast<T*>(p.c), p.rows * p.cols);
    return [=, *this](int64_t i) {
      return [=, *this](int64_t j) {
        using A = acc_t<T>;
        A sum = sum_of<A>(p.inner, [&](int64_t k) {
          const A left = load<T>(a, i * p.a.row_stride + k * p.a.col_stride);
          return left * load<T>(b, k * p.b.row_stride + j * p.b.col_stride);
        });
        if (bias) sum += load<T>(biases, j);
        out[i * p.cols + j] = T(sum);
      };
    };
  }
};

template <class Run>
void compute(const Args& args, const Run& run) {
  const Gemm& p = args.product;
  dispatch(FloatTypes{}, p.dtype, "linear", [&](auto type) {
    run(Outputs{p.rows, p.cols, p.inner}, Perceptron<typename decltype(type)::type>{p, args.bias});
  });
}

}  // namespace tp::linear
