#include "conv/conv.h"

namespace tp::conv {

// Up to so many channels or maps of a group, strips of registers beat the matrix product: its tiles would be mostly
// empty. Set on an H200: 32 -> 32 channels of 56 x 56, 3 x 3, batch 32, float32 take 0.100 ms by register_tiled.
constexpr int64_t few_channels = 32;

const char* choose(const Args& args, const Device& device) {
  if (!device.cuda) return "threaded";
  return min(args.c, args.m) / args.groups <= few_channels ? "register_tiled" : "implicit_gemm";
}

}  // namespace tp::conv
