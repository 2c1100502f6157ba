// One running value per segment, one segment after another. Every other rung is tested against this one, so it is
// written for clarity only. Offsets are valid on the CPU, so every row is in a segment.
#include <algorithm>

#include "segmented/matmul.h"
#include "segmented/scan_elements.h"

namespace tp {

using namespace segmented;

void segment_reduce::sequential(const Args& args, Context& context) {
  const auto expand = [](auto e) {
    const auto x = e.bind(simt::Pointers{});
    for (int64_t segment = 0; segment < e.segments; ++segment) {
      for (int64_t row = x.offsets.begin(segment); row < x.offsets.end(segment); ++row) {
        for (int64_t column = 0; column < e.width; ++column) x.store(row, column, x.value(segment, column));
      }
    }
  };
  const auto reduce = [](auto e) {
    using M = typename decltype(e)::Monoid;
    const auto x = e.bind(simt::Pointers{});
    for (int64_t segment = 0; segment < e.segments; ++segment) {
      for (int64_t column = 0; column < e.width; ++column) {
        auto running = M::identity();
        for (int64_t row = x.offsets.begin(segment); row < x.offsets.end(segment); ++row) {
          running = M::combine(running, x.load(row, column));
        }
        x.store(segment, column, running);
      }
    }
  };
  with_step(args, context, reduce, expand);
}

void segment_scan::sequential(const Args& args, Context&) {
  with_scan(args, [](auto e) {
    using M = typename decltype(e)::Monoid;
    const auto x = e.bind(simt::Pointers{});
    for (int64_t segment = 0; segment < e.segments; ++segment) {
      const int64_t begin = x.offsets.begin(segment), end = x.offsets.end(segment);
      for (int64_t column = 0; column < e.width; ++column) {
        auto running = M::identity();
        for (int64_t k = begin; k < end; ++k) {
          const auto inclusive = append<M>(running, x.operand(column, k, k == begin));
          x.store(column, k, e.exclusive ? running : inclusive);
          running = inclusive;
        }
      }
    }
  });
}

void segment_matmul::sequential(const Args& args, Context&) {
  const int64_t* const offsets = args.valid_offsets();
  dispatch(FloatTypes{}, args.dtype, "segment_matmul", [&](auto type) {
    using T = typename decltype(type)::type;
    using A = acc_t<T>;
    const auto *x = static_cast<const T*>(args.x), *other = static_cast<const T*>(args.other);
    auto* out = static_cast<T*>(args.out);
    if (!args.outer) std::fill(out, out + args.n * args.cols, T(0));
    for (int64_t s = 0; s < args.segments; ++s) {
      const int64_t begin = offsets[s], end = offsets[s + 1], matrix = s * args.inner * args.cols;
      for (int64_t i = args.outer ? 0 : begin; i < (args.outer ? args.inner : end); ++i) {
        for (int64_t j = 0; j < args.cols; ++j) {
          double sum = 0;
          if (args.outer) {
            for (int64_t row = begin; row < end; ++row)
              sum += double(A(x[row * args.inner + i])) * double(A(other[row * args.cols + j]));
            out[matrix + i * args.cols + j] = T(A(sum));
          } else {
            for (int64_t k = 0; k < args.inner; ++k)
              sum += double(A(x[i * args.inner + k])) * double(A(other[matrix + k * args.cols + j]));
            out[i * args.cols + j] = T(A(sum));
          }
        }
      }
    }
  });
}

}  // namespace tp
