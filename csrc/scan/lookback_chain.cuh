// The two-level look-back of decoupled_lookback: state, layout and launch.
#pragma once
#include "block/lookback.cuh"
#include "block/warp.cuh"
#include "scan/elements.h"

namespace tp::scan::lookback {

// The published values of one launch: a total a tile, and the running total at the end of every group of tiles.
template <class Acc>
struct Chain {
  block::Cell<Acc>*tiles, *groups;
  unsigned long long* tickets;  // null where no tile has one before it: then blocks need no order
};

// Cleared state for `tiles` tiles in `groups` groups.
template <class Acc>
Chain<Acc> make_chain(Context& context, int64_t tiles, int64_t groups) {
  const int64_t bytes = (tiles + groups) * int64_t(sizeof(block::Cell<Acc>)) + int64_t(sizeof(unsigned long long));
  auto* cells = static_cast<block::Cell<Acc>*>(context.allocate(bytes));
  context.clear(cells, bytes);
  return {cells, cells + tiles, reinterpret_cast<unsigned long long*>(cells + tiles + groups)};
}

template <class Acc>
TP_DEVICE int64_t take_ticket(const Chain<Acc>& chain) {
  if (!chain.tickets) return blockIdx.x;
  __shared__ unsigned long long ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(chain.tickets, 1ull);
  __syncthreads();
  return int64_t(ticket);
}

inline void check_launch() {
  const cudaError_t status = cudaGetLastError();
  require(status == cudaSuccess, "decoupled_lookback: ", cudaGetErrorString(status));
}

}  // namespace tp::scan::lookback
