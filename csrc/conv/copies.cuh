// The asynchronous copies of block/copies.cuh, as convolutions call them.
#pragma once
#include "block/copies.cuh"
#include "block/pipeline.cuh"

namespace tp::conv {
using block::commit_copies;
using block::copy_or_zero;
using block::wait_for_copies;
using block::wait_for_groups;
}  // namespace tp::conv
