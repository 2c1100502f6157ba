// A rung of the scan: a kernel that scans sections, under the driver of block/scan_sections.h, for every dtype and
// operator.
#pragma once
#include "block/scan_sections.h"
#include "scan/elements.h"

namespace tp::scan {

using block::Sections;

// Combines the results in `args`, or those kept in `partial`, with the totals of the sections before. This launch is
// the same in all rungs, so sections.cu compiles it for them.
void add_totals(const char* name, const Args& args, void* partial, void* totals, int64_t section, int64_t sections,
                Context& context);

// Scans the totals of sections by `rung`: they are elements of a dtype. Only maps are not, and take kernels of their
// own.
template <class M, class Rung, class Own>
void scan_totals(const Args& args, typename M::Acc* totals, int64_t sections, Rung rung, Own own) {
  if constexpr (M::id == OpId::affine) {
    own(block::Totals<M>{totals, args.rows(), sections});
  } else {
    Args scan{};
    scan.in = scan.out = totals;
    scan.outer = args.rows();
    scan.n = sections;
    scan.inner = 1;
    scan.dtype = dtype_of<typename M::Acc>::value;
    scan.op = args.op;
    rung(scan);
  }
}

template <template <class> class Kernel>
void scan_by_sections(const char* name, const Args& args, Context& context) {
  with_wide_elements(args, [&](auto elements) {
    using M = typename decltype(elements)::Monoid;
    block::scan_rows<Kernel>(
        context, name, elements,
        [&](auto* totals, int64_t sections) {
          scan_totals<M>(
              args, totals, sections, [&](const Args& scan) { scan_by_sections<Kernel>(name, scan, context); },
              [&](auto maps) { block::scan_rows<Kernel>(context, name, maps); });
        },
        [&](const auto& all) {
          add_totals(name, args, all.source.partial, all.totals, all.section, all.sections, context);
        });
  });
}

}  // namespace tp::scan
