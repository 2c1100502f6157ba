// Products of segments on the tensor cores of Hopper (block/wgmma.cuh), for half types with sums in float.
//
// A block computes tiles of 128 rows, of one segment each, by up to 256 columns. One thread finds the tiles, and copies
// boxes of 64 columns of x and of 64 rows of the weights through tensor maps. Two warpgroups multiply 64 rows each, and
// store their sums by way of shared memory, 64 columns at a time, in two buffers each: one is filled while the other is
// being stored. If the weights of a segment fit in shared memory and the segments are long, they stay there for all
// tiles of the segment; otherwise they are copied again with each stage.
#pragma once
#include "block/tensor_map.cuh"
#include "segmented/row_tiles.cuh"

namespace tp::segment_matmul {

using block::Barrier;
using block::row_bytes;
using block::row_elements;
using block::warpgroup;

constexpr int threads = 3 * warpgroup, most_stages = 8, most_kept = 8, band_tiles = 8;
constexpr int tile_rows = 128, x_bytes = tile_rows * row_bytes;
constexpr int box_bytes = 64 * row_bytes, buffer_bytes = 4 * box_bytes;
// Registers of a multiplying and of a copying thread, and the dynamic shared memory of a block.
constexpr int registers = 232, few_registers = 40, memory = 224 * 1024;
// Weights stay in shared memory if a segment has at least so many rows on average.
constexpr int64_t long_segment = 128;
// The tiles of more segments than this are numbered by a kernel before.
constexpr int few_segments = 64;

template <class T>
struct Products {
  CUtensorMap x, weights, out;
  RowTiles<int> tiles;
  const int64_t* offsets;  // null if the tiles are numbered before
  T* to;
  int64_t n;
  int cols, col_tiles, slabs;  // a slab is 64 elements of the inner dimension
  bool keeps_weights, interleaved;
  int stages, stage_bytes;
};

// What the multiplying warpgroups know of a tile, from its first stage. After the last tile there is one without rows.
struct Tile {
  int row, col, rows;
  unsigned parity;  // of the weights that stay
};

struct Shared {
  Barrier full[most_stages], empty[most_stages], kept[most_kept];  // kept: the slabs of the weights that stay
  Tile tiles[most_stages];
};

// The tiles of a block, one after another. If they are interleaved, it is every gridDim.x-th tile: at any time, all
// blocks work on neighbouring tiles, on some rows in bands of eight tiles of columns, whose factors are in the L2
// cache. Otherwise they are consecutive and may share weights, and every block but the last ones has the same number,
// so that segments of equal length are divided where others begin; then moving to the next tile divides nothing,
// because one thread starts all copies of the block.
template <int halves, class T>
class TileWalk {
 public:
  int segment, row, col;

  TP_DEVICE TileWalk(const Products<T>& work, const RowTiles<int>& tiles) : work_(work), tiles_(tiles) {
    const int64_t count = int64_t(tiles.count()) * work.col_tiles;
    const int64_t share = ceil_div(count, int64_t(gridDim.x));
    number_ = work.interleaved ? blockIdx.x : share * blockIdx.x;
    end_ = work.interleaved ? count : min(count, number_ + share);
    if (is_over()) return;
    enter(int(tiles.segment_of(int(number_ / work.col_tiles))));
    find();
  }
  TP_DEVICE bool is_over() const { return number_ >= end_; }
  TP_DEVICE int rows() const { return min(tile_rows, last_row_ - row); }
  // Whether the next tile has other weights, if it is consecutive.
  TP_DEVICE bool is_last() const { return row + tile_rows >= last_row_; }

  TP_DEVICE void next() {
    number_ += work_.interleaved ? gridDim.x : 1;
    if (is_over()) return;
    if (work_.interleaved) {
      while (int64_t(tiles_.first_tiles[segment + 1]) * work_.col_tiles <= number_) enter(segment + 1);
      return find();
    }
    row += tile_rows;
    if (row < last_row_) return;
    row = first_row_, col += halves * 128;
    if (col < work_.cols) return;
    do {
      enter(segment + 1);
    } while (first_row_ == last_row_);
    row = first_row_, col = 0;
  }

