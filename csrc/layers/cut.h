// How register_tiled cuts a product into tiles and slices, and what that costs.
//
// A block computes a tile of the result over one slice of the inner dimension. The multiprocessor with the most blocks
// decides how long a launch takes; slices cost a second launch, which adds them up.
#pragma once
#include "core/context.h"

namespace tp::linear {

// A tile, and the microseconds on an H200 of a launch, of a block per element of the inner dimension, and of a block.
struct Tile {
  int rows, cols;
  double launch, element, block;
};
// Fitted to 400 launches in float32 with a cold L2, which they predict to within 9 % (root mean square).
constexpr Tile tiles[] = {
    {128, 64, 5.3, 0.0512, 1.9}, {64, 64, 4.2, 0.0258, 1.7}, {64, 32, 4.3, 0.0150, 1.0}, {32, 32, 4.5, 0.0089, 0.6}};

struct Cut {
  int tile;
  int64_t slices;
  double microseconds;
};

// The cheapest cut of a product whose slices have at most 4,096 elements, beyond which rounding errors of float32 add
// up too far; longer ones if the sums of so many slices would take a gigabyte.
Cut cheapest_cut(const Gemm& p);

}  // namespace tp::linear
