// wgrad by filters of one pixel, on the tensor cores of Hopper (pixel_runs.cuh):
//
//   dw[maps, channels] = dy[maps, pixels] x x^T[pixels, channels], summed over the images
//
// A block computes a tile of dw for one slice of the runs; a second kernel adds up the slices in a fixed order. Slice s
// has runs s, s + slices, ..., and begins with the last one: usually dgrad has just read dy in ascending order, so the
// last images are still in the L2 cache.
#pragma once
#include "block/launch.cuh"
#include "block/slices.h"
#include "conv/pixel_runs.cuh"

namespace tp::conv {

// The tile of a block: each multiplying warpgroup computes `blocks` blocks of 64 maps by `columns` channels. The two
// warpgroups compute different maps if `stacked`, and different channels otherwise.
template <bool stacked_, int blocks_, int columns_>
struct PointwiseGradTile {
  static constexpr bool stacked = stacked_;
  static constexpr int blocks = blocks_, columns = columns_;
  static constexpr int maps = 64 * (stacked ? 2 * blocks : blocks), channels = stacked ? columns : 2 * columns;
  static constexpr int dy_bytes = maps * block::row_bytes, stage_bytes = dy_bytes + channels * block::row_bytes;
  static constexpr int stages = min(pointwise_memory / stage_bytes, most_pointwise_stages);
};

template <class T>
struct PointwiseGrad {
  PixelRuns runs;
  RunSource<T> dy, x;
  int dy_rows, x_rows;  // that are copied per run
  int maps, channels, map_blocks, channel_blocks, slices;
  float* sums;  // [slices][maps][channels]
};

// The share of a block: one tile of dw for one slice of the runs.
struct PointwiseGradShare {
  int map, channel, slice, runs;

