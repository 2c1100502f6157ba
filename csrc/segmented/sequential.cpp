// One running value per segment, one segment after another. Every other rung is tested against it, so it is written for
// clarity only. Offsets are valid on the CPU, so every row lies in a segment.
#include "segmented/scan_elements.h"

namespace tp {

using namespace segmented;

void segment_reduce::sequential(const Args& args, Context&) {
  if (args.step == Step::expand) {
    return with_expansion(args, [](auto e) {
      const auto x = e.bind(simt::Pointers{});
      for (int64_t segment = 0; segment < e.segments; ++segment) {
        for (int64_t row = x.offsets.begin(segment); row < x.offsets.end(segment); ++row) {
          for (int64_t column = 0; column < e.width; ++column) x.store(row, column, x.value(segment, column));
        }
      }
    });
  }
  with_reduction(args, [](auto e) {
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
  });
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

}  // namespace tp
