// Radix sort, a bit a pass, a key a thread (§13.3, Figs. 13.1 to 13.4).
//
// A pass keeps the keys whose bit is 0 in front of those whose bit is 1, each kind in the order it came in, so after
// the pass of bit b the keys are sorted by their bits up to b. A key with a 0 moves to its index less the ones before
// it; a key with a 1 goes behind all zeros, to the ones before it. Whoever scatters needs everyone's bits scanned, and
// only the end of a launch holds the whole grid: extract, scan and scatter are three. The figure subtracts the ones
// before from the place of a 1 (line 15), where they must be added, and reads the total from bits[N], which an
// exclusive scan of N bits does not write: here it is the last entry and the last bit.
#include "sort/items.h"
#include "sort/scan_counts.h"

namespace tp::sort {
namespace {

template <class W>
struct Extract {
  Rows<W> rows;
  Items<W> items;
  uint8_t* bits;
  int bit;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = items.bind(block, "items", "places", rows.size());
    const auto out = block.global("bits", bits, rows.size());
    for_each(block, "extract", rows.size(),
             [&](int64_t i) { out[i] = uint8_t(rows.order.keys.window(in.keys[i]) >> bit & 1); });
  }
};

template <class W>
struct Scatter {
  Rows<W> rows;
  Items<W> from, to;
  const uint8_t* bits;
  const int64_t* ones_before;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = rows.n;
    const auto in = from.bind(block, "items", "places", rows.size());
    const auto out = to.bind(block, "items out", "places out", rows.size());
    const auto bit = block.global("bits", bits, rows.size());
    const auto before = block.global("ones before", ones_before, rows.size());
    for_each(block, "scatter", rows.size(), [&](int64_t i) {
      const int64_t row = i / n * n, last = row + n - 1, ones = before[i];
      const int64_t zeros = n - (int64_t(before[last]) + int64_t(bit[last]));
      out.set(row + (bit[i] ? zeros + ones : i - row - ones), in.get(i));
    });
  }
};

}  // namespace

void radix_1bit(const Args& args, Context& context) {
  sort_items("radix_1bit", args, context, false, [&](const auto& rows, auto items, auto spare) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    auto* bits = context.workspace<uint8_t>(rows.size());
    auto* before = context.workspace<int64_t>(rows.size());
    for (int bit = 0; bit < args.end_bit - args.begin_bit; ++bit) {
      launch_for_each(context, rows.rung, rows.size(), Extract<W>{rows, items, bits, bit});
      scan_counts(context, bits, before, rows.rows, rows.n);
      launch_for_each(context, rows.rung, rows.size(), Scatter<W>{rows, items, spare, bits, before});
      std::swap(items, spare);
    }
    return items;
  });
}

}  // namespace tp::sort
