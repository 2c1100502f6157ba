// Compaction by two patterns: an exclusive sum of the mask, by the device's default scan, gives every row the number of
// kept rows before it, which is its position. Then each thread moves one word of a row.
#include "block/per_output.h"
#include "compact/rows.h"
#include "scan/scan.h"

namespace tp::compact {
namespace {

constexpr int threads = 256;

// Each lane counts kept rows, and each block adds the counts of its lanes.
struct Count {
  const boolean* mask;
  int64_t n;
  int64_t* count;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keeps = block.global("mask", mask, n);
    const auto total = block.global("count", count, 1);
    auto sum = block.template shared<int64_t>("sum", 1);
    block.phase("clear", [&](int t) {
      if (t == 0) sum[0] = 0;
    });
    block.phase("count", [&](int t) {
      int64_t kept = 0;
      for (int64_t i = block.index().x * threads + t; i < n; i += block.grid().x * threads) {
        const boolean keep = keeps[i];
        kept += bool(keep);
      }
      sum.template atomic<Sum<int64_t>>(0, kept);
    });
    block.phase("add", [&](int t) {
      if (t != 0) return;
      const int64_t kept = sum[0];
      total.template atomic<Sum<int64_t>>(0, kept);
    });
  }
};

template <class Rows>
struct Scatter {
  Rows rows;
  Step step;
  const int64_t* before;  // [n]: the number of kept rows before each row

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Word = typename Rows::Word;
    const int64_t n = rows.n, packed = rows.packed, width = rows.width, words = n * width;
    const bool packs = step != Step::unpack, fills = step == Step::pack;
    const auto mask = block.global("mask", rows.mask, n);
    const auto kept_before = block.global("before", before, n);
    const auto x = block.global("x", rows.in, (packs ? n : packed) * width);
    const auto y = block.global("y", rows.out, (packs ? packed : n) * width);
    const auto count = block.global("count", rows.count, 1);
    for (int64_t first = block.index().x * threads; first < tp::max(words, int64_t(1));
         first += block.grid().x * threads) {
      block.phase("move", [&](int t) {
        int64_t total = 0;
        if (n > 0 && ((first + t == 0 && rows.count) || step == Step::partition)) {
          const int64_t p = kept_before[n - 1];
          const boolean keep = mask[n - 1];
          total = p + bool(keep);
        }
        if (first + t == 0 && rows.count) count[0] = total;
        if (first + t >= words) return;
        const int64_t row = floor_div(first + t, width), column = first + t - row * width, p = kept_before[row];
        const boolean keep = mask[row];
        if (packs) {
          const int64_t to = keep ? p : fills ? n - 1 - (row - p) : total + row - p;
          const Word word = keep || !fills ? Word(x[first + t]) : rows.fill;
          if (to < packed) y[to * width + column] = word;
        } else {
          const Word word = keep && p < packed ? Word(x[p * width + column]) : Word{};
          y[first + t] = word;
        }
      });
    }
  }
};

}  // namespace

void scan_scatter(const Args& args, Context& context) {
  if (args.step == Step::count) {
    context.clear(args.count, int64_t(sizeof(int64_t)));
    const int64_t blocks = tp::min(ceil_div(args.n, int64_t(16 * threads)), int64_t(1056));
    return simt::launch(context, "scan_scatter", {blocks}, threads, int64_t(sizeof(int64_t)),
                        Count{static_cast<const boolean*>(args.mask), args.n, args.count});
  }
  int64_t* before = context.workspace<int64_t>(args.n);
  scan::Args sums{};
  sums.in = args.mask;
  sums.out = before;
  sums.outer = sums.inner = 1;
  sums.n = args.n;
  sums.dtype = DType::boolean;
  sums.op = OpId::sum;
  sums.exclusive = true;
  const bool cuda = context.device.cuda;
  if (args.n > 0) find(scan::ladder, "scan", scan::choose(sums, context.device), cuda).run(sums, context);
  with_rows(args, [&](const auto& rows) {
    using Kernel = Scatter<std::decay_t<decltype(rows)>>;
    const int64_t blocks = tp::max(tp::min(ceil_div(rows.n * rows.width, int64_t(threads)), max_grid), int64_t(1));
    simt::launch(context, "scan_scatter", {blocks}, threads, 0, Kernel{rows, args.step, before});
  });
}

}  // namespace tp::compact
