// decoupled_lookback with the operator prod.
#ifdef __CUDACC__
#include "scan/lookback/scan.cuh"

namespace tp::scan::lookback {

void scan_prod(const Args& args, Context& context) { scan<OpId::prod>(args, context); }

}  // namespace tp::scan::lookback
#endif
