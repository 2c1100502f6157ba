// Many short rows, sorted on the host by networks, one row per lane of a vector.
#pragma once
#include <algorithm>
#include <limits>
#include <memory>

#include "block/on_vectors.h"
#include "sort/host_items.h"
#include "sort/row_network.h"

#ifdef TP_WITH_ROW_NETWORKS

namespace tp::sort::host {

// The greatest number of keys in a row that is sorted by a network. Above it, the log^2 n steps of a network cost more
// than digits do. For long rows of this kind, every thread still gets some.
template <class W>
constexpr int64_t most_network_keys = sizeof(W) == 8 ? 1 << 13 : 1 << 16;
constexpr int64_t few_network_keys = 1 << 10;

// Whether there are networks for such items.
template <class Items>
constexpr bool has_network = sizeof(typename Items::Word) > 1 && !Items::Lines::has_payload;

// Whether the rows are short and many, and the items are compared by all bits.
template <class Items>
bool suits_network(const Args& args, const Items& items, int threads) {
  using W = typename Items::Word;
  return !args.offsets && args.n > 1 && args.n <= most_network_keys<W> && items.whole() &&
         args.rows >= RowNetwork<W, 32>::lanes * (args.n <= few_network_keys ? 1 : threads);
}

// Sorts rows first .. first + count, one in each lane, for count up to the number of lanes. There is space for
// [lanes, padded] words, row by row, and for [padded, lanes], as vectors.
template <int bytes, class Items>
void sort_lanes(const Items& items, int64_t first, int64_t count, int64_t n, int64_t padded,
                typename Items::Word* by_row) {
  using W = typename Items::Word;
  using Network = RowNetwork<W, bytes>;
  using V = typename Network::V;
  constexpr int64_t lanes = Network::lanes;
  constexpr auto least = std::numeric_limits<typename Network::S>::min();
  for (int64_t l = 0; l < count; ++l) {
    W* const to = by_row + l * padded;
    items.load((first + l) * n, n, (first + l) * n, {to, nullptr});
    std::fill(to + n, to + padded, std::numeric_limits<W>::max());
  }
  V *const across = reinterpret_cast<V*>(by_row), *const x = across + padded;
  for (int64_t i = 0; i < padded; i += lanes) Network::transpose(across + i / lanes, padded / lanes, x + i, 1, least);
  Network::sort(x, padded);
  for (int64_t i = 0; i < padded; i += lanes) Network::transpose(x + i, 1, across + i / lanes, padded / lanes, least);
  for (int64_t l = 0; l < count; ++l) {
    items.store({by_row + l * padded, nullptr}, (first + l) * n, n, (first + l) * n);
  }
}

template <class Items>
void sort_rows_by_network(const Args& args, const Items& items, Context& context) {
  using W = typename Items::Word;
  constexpr int64_t widest = 64, most_lanes = RowNetwork<W, widest>::lanes;
  constexpr int64_t unit = tp::max(most_lanes, int64_t(RowNetwork<W, widest>::block));
  struct alignas(widest) Line {
    W words[widest / sizeof(W)];
  };
  const int64_t rows = args.rows, n = args.n, padded = ceil_div(n, unit) * unit;
  context.parallel_for(ceil_div(rows, most_lanes), 1 + (1 << 14) / (most_lanes * n), [&](int64_t begin, int64_t end) {
    const std::unique_ptr<Line[]> lines(new Line[size_t(2 * padded)]());
    on_widest_vectors([=, by_row = lines[0].words](auto bytes) {
      constexpr int64_t lanes = RowNetwork<W, bytes.value>::lanes;
      for (int64_t first = begin * most_lanes; first < tp::min(end * most_lanes, rows); first += lanes) {
        sort_lanes<bytes.value>(items, first, tp::min(lanes, rows - first), n, padded, by_row);
      }
    });
  });
}

}  // namespace tp::sort::host
#endif
