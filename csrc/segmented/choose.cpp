#include "segmented/grouped_gemm_sm90a.h"
#include "segmented/matmul.h"
#include "segmented/segmented.h"

namespace tp::segment_reduce {

// merge_path costs the same whatever the lengths of the segments.
const char* choose(const Args&, const Device& device) { return device.cuda ? "merge_path" : "threaded"; }

}  // namespace tp::segment_reduce

namespace tp::segment_scan {

// decoupled_lookback reads and writes each row once, whatever the lengths of the segments.
const char* choose(const Args&, const Device& device) { return device.cuda ? "decoupled_lookback" : "threaded"; }

}  // namespace tp::segment_scan

namespace tp::segment_matmul {

// On CUDA, the host must know the offsets before it can launch the products of the BLAS, and launches them one by one,
// which takes about 16 microseconds per segment (H200). Large ones are faster once they run: up to 1.4 times in
// float32, and three times in float64 and in half types where the tensor cores of Hopper cannot be used.
const char* choose(const Args& args, const Device& device) {
#ifdef TP_WITH_CUDA
  if (device.cuda) {
    const double products = double(args.n) * double(args.inner) * double(args.cols) / double(args.segments);
    const double most = args.dtype == DType::float32 ? double(int64_t(1) << 31) : double(1 << 27);
    if (products < most || is_for_hopper(args)) return "grouped_gemm";
  }
#endif
  (void)args, (void)device;
  return "gemm";
}

}  // namespace tp::segment_matmul
