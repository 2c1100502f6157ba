// Odd-even transposition sort (§13.8): neighbours that are out of order are exchanged; the steps alternate between
// pairs that start at an even index and pairs that start at an odd index. n steps sort any n items, because no item has
// to move farther than n - 1. The book stops after two steps without an exchange, but then the host would have to read
// a flag back after every step.
#include "sort/network.h"

namespace tp::sort {
namespace {

struct Neighbours {
  TP_HD static Pair pair(int64_t i, int64_t, int64_t turn) { return {2 * i + turn % 2, 2 * i + turn % 2 + 1}; }
};

}  // namespace

void odd_even_transposition(const Args& args, Context& context) {
  sort_items("odd_even_transposition", args, context, true, [&](const auto& rows, auto items, auto) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    const int64_t comparators = ceil_div(rows.n, int64_t(2));
    for (int64_t turn = 0; turn < rows.n; ++turn)
      launch_for_each(context, rows.rung, rows.rows * comparators,
                      Step<W, Neighbours>{rows, items, 2, turn, comparators});
    return items;
  });
}

}  // namespace tp::sort
