// One launch per level (Mills 2017, "kernel decomposition", taken to its end).
//
// No barrier spans a grid, but a launch begins only when the previous one has ended. So each launch does one level of
// the tree: output i of a row combines its inputs 2i and 2i + 1. There is no other synchronization and no shared
// memory; every level goes through global memory, about 2 n accumulators in all.
#include "reduction/sections.h"

namespace tp::reduction {
namespace {

constexpr int threads = 256;

template <class Source>
struct CombinePairs {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Source source;
  int64_t pairs;  // per row; an odd element stays alone
  Acc* totals;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = source.bind(block);
    const int64_t count = source.rows * pairs;
    const auto total = block.global("next", totals, count);
    for (int64_t first = block.index().x * threads; first < count; first += block.grid().x * threads) {
      block.phase("combine", [&](int t) {
        if (first + t >= count) return;
        const int64_t row = (first + t) / pairs, k = (first + t) % pairs * 2;
        Acc value = M::identity();
        if (k < source.n) value = x.load(row, k);
        if (k + 1 < source.n) value = M::combine(value, x.load(row, k + 1));
        if (pairs == 1) {
          x.store(row, value);
        } else {
          total[first + t] = value;
        }
      });
    }
  }
};

template <class Source>
void reduce_level(Context& context, const Source& source) {
  using Acc = typename Source::Acc;
  const int64_t pairs = tp::max(int64_t(1), ceil_div(source.n, int64_t(2))), count = source.rows * pairs;
  Acc* totals = pairs == 1 ? nullptr : context.workspace<Acc>(count);
  simt::launch(context, "recursive", {tp::min(ceil_div(count, int64_t(threads)), max_grid)}, threads, 0,
               CombinePairs<Source>{source, pairs, totals});
  if (pairs == 1) return;
  with_totals(source, totals, pairs, [&](const auto& next) { reduce_level(context, next); });
}

}  // namespace

void recursive(const Args& args, Context& context) {
  with_wide_elements(args, [&](const auto& elements) { reduce_level(context, elements); });
}

}  // namespace tp::reduction
