// Radix sort, one bit per pass and one key per thread (§13.3, Figs. 13.1 to 13.4).
//
// A pass moves the keys whose bit is 0 in front of those whose bit is 1, and keeps the order of both, so after the pass
// of bit b the keys are sorted by their bits up to b. A key with a 0 moves to its index minus the number of ones before
// it; a key with a 1 moves to the number of zeros plus the number of ones before it. A key can be scattered only after
// the bits of all keys are scanned, and only the end of a launch is a barrier for the whole grid, so the figure's
// kernel is divided at its scan into three launches: extract, scan and scatter.
//
// The figure subtracts the ones before a 1 from its index (line 15), but they must be added. It also reads the total
// from bits[N], which an exclusive scan of N bits does not write: here the total is the last entry plus the last bit.
#include "scan/scan.h"
#include "sort/items.h"

namespace tp::sort {
namespace {

template <class W>
struct ExtractKernel {  // Fig. 13.4, lines 03 to 09
  Rows<W> rows;
  Items<W> keys;
  uint8_t* bits;
  int iter;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t size = rows.size();
    const auto input = keys.bind(block, "input", "input indices", size);
    const auto bit = block.global("bits", bits, size);
    for (int64_t first = block.index().x * threads; first < size; first += block.grid().x * threads) {
      block.phase("extract", [&](int t) {
        const int64_t i = first + t;
        if (i < size) bit[i] = uint8_t(rows.order.keys.window(input.get(i).key) >> iter & 1);
      });
    }
  }
};

template <class W>
struct ScatterKernel {  // Fig. 13.4, lines 11 to 17
  Rows<W> rows;
  Items<W> from, to;
  const uint8_t* bits;
  const int64_t* scanned_bits;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t N = rows.n, size = rows.size();
    const auto input = from.bind(block, "input", "input indices", size);
    const auto output = to.bind(block, "output", "output indices", size);
    const auto bit = block.global("bits", bits, size);
    const auto ones_before = block.global("ones before", scanned_bits, size);
    for (int64_t first = block.index().x * threads; first < size; first += block.grid().x * threads) {
      block.phase("scatter", [&](int t) {
        if (first + t >= size) return;
        const int64_t i = (first + t) % N, row = first + t - i, last = row + N - 1;
        const int64_t num_ones_before = ones_before[row + i];
        const int64_t num_ones_total = int64_t(ones_before[last]) + int64_t(bit[last]);
        const int64_t dst = bit[row + i] == 0 ? i - num_ones_before : N - num_ones_total + num_ones_before;
        output.set(row + dst, input.get(row + i));
      });
    }
  }
};

}  // namespace

void radix_1bit(const Args& args, Context& context) {
  sort_items("radix_1bit", args, context, false, [&](const auto& rows, auto items, auto spare) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    auto* bits = context.workspace<uint8_t>(rows.size());
    auto* before = context.workspace<int64_t>(rows.size());
    for (int bit = 0; bit < args.end_bit - args.begin_bit; ++bit) {
      launch_for_each(context, rows.rung, rows.size(), ExtractKernel<W>{rows, items, bits, bit});
      scan::scan_counts(context, bits, before, rows.rows, rows.n);
      launch_for_each(context, rows.rung, rows.size(), ScatterKernel<W>{rows, items, spare, bits, before});
      std::swap(items, spare);
    }
    return items;
  });
}

}  // namespace tp::sort
