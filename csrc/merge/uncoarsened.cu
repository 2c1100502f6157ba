// The merge without coarsening (§12.8): one thread per output, each with its own binary search. Output k is the earlier
// of the two elements to which its co-ranks point. It takes log n steps per element in global memory, which the other
// rungs save.
#include "merge/elements.h"

namespace tp::merge {
namespace {

constexpr int threads = 256;

template <class Merge>
struct Uncoarsened {
  using Word = typename Merge::Word;
  Merge merge;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = merge.bind(block);
    const int64_t total = merge.total(), count = merge.in.rows * total;
    for (int64_t first = block.index().x * threads; first < count; first += block.grid().x * threads) {
      block.phase("take", [&](int t) {
        if (first + t >= count) return;
        const int64_t row = (first + t) / total, k = (first + t) % total;
        const int64_t i = x.in.co_rank(row, k), j = k - i;
        if (i < x.in.m && (j == x.in.n || !x.in.later(row, i, j))) {
          const Word key = x.in.a[row * x.in.m + i];
          x.take_a(row, i, k, key);
        } else {
          const Word key = x.in.b[row * x.in.n + j];
          x.take_b(row, j, k, key);
        }
      });
    }
  }
};

}  // namespace

void uncoarsened(const Args& args, Context& context) {
  with_merge(args, [&](const auto& merge) {
    const int64_t blocks = ceil_div(merge.in.rows * merge.total(), int64_t(threads));
    simt::launch(context, "uncoarsened", {tp::min(blocks, max_grid)}, threads, 0,
                 Uncoarsened<std::decay_t<decltype(merge)>>{merge});
  });
}

}  // namespace tp::merge
