#include "segmented/matmul.h"

namespace tp::segment_matmul {

// Rows that are in no segment get 0.
void gemm(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "segment_matmul", [&](auto type) {
    using T = typename decltype(type)::type;
    const auto *x = static_cast<const T*>(args.x), *other = static_cast<const T*>(args.other);
    auto* out = static_cast<T*>(args.out);
    const int64_t covered = args.offsets[args.segments] - args.offsets[0];
    if (!args.outer && covered < args.n) context.clear(out, args.n * args.cols * int64_t(sizeof(T)));
    for (int64_t s = 0; s < args.segments; ++s) {
      const int64_t begin = args.offsets[s], rows = args.offsets[s + 1] - begin;
      const T* own = x + begin * args.inner;
      T* matrix = out + s * args.inner * args.cols;
      if (rows == 0) {
        if (args.outer) context.clear(matrix, args.inner * args.cols * int64_t(sizeof(T)));
      } else if (args.outer) {
        context.gemm({args.dtype,
                      1,
                      args.inner,
                      args.cols,
                      rows,
                      {own, 1, args.inner, 0},
                      {other + begin * args.cols, args.cols, 1, 0},
                      matrix,
                      0});
      } else {
        context.gemm({args.dtype,
                      1,
                      rows,
                      args.cols,
                      args.inner,
                      {own, args.inner, 1, 0},
                      {other + s * args.inner * args.cols, args.cols, 1, 0},
                      out + begin * args.cols,
                      0});
      }
    }
  });
}

}  // namespace tp::segment_matmul
