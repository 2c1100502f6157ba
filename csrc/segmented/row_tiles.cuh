// How a product of segments divides the rows into tiles: every segment is divided by itself, into tiles of equal
// height, of which the last may be lower. The offsets stay on the device, so that the host does not wait for them.
#pragma once
#include "block/launch.cuh"
#include "block/warp.cuh"
#include "core/op.h"
#include "core/partition_point.h"

namespace tp::segment_matmul {

// Segment s has the rows from begins[s] up to begins[s + 1], and its first tile is first_tiles[s].
template <class I>
struct RowTiles {
  I *begins, *first_tiles;  // [segments + 1]
  int64_t segments;

  TP_DEVICE I count() const { return first_tiles[segments]; }
  // The segment that a tile belongs to.
  TP_DEVICE int64_t segment_of(I tile) const {
    return partition_point(int64_t(0), segments, [&](int64_t s) { return first_tiles[s + 1] <= tile; });
  }
};

// Combines the values of all threads of a block up to and including this one.
template <class M>
TP_DEVICE typename M::Acc scan_block(typename M::Acc value, typename M::Acc (&pool)[block::warp_size]) {
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  value = block::inclusive_scan<M>(value);
  if (lane == block::warp_size - 1) pool[warp] = value;
  __syncthreads();
  if (warp == 0) pool[lane] = block::inclusive_scan<M>(pool[lane]);
  __syncthreads();
  if (warp > 0) value = M::combine(pool[warp - 1], value);
  __syncthreads();
  return value;
}

// One block makes the offsets valid (in 0..n and not decreasing) and numbers the tiles, one segment per thread at a
// time.
template <int threads, class I>
TP_DEVICE void number_tiles(const int64_t* offsets, int64_t n, int height, const RowTiles<I>& tiles) {
  __shared__ I pool[block::warp_size], begins[threads + 1], last_tile;
  const int thread = int(threadIdx.x);
  if (thread == 0) begins[threads] = I(max(int64_t(0), min(offsets[0], n))), last_tile = 0;
  if (thread < block::warp_size) pool[thread] = 0;
  for (int64_t first = 0; first <= tiles.segments; first += threads) {
    const int64_t s = first + thread;
    I begin = s <= tiles.segments ? I(max(int64_t(0), min(offsets[s], n))) : 0;
    __syncthreads();
    const I tiles_before = last_tile;
    if (thread == 0) begins[0] = begins[threads];
    begin = scan_block<Max<I>>(begin, pool);
    begin = max(begins[0], begin);
    begins[thread + 1] = begin;
    __syncthreads();
    const I tile = tiles_before + scan_block<Sum<I>>(ceil_div(begin - begins[thread], I(height)), pool);
    if (s <= tiles.segments) {
      tiles.begins[s] = begin;
      tiles.first_tiles[s] = tile;
    }
    if (thread == threads - 1) last_tile = tile;
  }
  __syncthreads();
}

constexpr int number_threads = 1024;

template <class I>
__global__ void __launch_bounds__(number_threads)
    number_tiles_at_once(const int64_t* offsets, int64_t n, int height, const RowTiles<I> tiles) {
  block::allow_next_launch();
  number_tiles<number_threads>(offsets, n, height, tiles);
}

// Starts the kernel that finds the tiles. A kernel that reads them may be launched early.
template <class I>
RowTiles<I> row_tiles(const int64_t* offsets, int64_t segments, int64_t n, int height, Context& context) {
  const RowTiles<I> tiles{context.workspace<I>(segments + 1), context.workspace<I>(segments + 1), segments};
  number_tiles_at_once<I><<<1, number_threads, 0, cudaStream_t(context.stream)>>>(offsets, n, height, tiles);
  check_launch("grouped_gemm");
  return tiles;
}

// No product has more tiles. At least one, because a launch has blocks.
inline int64_t most_tiles(int64_t segments, int64_t n, int64_t height) {
  return max(int64_t(1), n / height + segments);
}

// Sets the rows that are in no segment to 0, in units V: thread `thread` of `threads` its share of them.
template <class V, class I>
TP_DEVICE void clear_rows_outside(const RowTiles<I>& tiles, int64_t n, int64_t row_units, V* out, int64_t thread,
                                  int64_t threads) {
  const int64_t before = tiles.begins[0] * row_units, after = tiles.begins[tiles.segments] * row_units;
  for (int64_t i = thread; i < before; i += threads) out[i] = V{};
  for (int64_t i = after + thread; i < n * row_units; i += threads) out[i] = V{};
}

// The rows of a chunk of an outer product whose matrices have `tiles` tiles: about as many chunks as blocks that run at
// the same time, `residents` of them on each multiprocessor, but segments a little longer than the average stay whole.
inline int chunk_height(int64_t n, int64_t tiles, int residents) {
  const int64_t blocks = block::device_attribute<cudaDevAttrMultiProcessorCount>() * residents;
  const int64_t rows = max(int64_t(512), min(n, int64_t(double(n) * double(tiles) * 1.25 / double(blocks))));
  return int(min(ceil_div(rows, int64_t(64)) * 64, int64_t(1) << 30));
}

// Where the sums of a chunk of rows begin..end are stored, as a multiple of the size of a matrix. Whole chunks do not
// overlap, so their beginnings differ by `height` or more; so do those of the rests of segments, because there is a
// whole chunk between two of them.
template <class I>
TP_HD I chunk_slot(I begin, I end, int height) {
  return begin / I(height) * 2 + (end - begin < I(height) ? 1 : 0);
}
inline int64_t chunk_slots(int64_t n, int64_t height) { return (n / height + 1) * 2; }

// Adds up the chunks of segments that have several, and sets the matrices of empty segments to 0. A block takes some
// elements of the matrices of every gridDim.y-th segment.
constexpr int add_threads = 256;

template <class I, class A, class T>
__global__ void __launch_bounds__(add_threads)
    add_chunks_kernel(const RowTiles<I> chunks, int height, const A* sums, int64_t size, T* out) {
  block::wait_for_launch_before();
  const int64_t first = int64_t(blockIdx.x) * add_threads + threadIdx.x, step = int64_t(gridDim.x) * add_threads;
  for (int64_t s = blockIdx.y; s < chunks.segments; s += gridDim.y) {
    if (chunks.first_tiles[s + 1] == chunks.first_tiles[s] + 1) continue;
    const I begin = chunks.begins[s], end = chunks.begins[s + 1];
    for (int64_t i = first; i < size; i += step) {
      A sum(0);
#pragma unroll 8
      for (I row = begin; row < end; row += height) {
        sum += sums[chunk_slot(row, min(row + I(height), end), height) * size + i];
      }
      out[s * size + i] = T(sum);
    }
  }
}

template <class I, class A, class T>
void add_chunks(const RowTiles<I>& chunks, int height, const A* sums, int64_t size, T* out, Context& context) {
  const dim3 blocks(unsigned(min(ceil_div(size, int64_t(add_threads * 4)), int64_t(64))),
                    unsigned(min(max(chunks.segments, int64_t(1)), int64_t(128))));
  block::launch_early(add_chunks_kernel<I, A, T>, blocks, add_threads, 0, context, chunks, height, sums, size, out);
  check_launch("grouped_gemm");
}

}  // namespace tp::segment_matmul
