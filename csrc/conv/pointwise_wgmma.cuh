// fprop and dgrad by filters of one pixel, on the tensor cores of Hopper (pixel_runs.cuh):
//
//   target[maps, pixels] = filters[maps, depth] x source[depth, pixels], for each image
//
// A block computes a tile of maps for some of the runs. If the filters of the tile fit in shared memory together with
// enough stages of the source, they stay there; otherwise they are copied again with each stage. One warpgroup copies.
// Two multiply, and store their sums by way of shared memory, in two buffers each, so that one is filled while the
// other is being stored.
#pragma once
#include "conv/pixel_runs.cuh"

namespace tp::conv {

// The tile of a block: each multiplying warpgroup computes `blocks` blocks of 64 maps for two runs. The two warpgroups
// compute different maps if `stacked`, and different runs otherwise.
template <bool stacked_, int blocks_>
struct PointwiseTile {
  static constexpr bool stacked = stacked_;
  static constexpr int blocks = blocks_, runs_each = 2, columns = runs_each * run_pixels;
  static constexpr int map_boxes = stacked ? 2 * blocks : blocks, runs = stacked ? runs_each : 2 * runs_each;
  static constexpr int maps = map_boxes * 64, source_bytes = runs * run_box, filter_bytes = map_boxes * run_box;
  static constexpr int buffer_bytes = runs_each * run_box, buffers = 2 * 2;
};

template <class T>
struct Pointwise {
  PixelRuns runs;
  RunSource<T> source;
  CUtensorMap filters, target;  // `target` is valid if the runs have boxes
  T* to;
  const T* bias;
  int maps, map_blocks, slabs;  // a slab is 64 channels of the source
  bool resident;                // whether the filters stay in shared memory
  int stages, stage_bytes;
};

struct PointwiseBarriers {
  block::Barrier full[most_pointwise_stages], empty[most_pointwise_stages], filters;
};

// Calls f(run, count) for all tiles of this block: `count` consecutive runs. At any time, all blocks together work on
// neighbouring runs, which share pages of memory. After the last whole round, what is left is divided evenly.
template <class Tile, class T, class F>
TP_DEVICE void for_runs(const Pointwise<T>& work, const F& f) {
  const int block = int(blockIdx.x) / work.map_blocks, blocks = int(gridDim.x) / work.map_blocks;
  const int round = blocks * Tile::runs, last = work.runs.count / round * round, rest = work.runs.count - last;
  for (int run = block * Tile::runs;; run += round) {
    const bool whole = run < last;
    const int begin = whole ? run : last + int(int64_t(rest) * block / blocks),
              end = whole ? run + Tile::runs : last + int(int64_t(rest) * (block + 1) / blocks);
    if (begin < end) f(begin, end - begin);
    if (!whole) return;
  }
}

// Copies the filters of the tile for one slab. fprop reads them along the rows of the matrix of filters, dgrad across.
template <class T, class Tile, bool along>
TP_DEVICE void copy_filters(const Pointwise<T>& work, int map, int slab, unsigned to, block::Barrier& barrier) {
  if constexpr (along) {
    block::copy_matrix(work.filters, map, slab * 64, to, barrier);
  } else {
#pragma unroll
    for (int b = 0; b < Tile::map_boxes; ++b) {
      block::copy_matrix(work.filters, slab * 64, map + b * 64, to + unsigned(b * run_box), barrier);
    }
  }
}

// Starts all copies of a block: one thread, or all threads of the copying warpgroup if there are no boxes.
template <class T, class Tile, bool along>
TP_DEVICE void copy_sources(const Pointwise<T>& work, int map, unsigned filters, unsigned stages,
                            PointwiseBarriers& barriers) {
  const bool leads = threadIdx.x % block::warpgroup == 0, has_boxes = work.runs.has_boxes;
  if (has_boxes && !leads) return;
  if (work.resident && leads) {
    block::expect_bytes(barriers.filters, work.slabs * Tile::filter_bytes);
    for (int slab = 0; slab < work.slabs; ++slab) {
      copy_filters<T, Tile, along>(work, map, slab, filters + unsigned(slab * Tile::filter_bytes), barriers.filters);
    }
    barriers.filters.arrive();
  }
  block::Cursor cursor(work.stages);
  for_runs<Tile>(work, [&](int run, int count) {
    int64_t indices[Tile::runs];
    unsigned exist = 0;
    if (!has_boxes) {
#pragma unroll
      for (int r = 0; r < Tile::runs; ++r) {
        const RunVector at(work.runs, run + r);
        indices[r] = at.index(work.runs, work.source.channels, 0);
        exist |= unsigned(at.exists) << r;
      }
    }
    for (int slab = 0; slab < work.slabs; ++slab, cursor.next()) {
      block::Barrier& full = barriers.full[cursor.stage];
      const unsigned to = stages + unsigned(cursor.stage * work.stage_bytes);
      barriers.empty[cursor.stage].wait(cursor.parity ^ 1);
      if (leads) {
        block::expect_bytes(full, (has_boxes ? count * run_box : 0) + (work.resident ? 0 : Tile::filter_bytes));
        if (!work.resident) copy_filters<T, Tile, along>(work, map, slab, to + Tile::source_bytes, full);
      }
#pragma unroll
      for (int r = 0; r < Tile::runs; ++r) {
        if (r >= count) break;
        const unsigned box = to + unsigned(r * run_box);
        if (has_boxes) {
          copy_box(work.runs, work.source, run + r, slab * 64, box, full);
        } else {
          const bool exists = exist >> r & 1;
          copy_vectors(work.runs, work.source, exists, indices[r], slab * 64, 64, box);
          indices[r] += exists ? int64_t(64) * work.runs.pixels : 0;
        }
      }
      has_boxes ? full.arrive() : full.arrive_after_copies();
    }
  });
}

// Computes the sums of a warpgroup. The sums of runs that were not copied are meaningless, and are not stored.
template <class T, class Tile, bool along>
TP_DEVICE void multiply_runs(const Pointwise<T>& work, int group, unsigned filters, unsigned stages,
                             PointwiseBarriers& barriers, block::Cursor& cursor,
                             float (&sum)[Tile::blocks][Tile::columns / 2]) {
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  const unsigned left_at = unsigned(Tile::stacked ? group * Tile::blocks * run_box : 0),
                 right_at = unsigned(Tile::stacked ? 0 : group * Tile::buffer_bytes);
  block::Barrier* used = nullptr;  // of the stage that running products read
#pragma unroll 1
  for (int slab = 0; slab < work.slabs; ++slab, cursor.next()) {
    barriers.full[cursor.stage].wait(cursor.parity);
    fence_copies(work.runs);
    const unsigned stage = stages + unsigned(cursor.stage * work.stage_bytes), right = stage + right_at;
    const unsigned left =
        left_at + (work.resident ? filters + unsigned(slab * Tile::filter_bytes) : stage + Tile::source_bytes);
    block::begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 16 channels at a time
#pragma unroll
      for (int b = 0; b < Tile::blocks; ++b) {
        block::multiply_tiles<T, along, false>(
            sum[b], block::factor_at(left + unsigned(b * run_box + k * (along ? 32 : 16 * block::row_bytes))),
            block::factor_at(right + unsigned(k * 16 * block::row_bytes), run_box), slab > 0 || k > 0);
      }
    }
    block::commit_products();
    block::wait_for_products<1>();
    if (frees && used) used->arrive();
    used = &barriers.empty[cursor.stage];
  }
  block::wait_for_products<0>();
  if (frees) used->arrive();
}

