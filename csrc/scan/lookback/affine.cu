// decoupled_lookback with the operator affine.
#ifdef __CUDACC__
#include "scan/lookback/scan.cuh"

namespace tp::scan::lookback {

void scan_affine(const Args& args, Context& context) { scan<OpId::affine>(args, context); }

}  // namespace tp::scan::lookback
#endif
