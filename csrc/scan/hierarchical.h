// A rung of the scan: a block algorithm, under the driver of block/scan_sections.h, for every dtype and operator.
#pragma once
#include "block/scan_sections.h"
#include "scan/elements.h"

namespace tp::scan {

template <class Algorithm>
void scan_hierarchically(const char* name, const Args& args, Context& context) {
  with_elements(args, [&](auto elements) { block::scan_rows<Algorithm>(context, name, elements); });
}

}  // namespace tp::scan