// Writes the sums of a block of 64 maps, plus the bias, to a buffer, as one box for each run.
template <class T, int count>
TP_DEVICE void set_boxes(const Pointwise<T>& work, int map, unsigned char* buffer, const float (&sum)[count]) {
  const int thread = int(threadIdx.x) % block::warpgroup, lane = thread % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = thread / 32 * 16 + lane / 4 + i * 8;
    const float shift = work.bias && map + row < work.maps ? float(work.bias[map + row]) : 0.0f;
    unsigned char* const to = buffer + row * block::row_bytes + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
      *reinterpret_cast<unsigned*>(to + j / 8 * run_box + (j % 8 * 16 ^ row % 8 * 16)) =
          block::half_pair<T>(sum[j * 4 + i * 2] + shift, sum[j * 4 + i * 2 + 1] + shift);
    }
  }
}

// Stores the boxes of `count` runs. All threads of a warpgroup call it.
template <class T>
TP_DEVICE void store_boxes(const Pointwise<T>& work, int map, int run, int count, const unsigned char* boxes) {
  using V = block::Vector<T, 4>;
  if (map >= work.maps) return;
  for (int r = 0; r < count; ++r, boxes += run_box) {
    int number = run + r;
    if (work.runs.has_boxes) {
      const int image = work.runs.by_image.divide(number);
      if (threadIdx.x % block::warpgroup == 0) {
        block::store_planes(work.target, image, map, number * run_pixels, block::shared_address(boxes));
      }
      continue;
    }
    const RunVector at(work.runs, number);
    if (!at.exists) return;
    T* to = work.to + at.index(work.runs, work.maps, map);
#pragma unroll 4
    for (int i = 0; i < 8; ++i, to += int64_t(8) * work.runs.pixels) {
      if (map + at.row() + i * 8 >= work.maps) break;
      *reinterpret_cast<V*>(to) = *reinterpret_cast<const V*>(boxes + at.offset() + i * 8 * block::row_bytes);
    }
  }
}

