#include "lenet/lenet.h"

namespace tp::lenet {

const char* choose(const Args& args, const Device& device) {
  return device.cuda && fused_refuses(args) == nullptr ? "fused" : "layers";
}

}  // namespace tp::lenet
