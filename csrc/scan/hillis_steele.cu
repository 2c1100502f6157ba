// Hillis-Steele scan of a block, double buffered (Hillis and Steele 1986; exercise 11.2 asks for it).
//
// Invariant: after the step of a stride, the buffer that was just written holds at t the combination of the 2 * stride
// elements that end at t. A step reads one buffer and writes the other, so no thread can overwrite what another one
// still reads, and one barrier per step is enough.
//
// The listing in Dey's lecture (scan/scan.h) has `+=` into the new buffer, which would add what that buffer held two
// steps earlier. It must assign.
#include "scan/sections.h"

namespace tp::scan {
namespace {

template <class Source>
struct HillisSteeleScanKernel {
  static constexpr int section = 256, threads = section, in_shared = 2 * section;
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto temp = block.template shared<Acc>("temp", 2 * section);  // two buffers, one after the other
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      int out = 0, in = section;  // where the buffers begin
      block.phase("load", [&](int t) { temp[out + t] = x.load(id, t); });
      for (int stride = 1; stride < section; stride *= 2) {
        in = out;
        out = section - in;
        block.phase("step", [&](int t) {
          const Acc own = temp[in + t];
          if (t >= stride) {
            temp[out + t] = M::combine(temp[in + t - stride], own);
          } else {
            temp[out + t] = own;
          }
        });
      }
      block.phase("store", [&](int t) {
        x.store(id, t, temp[out + t]);
        if (t == section - 1) x.store_total(id, temp[out + t]);
      });
    }
  }
};

}  // namespace

void hillis_steele(const Args& args, Context& context) {
  scan_by_sections<HillisSteeleScanKernel>("hillis_steele", args, context);
}

}  // namespace tp::scan
