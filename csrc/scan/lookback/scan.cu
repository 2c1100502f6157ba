// decoupled_lookback of one operator, for every dtype and layout.
//
// The build compiles this file once for each operator, in parallel (setup.py, CMakeLists.txt).
// TP_PARTS: sum prod max min affine bitwise_and bitwise_or bitwise_xor
#ifdef __CUDACC__
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

template void scan<OpId::TP_PART>(const Args& args, Context& context);

}  // namespace tp::scan::lookback
#endif
