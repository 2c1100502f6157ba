#include "conv/conv.h"

namespace tp::conv {
namespace {

// Up to so many channels or maps of a group, strips of registers beat the matrix product, whose tiles would be mostly
// empty. Set on an H200: at 32 -> 32 channels, 3 x 3, 56 x 56, batch 32, float32, both take about 0.1 ms forward.
constexpr int64_t few_channels = 32;
// Where strips do not apply, a matrix product pays from so many channels and maps on.
constexpr int64_t some_channels = 8;

// Whether register_tiled has strips for these filters (strips_gather.cuh, strips_wgrad.cuh).
bool has_strips(const Args& args) {
  const Axis &rows = args.rows, &cols = args.cols;
  return rows.kernel == cols.kernel && (rows.kernel == 1 || rows.kernel == 3 || rows.kernel == 5) && rows.stride == 1 &&
         cols.stride == 1 && rows.dilation == 1 && cols.dilation == 1;
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
