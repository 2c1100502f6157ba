// Radix sort from the most significant bit down (§13.8).
//
// The first pass splits each row into two buckets, and each later pass splits every bucket into two within its own
// range, so keys move within ever shorter ranges. The same three launches process all buckets: extract, scan and
// scatter. Every item knows the bounds of its bucket. The number of ones before it in the bucket is the number of ones
// before it in the row, minus the number of ones before the bucket.
#include "scan/scan.h"
#include "sort/items.h"

namespace tp::sort {
namespace {

// For every position of a row, the bucket [begin, end) that contains it.
struct Bounds {
  int64_t *begin, *end;
};

template <class W>
struct Extract {
  Rows<W> rows;
  Items<W> items;
  uint8_t* bits;
  Bounds bounds;
  int bit;
  bool first;  // first pass: the whole row is one bucket

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = items.bind(block, "items", "indices", rows.size());
    const auto out = block.global("bits", bits, rows.size());
    const auto begin = block.global("begin", bounds.begin, rows.size());
    const auto end = block.global("end", bounds.end, rows.size());
    for_each(block, "extract", rows.size(), [&](int64_t i) {
      out[i] = uint8_t(rows.order.keys.window(in.keys[i]) >> bit & 1);
      if (first) begin[i] = 0, end[i] = rows.n;
    });
  }
};

template <class W>
struct Split {
  Rows<W> rows;
  Items<W> from, to;
  const uint8_t* bits;
  const int64_t* ones_before;
  Bounds bounds, bounds_out;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = from.bind(block, "items", "indices", rows.size());
    const auto out = to.bind(block, "items out", "indices out", rows.size());
    const auto bit = block.global("bits", bits, rows.size());
    const auto before = block.global("ones before", ones_before, rows.size());
    const auto begin = block.global("begin", bounds.begin, rows.size());
    const auto end = block.global("end", bounds.end, rows.size());
    const auto begin_out = block.global("begin out", bounds_out.begin, rows.size());
    const auto end_out = block.global("end out", bounds_out.end, rows.size());
    for_each(block, "split", rows.size(), [&](int64_t i) {
      const int64_t row = i / rows.n * rows.n, b = begin[i], e = end[i];
      const int64_t ones_begin = before[row + b], ones_mine = int64_t(before[i]) - ones_begin;
      const int64_t ones_all = int64_t(before[row + e - 1]) + int64_t(bit[row + e - 1]) - ones_begin;
      const int64_t middle = e - ones_all;
      const bool one = bit[i] != 0;
      const int64_t at = row + (one ? middle + ones_mine : i - row - ones_mine);
      out.set(at, in.get(i));
      begin_out[at] = one ? middle : b;
      end_out[at] = one ? e : middle;
    });
  }
};

}  // namespace

void radix_msd(const Args& args, Context& context) {
  sort_items("radix_msd", args, context, false, [&](const auto& rows, auto items, auto spare) {
    using W = typename std::decay_t<decltype(rows)>::Word;
    const int64_t size = rows.size();
    const auto bounds = [&] { return Bounds{context.workspace<int64_t>(size), context.workspace<int64_t>(size)}; };
    Bounds now = bounds(), next = bounds();
    auto* bits = context.workspace<uint8_t>(size);
    auto* before = context.workspace<int64_t>(size);
    const int width = args.end_bit - args.begin_bit;
    for (int bit = width - 1; bit >= 0; --bit) {
      launch_for_each(context, rows.rung, size, Extract<W>{rows, items, bits, now, bit, bit == width - 1});
      scan::scan_counts(context, bits, before, rows.rows, rows.n);
      launch_for_each(context, rows.rung, size, Split<W>{rows, items, spare, bits, before, now, next});
      std::swap(items, spare);
      std::swap(now, next);
    }
    return items;
  });
}

}  // namespace tp::sort
