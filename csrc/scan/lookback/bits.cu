// decoupled_lookback with the operators bitwise_and, bitwise_or and bitwise_xor.
#ifdef __CUDACC__
#include "scan/lookback/scan.cuh"

namespace tp::scan::lookback {

void scan_bits(const Args& args, Context& context) {
  if (args.op == OpId::bitwise_and) return scan<OpId::bitwise_and>(args, context);
  if (args.op == OpId::bitwise_or) return scan<OpId::bitwise_or>(args, context);
  scan<OpId::bitwise_xor>(args, context);
}

}  // namespace tp::scan::lookback
#endif
