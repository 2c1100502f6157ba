// The single-pass, domino-style scan (§11.7): one kernel, in which block i waits for the running total of block i - 1,
// adds its own, passes the sum on, and only then completes its section. Each element is read once and written once.
//
// The wait is safe because a block takes its section by ticket: whoever holds ticket i - 1 has started, whatever order
// the hardware chose, so it will signal. The signal releases the total that was written before it, and the wait
// acquires it. Flags and ticket counter are cleared before every launch.
#include "block/coarsened.h"
#include "block/kogge_stone.h"
#include "scan/hierarchical.h"

namespace tp::scan {
namespace {

using Algorithm = block::Coarsened<block::KoggeStone<256>, 9>;
constexpr int section = Algorithm::section, threads = Algorithm::threads;

template <class Elements>
struct Domino {
  using M = typename Elements::Monoid;
  using Acc = typename M::Acc;
  Elements elements;
  int64_t first_row, sections, blocks;
  Acc* passed;  // [blocks + 1]; passed[i] is what comes before block i in its row
  int* flags;   // [blocks + 1]; flags[i]: passed[i] is there
  int64_t* counter;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = elements.bind(block);
    const auto sums = block.global("passed", passed, blocks + 1);
    const auto flag = block.global("flags", flags, blocks + 1);
    auto s = block.template shared<Acc>("s", section);
    auto scratch = block.template shared<Acc>("scratch", Algorithm::scratch);
    auto before = block.template shared<Acc>("before", 1);
    const int64_t id = block.ticket(block.global("counter", counter, 1));
    const int64_t row = first_row + id / sections, place = id % sections, first = place * section, n = elements.n;

    block.phase("load", [&](int t) {
      for (int i = t; i < section; i += threads) {
        if (first + i < n) {
          s[i] = x.load(row, first + i);
        } else {
          s[i] = M::identity();
        }
      }
    });
    Algorithm::template scan<M>(block, s, scratch);
    block.phase("domino", [&](int t) {
      if (t != 0) return;
      Acc previous = M::identity();
      if (place > 0) {
        block.wait(flag, id);
        previous = sums[id];
      }
      before[0] = previous;
      sums[id + 1] = M::combine(previous, s[section - 1]);
      block.signal(flag, id + 1);
    });
    block.phase("store", [&](int t) {
      const Acc previous = before[0];
      for (int i = t; i < section && first + i < n; i += threads) x.store(row, first + i, M::combine(previous, s[i]));
    });
  }
};

}  // namespace

void single_pass(const Args& args, Context& context) {
  with_elements(args, [&](auto elements) {
    using Kernel = Domino<decltype(elements)>;
    using Acc = typename Kernel::Acc;
    const int64_t sections = ceil_div(elements.n, int64_t(section)),
                  rows_a_launch = tp::max(int64_t(1), (block::max_grid - 1) / sections);
    const int64_t most = tp::min(elements.rows, rows_a_launch) * sections;
    Acc* passed = context.workspace<Acc>(most + 1);
    const int64_t clear_bytes = int64_t(sizeof(int64_t)) + (most + 1) * int64_t(sizeof(int));
    int64_t* counter = static_cast<int64_t*>(context.allocate(clear_bytes));
    int* flags = reinterpret_cast<int*>(counter + 1);
    const int64_t shared = (section + Algorithm::scratch + 1) * int64_t(sizeof(Acc)) + 16;
    for (int64_t row = 0; row < elements.rows; row += rows_a_launch) {
      const int64_t blocks = tp::min(elements.rows - row, rows_a_launch) * sections;
      context.clear(counter, clear_bytes);
      simt::launch(context, "single_pass", {blocks}, threads, shared,
                   Kernel{elements, row, sections, blocks, passed, flags, counter});
    }
  });
}

}  // namespace tp::scan
