#include "segmented/matmul.h"

namespace tp::segment_matmul {

// So many elements of a result are one batch at most, because half types need as many of float32 besides.
constexpr int64_t batch_elements = int64_t(1) << 26;

// Adjacent segments of equal length are a batch. Rows that are in no segment get 0.
void gemm(const Args& args, Context& context) {
  const int64_t* const offsets = args.valid_offsets();
  dispatch(FloatTypes{}, args.dtype, "segment_matmul", [&](auto type) {
    using T = typename decltype(type)::type;
    const auto *x = static_cast<const T*>(args.x), *other = static_cast<const T*>(args.other);
    auto* out = static_cast<T*>(args.out);
    const int64_t covered = offsets[args.segments] - offsets[0];
    if (!args.outer && covered < args.n) context.clear(out, args.n * args.cols * int64_t(sizeof(T)));
    int64_t next = 0;
    for (int64_t s = 0; s < args.segments; s = next) {
      const int64_t begin = offsets[s], rows = offsets[s + 1] - begin;
      const int64_t x_size = rows * args.inner, y_size = rows * args.cols, w_size = args.inner * args.cols;
      const int64_t most = tp::max(batch_elements / tp::max(args.outer ? w_size : y_size, int64_t(1)), int64_t(1));
      const int64_t end = tp::min(s + most, args.segments);
      for (next = s + 1; next < end && offsets[next + 1] - offsets[next] == rows;) ++next;
      const int64_t equal = next - s;
      const T *own = x + begin * args.inner, *gradient = other + begin * args.cols, *weights = other + s * w_size;
      if (rows == 0) {
        if (args.outer) context.clear(out + s * w_size, equal * w_size * int64_t(sizeof(T)));
      } else if (args.outer) {
        const Matrix a{own, 1, args.inner, x_size}, b{gradient, args.cols, 1, y_size};
        context.gemm({args.dtype, equal, args.inner, args.cols, rows, a, b, out + s * w_size, w_size});
      } else {
        const Matrix a{own, args.inner, 1, x_size}, b{weights, args.cols, 1, w_size};
        context.gemm({args.dtype, equal, rows, args.cols, args.inner, a, b, out + begin * args.cols, y_size});
      }
    }
  });
}

}  // namespace tp::segment_matmul