  template <class T, class Tile>
  TP_DEVICE static PointwiseGradShare of(const PointwiseGrad<T>& work) {
    int64_t channel = blockIdx.x, map = divide(channel, work.channel_blocks), slice = divide(map, work.map_blocks);
    return {int(map) * Tile::maps, int(channel) * Tile::channels, int(slice),
            ceil_div(work.runs.count - int(slice), work.slices)};
  }
};

// Starts all copies of a block: one thread, or all threads of the copying warpgroup if there are no boxes.
template <class T, class Tile>
TP_DEVICE void copy_factors(const PointwiseGrad<T>& work, const PointwiseGradShare& share, unsigned stages,
                            block::Barrier* full, block::Barrier* empty) {
  const bool has_boxes = work.runs.has_boxes;
  if (has_boxes && threadIdx.x % block::warpgroup > 0) return;
  block::Cursor cursor(Tile::stages);
  for (int i = share.runs - 1; i >= 0; --i, cursor.next()) {
    const int run = share.slice + i * work.slices;
    const unsigned to = stages + unsigned(cursor.stage * Tile::stage_bytes);
    block::Barrier& barrier = full[cursor.stage];
    empty[cursor.stage].wait(cursor.parity ^ 1);
    if (has_boxes) {
      block::expect_bytes(barrier, (work.dy_rows + work.x_rows) * block::row_bytes);
      copy_box(work.runs, work.dy, run, share.map, to, barrier);
      copy_box(work.runs, work.x, run, share.channel, to + Tile::dy_bytes, barrier);
      barrier.arrive();
    } else {
      const RunVector at(work.runs, run);
      copy_vectors(work.runs, work.dy, at.exists, at.index(work.runs, work.maps, share.map), share.map, work.dy_rows,
                   to);
      copy_vectors(work.runs, work.x, at.exists, at.index(work.runs, work.channels, share.channel), share.channel,
                   work.x_rows, to + Tile::dy_bytes);
      barrier.arrive_after_copies();
    }
  }
}

// Computes the sums of a warpgroup. Sums of rows that were not copied are meaningless, and are not stored.
template <class T, class Tile>
TP_DEVICE void multiply_factors(const PixelRuns& runs, int count, int group, unsigned stages, block::Barrier* full,
                                block::Barrier* empty, float (&sum)[Tile::blocks][Tile::columns / 2]) {
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  const unsigned left_at = unsigned(Tile::stacked ? group * Tile::blocks * run_box : 0),
                 right_at = unsigned(Tile::dy_bytes + (Tile::stacked ? 0 : group * Tile::columns * block::row_bytes));
  block::Cursor cursor(Tile::stages);
  block::Barrier* used = nullptr;  // of the stage that running products read
#pragma unroll 1
  for (int i = 0; i < count; ++i, cursor.next()) {
    full[cursor.stage].wait(cursor.parity);
    fence_copies(runs);
    const unsigned stage = stages + unsigned(cursor.stage * Tile::stage_bytes);
    block::begin_products();
#pragma unroll
    for (int k = 0; k < block::row_bytes; k += 32) {  // 16 pixels at a time
#pragma unroll
      for (int b = 0; b < Tile::blocks; ++b) {
        block::multiply_tiles<T, true, true>(sum[b], block::factor_at(stage + left_at + unsigned(b * run_box + k)),
                                             block::factor_at(stage + right_at + unsigned(k)), i > 0 || k > 0);
      }
    }
    block::commit_products();
    block::wait_for_products<1>();
    if (frees && used) used->arrive();
    used = &empty[cursor.stage];
  }
  block::wait_for_products<0>();
}

template <class T, class Tile>
__global__ void __launch_bounds__(pointwise_threads, 1)
    pointwise_wgrad_wgmma(const __grid_constant__ PointwiseGrad<T> work) {
#if TP_WGMMA
  extern __shared__ __align__(1024) unsigned char pool[];
  __shared__ block::Barrier full[Tile::stages], empty[Tile::stages];
  if (threadIdx.x == 0) {
    init_stages(work.runs, full, empty, Tile::stages);
    block::publish_barriers();
  }
  __syncthreads();
  const PointwiseGradShare share = PointwiseGradShare::of<T, Tile>(work);
  const unsigned stages = block::shared_address(pool);
  if (threadIdx.x >= pointwise_warps * 32) {
    block::leave_registers<pointwise_few_registers>();
    return copy_factors<T, Tile>(work, share, stages, full, empty);
  }
  // The multiplying warpgroups: compute the sums, then store them to the slice.
  block::take_registers<pointwise_registers>();
  // The shuffle shows the compiler that all lanes of a warp have the same `group`.
  const int group = __shfl_sync(~0u, int(threadIdx.x) / block::warpgroup, 0);
  float sum[Tile::blocks][Tile::columns / 2];
  multiply_factors<T, Tile>(work.runs, share.runs, group, stages, full, empty, sum);
  block::allow_next_launch();
  const int thread = int(threadIdx.x) % block::warpgroup, lane = thread % 32;
  const int first_map = share.map + (Tile::stacked ? group * Tile::blocks * 64 : 0) + thread / 32 * 16 + lane / 4,
            first_channel = share.channel + (Tile::stacked ? 0 : group * Tile::columns) + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Tile::blocks * 2; ++i) {
    const int map = first_map + i / 2 * 64 + i % 2 * 8;
    if (map >= work.maps) continue;
    float* const row = work.sums + (int64_t(share.slice) * work.maps + map) * work.channels;
#pragma unroll
    for (int j = 0; j < Tile::columns / 8; ++j) {
      const int channel = first_channel + j * 8;
      if (channel >= work.channels) continue;
      *reinterpret_cast<float2*>(row + channel) = {sum[i / 2][j * 4 + i % 2 * 2], sum[i / 2][j * 4 + i % 2 * 2 + 1]};
    }
  }
#endif
}

// ---- the host's part

template <class T, class Tile>
void launch_pointwise_wgrad(const Elements<T>& e, Context& context) {
  const PixelRuns runs(e.n, e.rows.in * e.cols.in);
  const int64_t dy_rows = min(ceil_div(e.maps, int64_t(8)) * 8, int64_t(Tile::maps)),
                x_rows = min(e.channels, int64_t(Tile::channels));
  PointwiseGrad<T> work{runs, RunSource<T>(runs, e.y, e.n, e.maps, dy_rows),
                        RunSource<T>(runs, e.x, e.n, e.channels, x_rows), int(dy_rows), int(x_rows)};
  work.maps = int(e.maps);
  work.channels = int(e.channels);
  work.map_blocks = int(ceil_div(e.maps, int64_t(Tile::maps)));
  work.channel_blocks = int(ceil_div(e.channels, int64_t(Tile::channels)));
  // As many slices as keep all multiprocessors busy, but at least 4 runs per slice.
  static const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int tiles = work.map_blocks * work.channel_blocks;
  work.slices = max(1, min(int(multiprocessors) / tiles, runs.count / 4));
  work.sums = context.workspace<float>(work.slices * e.weights());
  constexpr int bytes = Tile::stages * Tile::stage_bytes;
  block::allow_shared_memory(pointwise_wgrad_wgmma<T, Tile>, bytes);
  pointwise_wgrad_wgmma<T, Tile>
      <<<unsigned(work.slices * tiles), pointwise_threads, bytes, cudaStream_t(context.stream)>>>(work);
  check_launch("implicit_gemm");
  block::sum_slices(work.sums, work.slices, e.weights(), e.weight, context);
}

}  // namespace tp::conv
