// Sorts segments that fit in the shared memory of a multiprocessor, one block per segment at a time. A block sorts
// digit by digit from the least significant one, and ranks keys as pass.cuh does. It sorts only by the bits in which
// the keys of the segment differ.
#pragma once
#include "sort/onesweep/digits.cuh"
#include "sort/onesweep/segments.cuh"

namespace tp::sort::device {

constexpr int block_items = 16, block_threads = 512;
constexpr int least_block_threads = 128;
constexpr int block_most = block_items * block_threads;  // indices fit in 16 bits

template <class W>
struct BlockSort {
  Moves<W> moves;
  Segments segments;
};

// The shared memory of block_sort_kernel: the bins of each warp, the windows of the keys, and their original indices if
// `indexed`.
template <class W, bool indexed>
int block_sort_bytes(int threads, int64_t most) {
  const int64_t items = ceil_div(most, int64_t(threads)) * threads;
  return int(threads / 32 * radix * 4 + items * int64_t(sizeof(W) + (indexed ? 2 : 0)));
}

template <class W, bool indexed>
class SegmentSorter {
  unsigned* bins_;  // [warps, radix]
  W* keys_;         // [items]
  uint16_t* indices_;
  const int n_, per_warp_, warps_;
  const int thread = int(threadIdx.x), warp = thread / block::warp_size, lane = thread % block::warp_size;

 public:
  TP_DEVICE SegmentSorter(char* pool, int n)
      : bins_(reinterpret_cast<unsigned*>(pool)),
        n_(n),
        per_warp_(ceil_div(n, int(blockDim.x)) * block::warp_size),
        warps_(int(blockDim.x) / block::warp_size) {
    keys_ = reinterpret_cast<W*>(bins_ + warps_ * radix);
    indices_ = reinterpret_cast<uint16_t*>(keys_ + per_warp_ * warps_);
  }

  // Loads the segment, sorts it digit by digit, and stores it.
  TP_DEVICE void run(const Moves<W>& moves, int64_t begin) {
    const W differ = load(moves, begin);
    if (differ) {
      const int low = lowest(differ), top = highest(differ) + 1;
      for (int shift = low; shift < top; shift += digit_bits) pass(shift, (1u << tp::min(digit_bits, top - shift)) - 1);
    }
    for (int i = thread; i < n_; i += int(blockDim.x)) {
      if constexpr (indexed) {
        moves.put(begin + i, begin, int(indices_[i]), keys_[i]);
      } else {
        moves.keys_out[begin + i] = moves.template raw_of<true>(keys_[i]);
      }
    }
    __syncthreads();
  }

 private:
  TP_DEVICE static int lowest(W bits) { return __ffsll(static_cast<long long>(uint64_t(bits))) - 1; }
  TP_DEVICE static int highest(W bits) { return 63 - __clzll(static_cast<long long>(uint64_t(bits))); }

  // Loads the windows of the keys and returns the bits in which they differ.
  TP_DEVICE W load(const Moves<W>& moves, int64_t begin) {
    __shared__ unsigned differ_low, differ_high;
    if (thread == 0) differ_low = differ_high = 0;
    const W first = moves.template window_of<!indexed>(moves.keys[begin]);
    uint64_t differ = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = thread; i < n_; i += int(blockDim.x)) {
      const W window = moves.template window_of<!indexed>(moves.keys[begin + i]);
      keys_[i] = window;
      if constexpr (indexed) indices_[i] = uint16_t(i);
      differ |= W(window ^ first);
    }
    const unsigned low = __reduce_or_sync(~0u, unsigned(differ)), high = __reduce_or_sync(~0u, unsigned(differ >> 32));
    if (lane == 0 && low) atomicOr(&differ_low, low);
    if (lane == 0 && high) atomicOr(&differ_high, high);
    __syncthreads();
    return W(uint64_t(differ_high) << 32 | differ_low);
  }

  TP_DEVICE unsigned digit(W key, int i, int shift, unsigned mask) const {
    return i < n_ ? unsigned(key >> shift) & mask : unsigned(radix - 1);  // items beyond the end sort last
  }

  // One pass: sorts the segment by one digit, stably.
  TP_DEVICE void pass(int shift, unsigned mask) {
    const int mine = warp * per_warp_ + lane;
    unsigned* const bins = bins_ + warp * radix;
    W key[block_items];
    unsigned position[block_items];
#pragma unroll
    // Clear the bins of this warp.
    for (int i = 0; i < radix / block::warp_size; ++i) bins[i * block::warp_size + lane] = 0;
    __syncwarp();
#pragma unroll
    // Count the digits of this warp's keys.
    for (int u = 0; u < block_items; ++u) {
      const int i = mine + u * block::warp_size;
      if (u * block::warp_size >= per_warp_) break;
      key[u] = keys_[i];
      count_shared(shared_address(bins + digit(key[u], i, shift, mask)));
    }
    __syncthreads();
    scan_bins();
// The bins now hold where each warp's keys of each digit begin. Rank every key within its warp.
#pragma unroll
    for (int u = 0; u < block_items; ++u) {
      const int i = mine + u * block::warp_size;
      if (u * block::warp_size >= per_warp_) break;
      const unsigned d = digit(key[u], i, shift, mask);
      position[u] = rank(lane, match(d), shared_address(bins + d));
    }
// All warps have loaded their keys into registers, so the sorted keys can replace them.
#pragma unroll
    for (int u = 0; u < block_items; ++u) {
      if (u * block::warp_size >= per_warp_) break;
      keys_[position[u]] = key[u];
    }
    // Move the original indices in the same way; a barrier separates reading from writing.
    if constexpr (indexed) {
      uint16_t from[block_items];
#pragma unroll
      for (int u = 0; u < block_items; ++u) {
        if (u * block::warp_size >= per_warp_) break;
        from[u] = indices_[mine + u * block::warp_size];
      }
      __syncthreads();
#pragma unroll
      for (int u = 0; u < block_items; ++u) {
        if (u * block::warp_size >= per_warp_) break;
        indices_[position[u]] = from[u];
      }
    }
    __syncthreads();
  }

  // Turns the warps' digit counts into start positions. Each thread handles one digit, or two if there are fewer
  // threads.
  TP_DEVICE void scan_bins() {
    __shared__ unsigned warp_sums[radix / block::warp_size];
    const int each = int(blockDim.x) < radix ? 2 : 1, first = thread * each, last = tp::min(first + each, radix);
    unsigned total = 0;
    for (int d = first; d < last; ++d) {
      for (int w = 0; w < warps_; ++w) total += bins_[w * radix + d];
    }
    unsigned sum = sum_before(total, warp_sums);
    for (int d = first; d < last; ++d) {
      for (int w = 0; w < warps_; ++w) {
        const unsigned count = bins_[w * radix + d];
        bins_[w * radix + d] = sum;
        sum += count;
      }
    }
    __syncthreads();
  }
};

template <class W, bool indexed>
__global__ __launch_bounds__(block_threads, 2) void block_sort_kernel(const __grid_constant__ BlockSort<W> a) {
  extern __shared__ __align__(16) char block_sort_pool[];
  block::allow_next_launch();
  const int64_t count = a.segments.size();
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const Range range = a.segments.at(i);
    SegmentSorter<W, indexed>(block_sort_pool, range.n()).run(a.moves, range.begin());
  }
  block::wait_for_launch_before();
}

}  // namespace tp::sort::device
