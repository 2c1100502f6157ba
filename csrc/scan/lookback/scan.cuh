// decoupled_lookback of one operator, for every dtype and layout.
#pragma once
#include "scan/lookback/rows.cuh"
#include "scan/lookback/scan.h"
#include "scan/lookback/strips.cuh"

namespace tp::scan::lookback {

template <OpId op>
void scan(const Args& args, Context& context) {
  with_elements_of<op>(args, [&](const auto& elements) {
    if (elements.inner == 1) {
      scan_rows(elements, context);
    } else {
      scan_strips(elements, context);
    }
  });
}

}  // namespace tp::scan::lookback