template <class T, class Tile, bool along>
__global__ void __launch_bounds__(pointwise_threads, 1) pointwise_wgmma(const __grid_constant__ Pointwise<T> work) {
#if TP_WGMMA
  extern __shared__ __align__(1024) unsigned char pool[];
  __shared__ PointwiseBarriers barriers;
  if (threadIdx.x == 0) {
    init_stages(work.runs, barriers.full, barriers.empty, most_pointwise_stages);
    barriers.filters.init(1);
    block::publish_barriers();
  }
  __syncthreads();
  const int tile_map = int(blockIdx.x) % work.map_blocks * Tile::maps;
  const unsigned filters = block::shared_address(pool) + unsigned(Tile::buffers * Tile::buffer_bytes),
                 stages = filters + unsigned(work.resident ? work.slabs * Tile::filter_bytes : 0);
  if (threadIdx.x >= pointwise_warps * 32) {
    block::leave_registers<pointwise_few_registers>();
    return copy_sources<T, Tile, along>(work, tile_map, filters, stages, barriers);
  }
  // The multiplying warpgroups: compute a tile, then store it, 64 maps at a time.
  block::take_registers<pointwise_registers>();
  // The shuffle shows the compiler that all lanes of a warp have the same `group`.
  const int group = __shfl_sync(~0u, int(threadIdx.x) / block::warpgroup, 0);
  const bool stores = threadIdx.x % block::warpgroup == 0;
  const int first_map = tile_map + (Tile::stacked ? group * Tile::blocks * 64 : 0),
            first_run = Tile::stacked ? 0 : group * Tile::runs_each;
  if (work.resident) barriers.filters.wait(0);
  block::Cursor cursor(work.stages), buffer(2);
  for_runs<Tile>(work, [&](int run, int count) {
    float sum[Tile::blocks][Tile::columns / 2];
    multiply_runs<T, Tile, along>(work, group, filters, stages, barriers, cursor, sum);
#pragma unroll
    for (int b = 0; b < Tile::blocks; ++b, buffer.next()) {
      // Wait until the buffer has been stored, fill it again, and store it.
      unsigned char* const boxes = pool + (group * 2 + buffer.stage) * Tile::buffer_bytes;
      if (stores) block::wait_for_stores<1>();
      __syncwarp();
      block::sync_warps(1 + group, 4);
      set_boxes(work, first_map + b * 64, boxes, sum[b]);
      block::publish_shared();
      block::sync_warps(1 + group, 4);
      store_boxes(work, first_map + b * 64, run + first_run, min(count - first_run, Tile::runs_each), boxes);
      if (stores) block::commit_stores();
      __syncwarp();
    }
  });
  if (stores) block::wait_for_stores();
#endif
}

// ---- the host's part

// Whether the filters stay in shared memory: they must leave room for enough copies to be under way.
template <class Tile>
bool keeps_filters(int64_t depth) {
  constexpr int enough = 64 * 1024, room = pointwise_memory - Tile::buffers * Tile::buffer_bytes - enough;
  return ceil_div(depth, int64_t(block::row_elements)) <= room / Tile::filter_bytes;
}

template <class T, class Tile>
void launch_pointwise(const Gather<T>& g, Context& context) {
  const PixelRuns runs(g.n, g.rows.in * g.cols.in);
  const bool fprop = g.pass == Pass::fprop;
  Pointwise<T> work{runs,
                    RunSource<T>(runs, g.source, g.n, g.depth, 64),
                    fprop ? block::matrix_map(g.weight, g.maps, g.depth, g.depth, Tile::maps)
                          : block::matrix_map(g.weight, g.depth, g.maps, g.maps, 64),
                    runs.has_boxes ? block::planes_map(g.target, g.n, g.maps, runs.pixels, 64) : CUtensorMap{},
                    g.target,
                    g.bias};
  work.maps = int(g.maps);
  work.map_blocks = int(ceil_div(g.maps, int64_t(Tile::maps)));
  work.slabs = int(ceil_div(g.depth, int64_t(block::row_elements)));
  constexpr int room = pointwise_memory - Tile::buffers * Tile::buffer_bytes;
  work.resident = keeps_filters<Tile>(g.depth);
  const int kept = work.resident ? work.slabs * Tile::filter_bytes : 0;
  work.stage_bytes = Tile::source_bytes + (work.resident ? 0 : Tile::filter_bytes);
  work.stages = min((room - kept) / work.stage_bytes, most_pointwise_stages);
  static const int64_t multiprocessors = block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int blocks = max(1, min(int(multiprocessors) / work.map_blocks, runs.count)) * work.map_blocks;
  const int bytes = pointwise_memory - room + kept + work.stages * work.stage_bytes;
  const auto kernel = fprop ? pointwise_wgmma<T, Tile, true> : pointwise_wgmma<T, Tile, false>;
  block::allow_shared_memory(kernel, bytes);
  kernel<<<unsigned(blocks), pointwise_threads, bytes, cudaStream_t(context.stream)>>>(work);
  check_launch("implicit_gemm");
}

}  // namespace tp::conv
