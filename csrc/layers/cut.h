// How register_tiled divides a product into tiles and slices, and a model of the cost.
//
// A block computes a tile of the result over one slice of the inner dimension. The time of a launch is that of the
// multiprocessor with the most blocks. Slices cost a second launch, which adds them up.
#pragma once
#include "core/context.h"

namespace tp::linear {

// A tile, and three costs in microseconds on an H200: per launch, per block and element of the inner dimension, and per
// block.
struct Tile {
  int rows, cols;
  double launch, element, block;
};
// Fitted to 400 launches in float32 with a cold L2; the root mean square error of the prediction is 9 %.
constexpr Tile tiles[] = {
    {128, 64, 5.3, 0.0512, 1.9}, {64, 64, 4.2, 0.0258, 1.7}, {64, 32, 4.3, 0.0150, 1.0}, {32, 32, 4.5, 0.0089, 0.6}};

struct Cut {
  int tile;
  int64_t slices;
  double microseconds;
};

// Chooses the cheapest division of a product into slices of at most 4,096 elements; in longer slices, the rounding
// errors of float32 would add up too far. Slices are longer only if the sums of so many slices would take a gigabyte.
Cut cheapest_cut(const Gemm& p);

}  // namespace tp::linear