 private:
  TP_DEVICE void enter(int to) { segment = to, first_row_ = tiles_.begins[to], last_row_ = tiles_.begins[to + 1]; }
  // The row and the column of the tile within the segment.
  TP_DEVICE void find() {
    const int first = tiles_.first_tiles[segment], down = tiles_.first_tiles[segment + 1] - first,
              most = work_.interleaved ? band_tiles : 1;
    const int number = int(number_ - int64_t(first) * work_.col_tiles), band = number / (down * most),
              in_band = number - band * down * most, width = min(most, work_.col_tiles - band * most);
    row = first_row_ + in_band / width * tile_rows;
    col = (band * most + in_band % width) * halves * 128;
  }

  const Products<T>& work_;
  const RowTiles<int>& tiles_;
  int64_t number_, end_;      // of this tile, and of the first one that is not of this block
  int first_row_, last_row_;  // of the segment
};

// Copies a slab of the weights of a tile, as boxes of 64 columns.
template <int halves, class T>
TP_DEVICE void copy_weights(const Products<T>& work, const TileWalk<halves, T>& tile, int slab, unsigned to,
                            Barrier& barrier) {
#pragma unroll
  for (int box = 0; box < 2 * halves; ++box) {
    block::copy_planes(work.weights, tile.segment, slab * row_elements, tile.col + box * 64,
                       to + unsigned(box * box_bytes), barrier);
  }
}

// Starts all copies of a block. One lane calls it.
template <int halves, class T>
TP_DEVICE void copy_factors(const Products<T>& work, const RowTiles<int>& tiles, unsigned kept, unsigned stages,
                            Shared& shared) {
  constexpr int weight_bytes = 2 * halves * box_bytes;
  const int lag = min(work.slabs, work.stages);
  block::Cursor cursor(work.stages);
  bool is_new = true;   // whether the tile has other weights than the one before
  unsigned parity = 1;  // of the weights that stay
  for (TileWalk<halves, T> tile(work, tiles); !tile.is_over(); tile.next()) {
    if (is_new) parity ^= 1;
    for (int slab = 0; slab < work.slabs; ++slab, cursor.next()) {
      const unsigned to = stages + unsigned(cursor.stage * work.stage_bytes);
      Barrier& full = shared.full[cursor.stage];
      shared.empty[cursor.stage].wait(cursor.parity ^ 1);
      if (slab == 0) shared.tiles[cursor.stage] = {tile.row, tile.col, tile.rows(), parity};
      block::arrive_expecting(full, work.stage_bytes);
      block::copy_planes(work.x, 0, tile.row, slab * row_elements, to, full);
      if (!work.keeps_weights) copy_weights(work, tile, slab, to + x_bytes, full);
      if (!work.keeps_weights || !is_new) continue;
      // Earlier weights of the slab are read together with a stage, at the latest `lag` stages ago.
      const bool wraps = cursor.stage < lag;
      shared.empty[cursor.stage - lag + (wraps ? work.stages : 0)].wait(cursor.parity ^ unsigned(wraps));
      block::arrive_expecting(shared.kept[slab], weight_bytes);
      copy_weights(work, tile, slab, kept + unsigned(slab * weight_bytes), shared.kept[slab]);
    }
    is_new = tile.is_last();
  }
  shared.empty[cursor.stage].wait(cursor.parity ^ 1);
  shared.tiles[cursor.stage] = {};
  shared.full[cursor.stage].arrive();
}

// Computes the sums of a warpgroup: 64 rows of a tile.
template <int halves, class T>
TP_DEVICE void multiply(const Products<T>& work, int group, unsigned kept, unsigned parity, unsigned stages,
                        Shared& shared, block::Cursor& cursor, float (&sum)[halves][64]) {
  constexpr int weight_bytes = 2 * halves * box_bytes;
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  Barrier* used = nullptr;                   // of the stage that running products read
#pragma unroll 1
  for (int slab = 0; slab < work.slabs; ++slab, cursor.next()) {
    if (work.keeps_weights) shared.kept[slab].wait(parity);
    shared.full[cursor.stage].wait(cursor.parity);
    const unsigned at = stages + unsigned(cursor.stage * work.stage_bytes), left = at + unsigned(group * box_bytes),
                   right = work.keeps_weights ? kept + unsigned(slab * weight_bytes) : at + x_bytes;
    block::begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 16 elements of the inner dimension at a time
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        block::multiply_tiles<T, true, false>(
            sum[half], block::factor_at(left + unsigned(k * 32)),
            block::factor_at(right + unsigned(half * 2 * box_bytes + k * 16 * row_bytes), box_bytes),
            slab > 0 || k > 0);
      }
    }
    block::commit_products();
    block::wait_for_products<1>();
    if (frees && used) used->arrive();
    used = &shared.empty[cursor.stage];
  }
  block::wait_for_products<0>();
  if (frees) used->arrive();
}

