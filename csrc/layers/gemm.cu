// The fully connected layer as one matrix product (§16.4 does so for convolutions), and the bias. On the CPU, the BLAS
// adds the product to the bias; on CUDA, the bias is added to the product before it is rounded.
#include <algorithm>

#include "layers/linear.h"

namespace tp::linear {

void gemm(const Args& args, Context& context) {
  Gemm p = args.product;
  if (context.device.cuda) {
    p.bias = args.bias;
  } else if (args.bias) {
    p.accumulates = true;
    dispatch(FloatTypes{}, p.dtype, "linear", [&](auto type) {
      using T = typename decltype(type)::type;
      const T* const bias = static_cast<const T*>(args.bias);
      T* const out = static_cast<T*>(p.c);
      for (int64_t i = 0; i < p.rows; ++i) std::copy(bias, bias + p.cols, out + i * p.cols);
    });
  }
  context.gemm(p);
}

}  // namespace tp::linear
