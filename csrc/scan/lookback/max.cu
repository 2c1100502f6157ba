// decoupled_lookback with the operator max.
#ifdef __CUDACC__
#include "scan/lookback/scan.cuh"

namespace tp::scan::lookback {

void scan_max(const Args& args, Context& context) { scan<OpId::max>(args, context); }

}  // namespace tp::scan::lookback
#endif
