// decoupled_lookback with the operator min.
#ifdef __CUDACC__
#include "scan/lookback/scan.cuh"

namespace tp::scan::lookback {

void scan_min(const Args& args, Context& context) { scan<OpId::min>(args, context); }

}  // namespace tp::scan::lookback
#endif
