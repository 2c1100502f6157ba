// The second half of every wgrad on CUDA: blocks leave sums over slices of the batch (block/slices.cuh).
#pragma once
#include "block/slices.cuh"

namespace tp::conv {
using block::SamePlace;
using block::sum_slices;
}  // namespace tp::conv
