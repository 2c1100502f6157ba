// A rung of the scan: a kernel that scans sections, under the driver of block/scan_sections.h, for every dtype and
// operator.
#pragma once
#include "block/scan_sections.h"
#include "scan/elements.h"

namespace tp::scan {

using block::Sections;

template <template <class> class Kernel>
void scan_by_sections(const char* name, const Args& args, Context& context) {
  with_elements(args, [&](auto elements) { block::scan_rows<Kernel>(context, name, elements); });
}

}  // namespace tp::scan
