// The basic parallel merge (§12.5, Fig. 12.9): a thread finds the co-ranks of both ends of its stretch of the output
// and merges what lies between them, one element after another. Neighbouring threads read and write far apart, and the
// searches go through global memory: neither is coalesced.
//
// The figure divides m + n by the number of threads in integers before it rounds up, which loses the last elements;
// here a stretch is eight outputs and the grid has as many threads as that takes.
#include "merge/elements.h"

namespace tp::merge {
namespace {

constexpr int threads = 128, items = 8, section = threads * items;

template <class Merge>
struct Basic {
  using Word = typename Merge::Word;
  Merge merge;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = merge.bind(block);
    const int64_t total = merge.total(), sections = ceil_div(total, int64_t(section));
    for (int64_t id = block.index().x; id < merge.in.rows * sections; id += block.grid().x) {
      const int64_t row = id / sections, first = id % sections * section;
      block.phase("merge", [&](int t) {
        const int64_t k = tp::min(first + t * items, total), k_next = tp::min(k + items, total);
        const int64_t i = x.in.co_rank(row, k), j = k - i, i_next = x.in.co_rank(row, k_next);
        const int64_t of_a = share_of_a(i, i_next, k_next - k), of_b = k_next - k - of_a;
        merge_sequential(
            of_a, of_b, [&](int64_t p, int64_t q) { return x.in.later(row, i + p, j + q); },
            [&](int64_t p, int64_t at) {
              const Word key = x.in.a[row * x.in.m + i + p];
              x.take_a(row, i + p, k + at, key);
            },
            [&](int64_t q, int64_t at) {
              const Word key = x.in.b[row * x.in.n + j + q];
              x.take_b(row, j + q, k + at, key);
            });
      });
    }
  }
};

}  // namespace

void basic(const Args& args, Context& context) {
  with_merge(args, [&](const auto& merge) {
    const int64_t blocks = merge.in.rows * ceil_div(merge.total(), int64_t(section));
    simt::launch(context, "basic", {tp::min(blocks, max_grid)}, threads, 0,
                 Basic<std::decay_t<decltype(merge)>>{merge});
  });
}

}  // namespace tp::merge