// Writes 64 columns of the sums of a warpgroup to a buffer, from the `first` of eight columns on.
template <class T>
TP_DEVICE void set_box(unsigned char* box, const float (&sum)[64], int first) {
  const int thread = int(threadIdx.x) % warpgroup, lane = thread % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = thread / 32 * 16 + lane / 4 + i * 8;
    unsigned char* const to = box + row * row_bytes + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float* const pair = sum + (first + j) * 4 + i * 2;
      *reinterpret_cast<unsigned*>(to + (j * 16 ^ row % 8 * 16)) = block::half_pair<T>(pair[0], pair[1]);
    }
  }
}

// Stores a box whose first element is (row, col). A box of fewer than 64 rows is stored by the threads of a warpgroup,
// because the rows below it belong to another segment.
template <class T>
TP_DEVICE void store_box(const Products<T>& work, int row, int col, int rows, const unsigned char* box) {
  if (rows >= 64) {
    if (threadIdx.x % warpgroup == 0) block::store_planes(work.out, 0, row, col, block::shared_address(box));
    return;
  }
  const int vector = int(threadIdx.x) % 8;
  for (int i = int(threadIdx.x) % warpgroup / 8; i < rows; i += warpgroup / 8) {
    if (col + vector * 8 >= work.cols) break;
    *reinterpret_cast<uint4*>(work.to + int64_t(row + i) * work.cols + col + vector * 8) =
        *reinterpret_cast<const uint4*>(box + i * row_bytes + (vector ^ i % 8) * 16);
  }
}

// Multiplies and stores the tiles of a warpgroup, `group`.
template <int halves, class T>
TP_DEVICE void multiply_tiles(const Products<T>& work, int group, unsigned char* buffers, unsigned kept,
                              unsigned stages, Shared& shared) {
  const bool stores = threadIdx.x % warpgroup == 0;
  block::Cursor cursor(work.stages), buffer(2);
  for (;;) {
    shared.full[cursor.stage].wait(cursor.parity);
    const Tile tile = shared.tiles[cursor.stage];
    if (tile.rows == 0) break;
    float sum[halves][64];
    multiply<halves>(work, group, kept, tile.parity, stages, shared, cursor, sum);
#pragma unroll
    for (int box = 0; box < 2 * halves; ++box, buffer.next()) {
      if (tile.col + box * 64 >= work.cols) break;
      // Wait until the buffer has been stored, fill it again, and store it.
      unsigned char* const to = buffers + (group * 2 + buffer.stage) * box_bytes;
      if (stores) block::wait_for_stores<1>();
      __syncwarp();
      block::sync_warps(1 + group, 4);
      set_box<T>(to, sum[box / 2], box % 2 * 8);
      block::publish_shared();
      block::sync_warps(1 + group, 4);
      store_box(work, tile.row + group * 64, tile.col + box * 64, tile.rows - group * 64, to);
      if (stores) block::commit_stores();
      __syncwarp();
    }
  }
  if (stores) block::wait_for_stores();
}

