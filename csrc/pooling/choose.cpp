#include "pooling/pooling.h"

namespace tp::pooling {

// The vectorized rung takes every step, size and layout. With windows of stride 2 it moves the data of max_pool2d and
// avg_pool2d of 64 x 64 maps of 112 x 112 in float32 at 0.56 to 1.0 times the rate of a copy (H200,
// benchmarks/results/h200_layers.csv).
const char* choose(const Args&, const Device& device) { return device.cuda ? "vectorized" : "threaded"; }

}  // namespace tp::pooling
