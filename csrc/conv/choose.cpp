#include "conv/conv.h"

namespace tp::conv {

const char* choose(const Args&, const Device& device) { return device.cuda ? "im2col_gemm" : "threaded"; }

}  // namespace tp::conv