template <int halves, class T>
__global__ void __launch_bounds__(threads, 1) grouped_wgmma(const __grid_constant__ Products<T> work) {
#if TP_WGMMA
  extern __shared__ __align__(1024) unsigned char pool[];
  __shared__ Shared shared;
  __shared__ int few_tiles[2][few_segments + 1];
  if (threadIdx.x == 0) {
    for (Barrier& full : shared.full) full.init(1);
    for (Barrier& empty : shared.empty) empty.init(8);  // warps that multiply
    for (Barrier& kept : shared.kept) kept.init(1);
    block::publish_barriers();
  }
  __syncthreads();
  block::wait_for_launch_before();
  // The tiles of a few segments are numbered by every block, which takes less time than a launch.
  RowTiles<int> tiles = work.tiles;
  if (work.offsets) {
    tiles.begins = few_tiles[0];
    tiles.first_tiles = few_tiles[1];
    number_tiles<threads>(work.offsets, work.n, tile_rows, tiles);
  }
  const unsigned kept = block::shared_address(pool) + unsigned(buffer_bytes),
                 stages = kept + unsigned(work.keeps_weights ? work.slabs * 2 * halves * box_bytes : 0);
  // The shuffle shows the compiler that all lanes of a warp have the same `group`.
  const int group = __shfl_sync(~0u, int(threadIdx.x) / warpgroup, 0);
  if (group < 2) {
    block::take_registers<registers>();
    multiply_tiles<halves>(work, group, pool, kept, stages, shared);
  } else {
    // One warp copies, the others clear what no product writes.
    block::leave_registers<few_registers>();
    const int thread = int(threadIdx.x) % warpgroup - 32, others = warpgroup - 32;
    if (thread < 0 && block::elect_lane()) copy_factors<halves>(work, tiles, kept, stages, shared);
    if (thread >= 0) {
      clear_rows_outside(tiles, work.n, work.cols / 8, reinterpret_cast<uint4*>(work.to), blockIdx.x * others + thread,
                         gridDim.x * others);
    }
  }
#endif
}

template <int halves, class T>
void launch_product(const Args& args, Context& context) {
  constexpr int weight_bytes = 2 * halves * box_bytes, room = memory - buffer_bytes;
  const auto *x = static_cast<const T*>(args.x), *weights = static_cast<const T*>(args.other);
  auto* out = static_cast<T*>(args.out);
  const int slabs = int(ceil_div(args.inner, int64_t(row_elements)));
  const int64_t kept = slabs * int64_t(weight_bytes);
  const bool is_long = args.n >= args.segments * long_segment;
  const bool keeps = is_long && slabs <= most_kept && kept + 4 * x_bytes <= room;
  Products<T> work{block::planes_map(x, 1, args.n, args.inner, tile_rows),
                   block::planes_map(weights, args.segments, args.inner, args.cols, row_elements),
                   block::planes_map(out, 1, args.n, args.cols, 64)};
  work.tiles.segments = args.segments;
  if (args.segments <= few_segments) {
    work.offsets = args.offsets;
  } else {
    work.tiles = row_tiles<int>(args.offsets, args.segments, args.n, tile_rows, context);
  }
  work.to = out;
  work.n = args.n;
  work.cols = int(args.cols);
  work.col_tiles = int(ceil_div(args.cols, int64_t(halves * 128)));
  work.slabs = slabs;
  work.keeps_weights = keeps;
  work.interleaved = !keeps && is_long;
  work.stage_bytes = x_bytes + (keeps ? 0 : weight_bytes);
  work.stages = min((room - (keeps ? int(kept) : 0)) / work.stage_bytes, most_stages);
  const auto kernel = grouped_wgmma<halves, T>;
  block::allow_shared_memory(kernel, memory);
  const int64_t tiles = most_tiles(args.segments, args.n, tile_rows) * work.col_tiles;
  const int64_t blocks = min(int64_t(block::device_attribute<cudaDevAttrMultiProcessorCount>()), tiles);
  if (work.offsets) {
    kernel<<<unsigned(blocks), threads, memory, cudaStream_t(context.stream)>>>(work);
  } else {
    block::launch_early(kernel, unsigned(blocks), threads, memory, context, work);
  }
  check_launch("grouped_gemm");
}

}  // namespace tp::segment_matmul
