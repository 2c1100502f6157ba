#include "layers/bias.h"

#include "block/on_vectors.h"

namespace tp::linear {

void add_bias(const Gemm& p, const void* bias, Context& context) {
  const int64_t cols = p.cols, grain = tp::max(int64_t(1 << 14) / tp::max(cols, int64_t(1)), int64_t(1));
  dispatch(Types<float, double>{}, p.dtype, "linear", [&](auto type) {
    using T = typename decltype(type)::type;
    T* out = static_cast<T*>(p.c);
    const T* from = static_cast<const T*>(bias);
    context.parallel_for(p.rows, grain, [=](int64_t begin, int64_t end) {
      on_vectors([=] {
        for (int64_t i = begin; i < end; ++i) {
          TP_INDEPENDENT
          for (int64_t j = 0; j < cols; ++j) out[i * cols + j] += from[j];
        }
      });
    });
  });
}

}  // namespace tp::linear
