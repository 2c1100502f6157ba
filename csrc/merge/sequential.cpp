// The sequential merge (Fig. 12.2) and the binary search for co-ranks (Fig. 12.5), one after another. Every other rung
// is tested against these, so they are written for clarity only. unmerge is a merge that copies in the opposite
// direction.
#include "merge/elements.h"

namespace tp {

void merge::sequential(const Args& args, Context&) {
  with_merge(args, [](const auto& problem) {
    const auto x = problem.bind(simt::Pointers{});
    for (int64_t row = 0; row < problem.in.rows; ++row) {
      merge_sequential(
          x.in.m, x.in.n, [&](int64_t i, int64_t j) { return x.in.later(row, i, j); },
          [&](int64_t i, int64_t k) { x.take_a(row, i, k, x.in.a[row * x.in.m + i]); },
          [&](int64_t j, int64_t k) { x.take_b(row, j, k, x.in.b[row * x.in.n + j]); });
    }
  });
}

void co_rank_ladder::sequential(const Args& args, Context&) {
  with_key_word(args.in.type, [&](auto type) {
    const merge::Keys<typename decltype(type)::type> keys(args.in);
    const merge::Unmerge values(args);
    const auto x = keys.bind(simt::Pointers{});
    const auto v = values.bind(simt::Pointers{});
    for (int64_t row = 0; row < keys.rows; ++row) {
      if (args.step == Step::co_rank) {
        for (int64_t q = row * args.queries; q < (row + 1) * args.queries; ++q) {
          args.ranks[q] = x.co_rank(row, args.k[q]);
        }
      } else {
        merge_sequential(
            x.m, x.n, [&](int64_t i, int64_t j) { return x.later(row, i, j); },
            [&](int64_t i, int64_t k) { v.give_a(row, i, k); }, [&](int64_t j, int64_t k) { v.give_b(row, j, k); });
      }
    }
  });
}

}  // namespace tp
