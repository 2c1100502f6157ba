// decoupled_lookback with the operator sum.
#ifdef __CUDACC__
#include "scan/lookback/scan.cuh"

namespace tp::scan::lookback {

void scan_sum(const Args& args, Context& context) { scan<OpId::sum>(args, context); }

}  // namespace tp::scan::lookback
#endif
