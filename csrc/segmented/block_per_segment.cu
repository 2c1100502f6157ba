// One block per segment: its lanes go through the rows with a stride, and combine their values in shared memory. Long
// segments are reduced at the speed of memory; short ones leave most lanes idle.
//
// Rows may be wide. A strip is `across` columns of a segment: `across` neighbouring lanes take neighbouring columns,
// and each further group of `across` lanes takes the next row. Lane t and lane t + stride have the same column if the
// stride is a multiple of `across`, so the reduction tree stops at stride `across`.
#include "block/scan_sections.h"
#include "segmented/elements.h"

namespace tp::segment_reduce {
namespace {

using namespace segmented;
constexpr int threads = 256;

template <class E>
struct Reduce {
  E e;
  int64_t strips;
  int across;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using M = typename E::Monoid;
    const auto x = e.bind(block);
    auto s = block.template shared<typename M::Acc>("s", threads);
    for (int64_t id = block.index().x; id < e.segments * strips; id += block.grid().x) {
      const int64_t segment = id / strips, first = id % strips * across;
      block.phase("stride", [&](int t) {
        const int64_t column = first + t % across, end = x.offsets.end(segment);
        auto running = M::identity();
        if (column < e.width) {
          for (int64_t row = x.offsets.begin(segment) + t / across; row < end; row += threads / across)
            running = M::combine(running, x.load(row, column));
        }
        s[t] = running;
      });
      for (int stride = threads / 2; stride >= across; stride /= 2) {
        block.phase("join", [&](int t) {
          if (t < stride) s[t] = M::combine(s[t], s[t + stride]);
        });
      }
      block.phase("store", [&](int t) {
        if (t < across && first + t < e.width) x.store(segment, first + t, s[t]);
      });
    }
  }
};

// Segments -1 and `segments` are the rows that are in no segment.
template <class E>
struct Expand {
  E e;
  int64_t strips;
  int across;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = e.bind(block);
    for (int64_t id = block.index().x; id < (e.segments + 2) * strips; id += block.grid().x) {
      block.phase("stride", [&](int t) {
        const int64_t segment = id / strips - 1, column = id % strips * across + t % across;
        if (column >= e.width) return;
        const int64_t end = x.offsets.end(segment);
        const auto value = x.value(segment, column);
        for (int64_t row = x.offsets.begin(segment) + t / across; row < end; row += threads / across)
          x.store(row, column, value);
      });
    }
  }
};

int columns_per_block(int64_t width) {
  int across = 1;
  while (across < width && across < threads) across *= 2;
  return across;
}

}  // namespace

void block_per_segment(const Args& args, Context& context) {
  const int across = columns_per_block(args.width);
  const int64_t strips = ceil_div(args.width, int64_t(across));
  const auto launch = [&](int64_t segments, size_t shared, const auto& kernel) {
    simt::launch(context, "block_per_segment", {tp::min(segments * strips, max_grid)}, threads, int64_t(shared),
                 kernel);
  };
  with_wide_step(
      args, context,
      [&](auto e) {
        using E = decltype(e);
        launch(e.segments, threads * sizeof(typename E::Acc), Reduce<E>{e, strips, across});
      },
      [&](auto e) { launch(e.segments + 2, 0, Expand<decltype(e)>{e, strips, across}); });
}

}  // namespace tp::segment_reduce
