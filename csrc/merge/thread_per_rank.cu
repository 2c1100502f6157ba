// One thread per search (§12.4). co_rank is the search of Fig. 12.5 at a given rank. unmerge needs the inverse: the
// rank of A[i] in the merged sequence is i plus the number of elements of B before it, and that of B[j] is j plus the
// number of elements of A before it or equal to it. Every element writes its own value only, so the result is the same
// in every run, whatever the input.
#include "merge/elements.h"

namespace tp::co_rank_ladder {
namespace {

constexpr int threads = 256;

template <class Word>
struct CoRanks {
  merge::Keys<Word> keys;
  const int64_t* k;
  int64_t *ranks, queries;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t count = keys.rows * queries;
    const auto x = keys.bind(block);
    const auto rank = block.global("k", k, count);
    const auto out = block.global("ranks", ranks, count);
    for (int64_t first = block.index().x * threads; first < count; first += block.grid().x * threads) {
      block.phase("search", [&](int t) {
        if (first + t < count) out[first + t] = x.co_rank((first + t) / queries, rank[first + t]);
      });
    }
  }
};

template <class Word>
struct UnmergeEach {
  merge::Keys<Word> keys;
  merge::Unmerge values;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = keys.bind(block);
    const auto v = values.bind(block);
    const int64_t m = keys.m, n = keys.n, count = keys.rows * (m + n);
    for (int64_t first = block.index().x * threads; first < count; first += block.grid().x * threads) {
      block.phase("search", [&](int t) {
        if (first + t >= count) return;
        const int64_t row = (first + t) / (m + n), i = (first + t) % (m + n), j = i - m;
        if (i < m) {
          const int64_t before = partition_point(int64_t(0), n, [&](int64_t q) { return x.later(row, i, q); });
          v.give_a(row, i, i + before);
        } else {
          const int64_t before = partition_point(int64_t(0), m, [&](int64_t p) { return !x.later(row, p, j); });
          v.give_b(row, j, j + before);
        }
      });
    }
  }
};

}  // namespace

void thread_per_rank(const Args& args, Context& context) {
  with_key_word(args.in.type, [&](auto type) {
    const merge::Keys<typename decltype(type)::type> keys(args.in);
    const int64_t count = keys.rows * (args.step == Step::co_rank ? args.queries : keys.m + keys.n);
    const simt::Dim grid{tp::min(ceil_div(count, int64_t(threads)), max_grid)};
    if (args.step == Step::co_rank) {
      simt::launch(context, "thread_per_rank", grid, threads, 0,
                   CoRanks<typename decltype(type)::type>{keys, args.k, args.ranks, args.queries});
    } else {
      simt::launch(context, "thread_per_rank", grid, threads, 0,
                   UnmergeEach<typename decltype(type)::type>{keys, merge::Unmerge(args)});
    }
  });
}

}  // namespace tp::co_rank_ladder
