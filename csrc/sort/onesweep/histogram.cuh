// Counts all digits of all segments in one pass over the keys. Each block takes an equal share of consecutive tiles.
// The block that counts the last tile of a segment turns the segment's counts into start positions, and finds which
// passes have to move keys.
#pragma once
#include "sort/onesweep/digits.cuh"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {

template <class W>
struct Histogram {
  Problems problems;
  State state;
  int passes;
  KeyOrder<W> order;
  int begin_bit, end_bit;
  const W* keys;
};

// Every counter has `1 << log_copies` copies side by side. Each lane counts in its own copy, so that the lanes of a
// warp never conflict on a bank. With few keys, one copy is faster, because it takes less time to clear and to add up.
template <class W, int threads_, int log_copies_>
struct HistogramShape {
  static constexpr int threads = threads_, log_copies = log_copies_, copies = 1 << log_copies;
  static constexpr int passes = int(sizeof(W)), table_bytes = radix * copies * 4;
  static_assert(threads % radix == 0, "one thread per digit, of whole passes, is needed to scan the histogram");
};

template <class Shape, class W, bool floating>
class HistogramBlock {
  static constexpr int warps = radix / block::warp_size;  // per pass in finish()
  const Histogram<W>& a;
  unsigned* bins;            // [passes, radix, copies]
  unsigned long long* sums;  // [threads / 32]
  bool descends = false;     // this thread has seen a key that is less than its predecessor
  const int thread = int(threadIdx.x);

 public:
  TP_DEVICE HistogramBlock(const Histogram<W>& a, char* pool, unsigned long long* sums)
      : a(a), bins(reinterpret_cast<unsigned*>(pool)), sums(sums) {
    for (int i = thread; i < a.passes * radix * Shape::copies; i += Shape::threads) bins[i] = 0;
    __syncthreads();
  }

  // Counts the digits of n keys. `preceded` says that from[-1] belongs to the segment, too.
  TP_DEVICE void count(const W* from, int64_t n, bool preceded) {
    constexpr int batch = 8;
    int64_t first = thread;
    const auto look = [&](const W& key, int64_t i) {
      if (i > 0 || preceded) descends = descends || a.order.less(key, from[i - 1]);
    };
    for (; first + (batch - 1) * Shape::threads < n; first += batch * Shape::threads) {
      W key[batch];
#pragma unroll
      for (int u = 0; u < batch; ++u) key[u] = from[first + u * Shape::threads];
      if (!descends) {
#pragma unroll
        for (int u = 0; u < batch; ++u) look(key[u], first + u * Shape::threads);
      }
      count_keys(key);
    }
    for (; first < n; first += Shape::threads) {
      const W key[] = {from[first]};
      look(key[0], first);
      count_keys(key);
    }
  }

  // Adds the block's counts of `tiles` tiles, of which `t` is the first, to the histogram of their segment.
  TP_DEVICE void flush(const Tile& t, unsigned tiles) {
    __shared__ bool complete;
    if (__syncthreads_or(descends) && thread == 0) atomicOr(a.state.active + 1, 1u);
    for (int i = thread; i < a.passes * radix; i += Shape::threads) {
      unsigned n = 0;
      for (int c = 0; c < Shape::copies; ++c) {
        unsigned& bin = bins[i * Shape::copies + (c + thread) % Shape::copies];
        n += bin;
        bin = 0;
      }
      if (n) atomicAdd(counts(t) + i, static_cast<unsigned long long>(n));
    }
    // The block that completes the segment, by the last tiles, turns the counts into start positions.
    __threadfence();
    __syncthreads();
    if (thread == 0) complete = atomicAdd(a.state.done + t.segment, tiles) + tiles == unsigned(a.problems.tiles_of(t));
    __syncthreads();
    if (!complete) return;
    __threadfence();
    finish(t);
  }

 private:
  TP_DEVICE unsigned long long* counts(const Tile& t) const { return a.state.starts + t.segment * a.passes * radix; }

  template <int n>
  TP_DEVICE void count_keys(const W (&key)[n]) {
    const unsigned column = shared_address(bins) + unsigned(thread) % Shape::copies * 4;
#pragma unroll
    for (int p = 0; p < Shape::passes; ++p) {
      if (p >= a.passes) break;
      const int begin = a.begin_bit + p * digit_bits;
      const unsigned mask = (1u << tp::min(digit_bits, a.end_bit - begin)) - 1;
      const Entry<Shape::log_copies + 2, W, floating> entry(a.order, begin & int(8 * sizeof(W) - 1), mask, column);
#pragma unroll
      for (int u = 0; u < n; ++u) count_shared(entry(key[u]) + p * Shape::table_bytes);
    }
  }

  // Turns the counts of a segment into start positions: one thread per digit, for several passes at once, from the last
  // pass on. If all keys with equal highest digits fit on chip, only the last pass moves the keys of the segment.
  TP_DEVICE void finish(const Tile& t) {
    const int warp = thread / block::warp_size, lane = thread % block::warp_size;
    bool divided = false;
#pragma unroll 1
    for (int e = thread; e - thread < a.passes * radix; e += Shape::threads) {
      const int pass = a.passes - 1 - e / radix;
      unsigned long long* const count = counts(t) + pass * radix + e % radix;
      const unsigned long long own = pass >= 0 ? __ldcg(count) : 0;
      if (e == thread && a.problems.divides) {
        divided = !__syncthreads_or(thread < radix && own > static_cast<unsigned long long>(short_most));
        if (thread == 0) a.problems.list[t.segment].divided = divided;
      }
      unsigned long long upto = own;
#pragma unroll
      for (int stride = 1; stride < block::warp_size; stride *= 2) {
        const unsigned long long left = __shfl_up_sync(~0u, upto, unsigned(stride));
        if (lane >= stride) upto += left;
      }
      if (lane == block::warp_size - 1) sums[warp] = upto;
      __syncthreads();
      if (pass >= 0) {
#pragma unroll 1
        for (int w = warp / warps * warps; w < warp; ++w) upto += sums[w];
        *count = upto - own;
        const bool moves = own && own != static_cast<unsigned long long>(t.n) && (!divided || pass == a.passes - 1);
        if (moves) atomicOr(a.state.active, 1u << pass);
      }
      __syncthreads();
    }
  }
};

template <class Shape, class W, bool floating>
__global__ __launch_bounds__(Shape::threads) void histogram_kernel(const __grid_constant__ Histogram<W> a) {
  extern __shared__ char unaligned_tables[];
  __shared__ unsigned long long sums[Shape::threads / block::warp_size];
  char* const pool = unaligned_tables + (0u - shared_address(unaligned_tables)) % Shape::table_bytes;
  block::wait_for_launch_before();
  block::allow_next_launch();
  HistogramBlock<Shape, W, floating> block(a, pool, sums);
  const int64_t tiles = a.problems.tiles(), blocks = int64_t(gridDim.x);
  const int64_t end = tiles * (int64_t(blockIdx.x) + 1) / blocks;
  for (int64_t i = tiles * int64_t(blockIdx.x) / blocks; i < end;) {
    const Tile t = a.problems.find(i);
    const int64_t last =
        tp::min(end, t.first + a.problems.tiles_of(t));  // the end of this segment or of this block's share
    block.count(a.keys + t.begin, tp::min((last - i) * a.problems.tile_items, t.row_begin + t.n - t.begin),
                t.begin > t.row_begin);
    block.flush(t, unsigned(last - i));
    i = last;
  }
}

}  // namespace tp::sort::device
