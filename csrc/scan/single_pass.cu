// The single-pass, domino-style scan (§11.7): one kernel, in which block bid scans its section as in Fig. 11.8, waits
// for the running total of block bid - 1, adds its own total, passes the sum on, and only then completes its section.
// Each element is read once and written once.
//
// Waiting is safe because a block takes its section by ticket (the text's dynamic block index): the block with ticket
// bid - 1 has already started, whatever the order in which the hardware starts blocks, so it will signal. The signal
// releases the total that was written before it, and the wait acquires it; in the text a memory fence does this. Flags
// and ticket counter are cleared before every launch. The first block of a row does not wait.
#include "scan/sections.h"

namespace tp::scan {
namespace {

constexpr int threads = 256, subsection = 9, section = threads * subsection;

template <class Elements>
struct SinglePassScanKernel {
  using M = typename Elements::Monoid;
  using Acc = typename M::Acc;
  Elements elements;
  int64_t first_row, sections, blocks;
  Acc* scan_value;  // [blocks + 1]; scan_value[bid] is the combination of what precedes block bid in its row
  int* flags;       // [blocks + 1]; flags[bid] says that scan_value[bid] is valid
  int64_t* block_counter;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = elements.bind(block);
    const auto value = block.global("scan_value", scan_value, blocks + 1);
    const auto flag = block.global("flags", flags, blocks + 1);
    const auto XY = block.template shared<Acc>("XY", section);
    const auto totals = block.template shared<Acc>("totals", threads);
    const auto previous_sum = block.template shared<Acc>("previous_sum", 1);
    auto temp = block.template per_lane<Acc>("temp");
    const int64_t bid = block.ticket(block.global("counter", block_counter, 1));
    const int64_t row = first_row + bid / sections, begin = bid % sections * section, n = elements.n;

    block.phase("load", [&](int t) {
      for (int i = t; i < section; i += threads) XY[i] = begin + i < n ? x.load(row, begin + i) : M::identity();
    });
    block.phase("phase_1", [&](int t) {
      const int first = t * subsection;
      Acc sum = XY[first];
      for (int i = first + 1; i < first + subsection; ++i) {
        sum = M::combine(sum, XY[i]);
        XY[i] = sum;
      }
      totals[t] = sum;
    });
    for (int stride = 1; stride < threads; stride *= 2) {
      block.phase("phase_2_read", [&](int t) {
        if (t >= stride) temp[t] = M::combine(totals[t - stride], totals[t]);
      });
      block.phase("phase_2_write", [&](int t) {
        if (t >= stride) totals[t] = temp[t];
      });
    }
    block.phase("phase_3", [&](int t) {
      if (t == 0) return;
      const Acc before = totals[t - 1];
      for (int i = t * subsection; i < (t + 1) * subsection; ++i) XY[i] = M::combine(before, XY[i]);
    });
    block.phase("domino", [&](int t) {
      if (t != 0) return;
      Acc previous = M::identity();
      if (begin > 0) {
        block.wait(flag, bid);
        previous = value[bid];
      }
      previous_sum[0] = previous;
      value[bid + 1] = M::combine(previous, XY[section - 1]);
      block.signal(flag, bid + 1);
    });
    block.phase("store", [&](int t) {
      const Acc previous = previous_sum[0];
      for (int i = t; i < section && begin + i < n; i += threads) x.store(row, begin + i, M::combine(previous, XY[i]));
    });
  }
};

}  // namespace

void single_pass(const Args& args, Context& context) {
  with_wide_elements(args, [&](auto elements) {
    using Kernel = SinglePassScanKernel<decltype(elements)>;
    using Acc = typename Kernel::Acc;
    const int64_t sections = ceil_div(elements.n, int64_t(section)),
                  rows_per_launch = tp::max(int64_t(1), (max_grid - 1) / sections);
    const int64_t most = tp::min(elements.rows, rows_per_launch) * sections;
    Acc* scan_value = context.workspace<Acc>(most + 1);
    const int64_t clear_bytes = int64_t(sizeof(int64_t)) + (most + 1) * int64_t(sizeof(int));
    int64_t* counter = static_cast<int64_t*>(context.allocate(clear_bytes));
    int* flags = reinterpret_cast<int*>(counter + 1);
    const int64_t shared = (section + threads + 1) * int64_t(sizeof(Acc)) + 16;
    for (int64_t row = 0; row < elements.rows; row += rows_per_launch) {
      const int64_t blocks = tp::min(elements.rows - row, rows_per_launch) * sections;
      context.clear(counter, clear_bytes);
      simt::launch(context, "single_pass", {blocks}, threads, shared,
                   Kernel{elements, row, sections, blocks, scan_value, flags, counter});
    }
  });
}

}  // namespace tp::scan
