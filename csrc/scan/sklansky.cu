// Sklansky scan of a block: divide and conquer (Sklansky, 1960), the third of the classic circuits.
//
// Invariant: before the step of stride d, every d-element group is scanned. The step joins the groups in pairs: each
// element of the second takes the last element of the first before it. That element is only read, for it is in a first
// group, and the elements written are read by their own lanes alone: in place, with one barrier a step. It takes the
// fewest steps, with half of Kogge-Stone's work, at the price that one element is read by many lanes.
#include "scan/hierarchical.h"

namespace tp::scan {
namespace {

struct Sklansky {
  static constexpr int section = 512, threads = section / 2, scratch = 0;
  static constexpr bool exclusive = false;

  template <class M, class Block, class Array>
  TP_HD static void scan(Block& block, Array s, Array) {
    for (int stride = 1; stride < section; stride *= 2) {
      block.phase("join", [&](int t) {
        const int second = (t / stride * 2 + 1) * stride, i = second + t % stride;
        s[i] = M::combine(s[second - 1], s[i]);
      });
    }
  }
};

}  // namespace

void sklansky(const Args& args, Context& context) { scan_hierarchically<Sklansky>("sklansky", args, context); }

}  // namespace tp::scan
