// Segments of up to 8192 keys without payloads, one block per segment at a time. Each thread holds 32 keys in
// registers. The warps sort 1024 keys each by Batcher's networks, then the runs of the warps are merged by bitonic
// steps.
//
// Shared memory holds the keys between two steps that need them in different threads. A merge first reads them so that
// the five widest strides are within a thread, then so that each thread has consecutive keys again.
#pragma once
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/network.cuh"

namespace tp::sort::device {

constexpr int block_network_items = 32, block_network_threads = 256;
static_assert(block_network_items * block_network_threads == short_most, "a block sorts whatever is sorted on chip");

// One word of padding after every 32 avoids bank conflicts: neighbouring threads access neighbouring keys, or keys that
// are 32 apart.
TP_HD constexpr int network_slot(int i) { return i + i / block_network_items; }

template <class W>
class BlockNetwork {
  using T = typename Item<W, false>::type;
  static constexpr int items = block_network_items, per_warp = items * block::warp_size;
  T x[items];
  T* const pool;  // by network_slot
  const int thread = int(threadIdx.x), lane = thread % block::warp_size;
  T* const mine = pool + network_slot(thread * items);

 public:
  TP_DEVICE explicit BlockNetwork(char* pool) : pool(reinterpret_cast<T*>(pool)) {}

  TP_DEVICE void run(const Moves<W>& moves, const Range& range) {
    const int begin = thread / block::warp_size * per_warp, first = begin + lane, left = range.n() - first;
    const W* const keys = moves.of(range) + first;
    const W padding = moves.template raw_of<true>(W(-1));
#pragma unroll
    for (int v = 0; v < items; ++v) {
      const W key = v * block::warp_size < left ? keys[v * block::warp_size] : padding;
      x[v] = T::of(moves.template window_of<true>(key), 0);
    }
    sort_lanes<block::warp_size>(x, lane);
    merge<2 * per_warp>();
    // Store the keys striped over the lanes of each warp, so that stores coalesce.
#pragma unroll
    for (int v = 0; v < items; ++v) mine[v] = x[v];
    __syncwarp();
    const T* const sorted = pool + network_slot(begin) + lane;
    W* const out = moves.keys_out + range.begin() + first;
#pragma unroll
    for (int v = 0; v < items; ++v) {
      const int at = v * block::warp_size;
      if (at >= left) break;
      out[at] = moves.template raw_of<true>(sorted[network_slot(at)].window());
    }
    __syncthreads();
  }

 private:
  // Merges runs of half of `size` keys, and the runs that this makes, until the block has one run.
  template <int size>
  TP_DEVICE void merge() {
    if (size > int(blockDim.x) * items) return;
    constexpr int stride = size / items;  // of the keys that a thread reads first
    // The upper run in descending order makes both a bitonic sequence.
    if (thread & (size / 2 / items)) {
      T* const mirrored = pool + network_slot((thread ^ (size / 2 / items - 1)) * items);
#pragma unroll
      for (int v = 0; v < items; ++v) mirrored[items - 1 - v] = x[v];
    } else {
#pragma unroll
      for (int v = 0; v < items; ++v) mine[v] = x[v];
    }
    __syncthreads();
    T* const strided = pool + network_slot(thread / stride * size + thread % stride);
#pragma unroll
    for (int v = 0; v < items; ++v) x[v] = strided[network_slot(v * stride)];
    merge_own<items / 2>(x);
#pragma unroll
    for (int v = 0; v < items; ++v) strided[network_slot(v * stride)] = x[v];
    __syncthreads();
#pragma unroll
    for (int v = 0; v < items; ++v) x[v] = mine[v];
#pragma unroll 1
    for (int lanes = stride / items / 2; lanes >= 1; lanes /= 2) exchange_lanes<false>(x, lanes, (lane & lanes) == 0);
    merge_own<items / 2>(x);
    if constexpr (size < short_most) {
      __syncthreads();
      merge<2 * size>();
    }
  }
};

template <class W>
__global__ __launch_bounds__(block_network_threads,
                             4) void block_network_kernel(const __grid_constant__ BlockSort<W> a) {
  extern __shared__ __align__(16) char block_network_pool[];
  block::allow_next_launch();
  const int64_t count = a.segments.size();
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    BlockNetwork<W>(block_network_pool).run(a.moves, a.segments.at(i));
  }
  block::wait_for_launch_before();
}

}  // namespace tp::sort::device
