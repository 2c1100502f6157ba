#include "conv/conv.h"

namespace tp::conv {
namespace {

// Up to so many channels or maps of a group, strips of registers are taken. On an H200 they compute 16 TFLOP/s in
// float32 at 32 -> 32 channels of 56 x 56 by 3 x 3; the matrix product computes 44 with full tiles, of which 32 maps
// fill half.
constexpr int64_t few_channels = 32;
// Where strips do not apply, a matrix product pays from so many channels and maps on.
constexpr int64_t some_channels = 8;

// Whether register_tiled has strips for these filters (strips_gather.cuh, strips_wgrad.cuh): a block keeps those of
// some maps in shared memory, for all channels that are summed over.
bool has_strips(const Args& args) {
  const Axis &rows = args.rows, &cols = args.cols;
  const bool moves_by_one = rows.stride == 1 && cols.stride == 1 && rows.dilation == 1 && cols.dilation == 1;
  if (rows.kernel != cols.kernel || !moves_by_one) return false;
  constexpr int64_t most_rows = 192;  // of filters, in float
  const int64_t depth = args.pass == Pass::wgrad ? 1 : (args.pass == Pass::fprop ? args.c : args.m) / args.groups;
  const int64_t words = args.dtype == DType::float64 ? 2 : 1;
  return (rows.kernel == 1 || rows.kernel == 3 || rows.kernel == 5) && depth * rows.kernel * words <= most_rows;
}

}  // namespace

const char* choose(const Args& args, const Device& device) {
  if (!device.cuda) return "threaded";
  const int64_t channels = args.c / args.groups, maps = args.m / args.groups;
  if (min(channels, maps) > few_channels) return "implicit_gemm";
  if (has_strips(args)) return "register_tiled";
  // wgrad's matrix has a column for each channel and tap.
  const int64_t columns = args.pass == Pass::wgrad ? channels * args.rows.kernel * args.cols.kernel : channels;
  return min(columns, maps) >= some_channels ? "implicit_gemm" : "register_tiled";
}

}  // namespace tp::conv
