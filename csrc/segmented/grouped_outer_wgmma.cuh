// Products x_s^T g_s of the rows of segments on the tensor cores of Hopper (block/wgmma.cuh), for half types with sums
// in float: the gradient of the weights.
//
// A block computes a tile of 128 rows by up to 256 columns of the matrix of one segment, for a chunk of the rows of the
// segment (row_tiles.cuh). One thread copies boxes of 64 rows of x and g through tensor maps; two warpgroups multiply
// 64 columns of x each. The last box may hold rows of the next segment, which are set to zero in shared memory. A
// segment that has one chunk is finished; the sums of others are added up by another kernel.
#pragma once
#include "segmented/grouped_product_wgmma.cuh"

namespace tp::segment_matmul {

template <class T>
struct Outer {
  CUtensorMap x, g;
  RowTiles<int> chunks;
  T* out;
  float* sums;  // [chunk_slots][inner][cols]
  int inner, cols, row_tiles, col_tiles, height;
};

// As many as fit in shared memory.
template <int halves>
constexpr int outer_stages = halves == 1 ? 6 : 4;

// The rows and the part of the matrix that a block computes.
struct Share {
  int begin, end, row, col;
};

// Sets the rows from `rows` on to zero in `boxes` boxes of 64 rows. All multiplying threads call it.
TP_DEVICE inline void clear_rows(unsigned char* stage, int boxes, int rows) {
  const int vectors = (64 - rows) * 8;
  for (int i = int(threadIdx.x); i < boxes * vectors; i += 2 * warpgroup) {
    reinterpret_cast<uint4*>(stage + i / vectors * box_bytes + rows * row_bytes)[i % vectors] = uint4{};
  }
  block::publish_shared();
  block::sync_warps(1, 8);
}

template <int halves, class T>
__global__ void __launch_bounds__(threads, 1) grouped_outer_wgmma(const __grid_constant__ Outer<T> work) {
#if TP_WGMMA
  constexpr int boxes = 2 + 2 * halves, stage_bytes = boxes * box_bytes;
  extern __shared__ __align__(1024) unsigned char pool[];
  __shared__ Barrier full[outer_stages<halves>], empty[outer_stages<halves>];
  if (threadIdx.x == 0) {
    for (Barrier& each : full) each.init(1);
    for (Barrier& each : empty) each.init(8);  // warps that multiply
    block::publish_barriers();
  }
  __syncthreads();
  block::wait_for_launch_before();
  // Find the share of this block.
  const int strip = int(blockIdx.x) / work.col_tiles, chunk = strip / work.row_tiles;
  if (chunk >= work.chunks.count()) return;
  const int segment = int(work.chunks.segment_of(chunk)), first_chunk = work.chunks.first_tiles[segment];
  const int begin = work.chunks.begins[segment] + (chunk - first_chunk) * work.height;
  const Share share{begin, min(begin + work.height, work.chunks.begins[segment + 1]),
                    (strip - chunk * work.row_tiles) * 128, (int(blockIdx.x) - strip * work.col_tiles) * halves * 128};
  const int group = __shfl_sync(~0u, int(threadIdx.x) / warpgroup, 0);
  block::Cursor cursor(outer_stages<halves>);
  if (group == 2) {
    // Start all copies: one lane. Boxes outside of the matrix are not copied; their sums are not stored.
    block::leave_registers<few_registers>();
    if (threadIdx.x >= 2 * warpgroup + 32 || !block::elect_lane()) return;
    const int left = min(2, ceil_div(work.inner - share.row, 64)),
              right = min(2 * halves, ceil_div(work.cols - share.col, 64));
    for (int row = share.begin; row < share.end; row += 64, cursor.next()) {
      const unsigned to = block::shared_address(pool) + unsigned(cursor.stage * stage_bytes);
      empty[cursor.stage].wait(cursor.parity ^ 1);
      block::arrive_expecting(full[cursor.stage], (left + right) * box_bytes);
      for (int box = 0; box < left; ++box) {
        block::copy_planes(work.x, 0, row, share.row + box * 64, to + unsigned(box * box_bytes), full[cursor.stage]);
      }
      for (int box = 0; box < right; ++box) {
        block::copy_planes(work.g, 0, row, share.col + box * 64, to + unsigned((2 + box) * box_bytes),
                           full[cursor.stage]);
      }
    }
    return;
  }
  // Multiply slab by slab.
  block::take_registers<registers>();
  const bool frees = threadIdx.x % 32 == 0;  // one thread of each warp
  float sum[halves][64];
  Barrier* used = nullptr;  // of the stage that running products read
#pragma unroll 1
  for (int row = share.begin; row < share.end; row += 64, cursor.next()) {
    unsigned char* const stage = pool + cursor.stage * stage_bytes;
    full[cursor.stage].wait(cursor.parity);
    if (share.end - row < 64) clear_rows(stage, boxes, share.end - row);
    const unsigned left = block::shared_address(stage) + unsigned(group * box_bytes),
                   right = block::shared_address(stage) + 2 * box_bytes;
    block::begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 16 rows at a time
#pragma unroll
      for (int half = 0; half < halves; ++half) {
        block::multiply_tiles<T, false, false>(
            sum[half], block::factor_at(left + unsigned(k * 16 * row_bytes), box_bytes),
            block::factor_at(right + unsigned(half * 2 * box_bytes + k * 16 * row_bytes), box_bytes),
            row > share.begin || k > 0);
      }
    }
    block::commit_products();
    block::wait_for_products<1>();
    if (frees && used) used->arrive();
    used = &empty[cursor.stage];
  }
  block::wait_for_products<0>();
  // Store the sums: rounded, if this is the only chunk of the segment.
  const bool is_only = work.chunks.first_tiles[segment + 1] == first_chunk + 1;
  const int64_t size = int64_t(work.inner) * work.cols;
  const int thread = int(threadIdx.x) % warpgroup, lane = thread % 32;
  const int row = share.row + group * 64 + thread / 32 * 16 + lane / 4, col = share.col + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (row + i * 8 >= work.inner) break;
    const int64_t line = int64_t(row + i * 8) * work.cols;
#pragma unroll
    for (int j = 0; j < halves * 16; ++j) {
      if (col + j * 8 >= work.cols) break;
      const float* const pair = sum[j / 16] + j % 16 * 4 + i * 2;
      if (is_only) {
        *reinterpret_cast<unsigned*>(work.out + segment * size + line + col + j * 8) =
            block::half_pair<T>(pair[0], pair[1]);
      } else {
        *reinterpret_cast<float2*>(work.sums + chunk_slot(share.begin, share.end, work.height) * size + line + col +
                                   j * 8) = float2{pair[0], pair[1]};
      }
    }
  }
#endif
}

template <int halves, class T>
void launch_outer(const Args& args, Context& context) {
  Outer<T> work{block::planes_map(static_cast<const T*>(args.x), 1, args.n, args.inner, 64),
                block::planes_map(static_cast<const T*>(args.other), 1, args.n, args.cols, 64)};
  work.out = static_cast<T*>(args.out);
  work.inner = int(args.inner), work.cols = int(args.cols);
  work.row_tiles = int(ceil_div(args.inner, int64_t(128)));
  work.col_tiles = int(ceil_div(args.cols, int64_t(halves * 128)));
  const int64_t tiles = int64_t(work.row_tiles) * work.col_tiles;
  work.height = chunk_height(args.n, tiles, 1);
  const int64_t blocks = most_tiles(args.segments, args.n, work.height) * tiles;
  require(blocks < int64_t(1) << 31, "grouped_gemm: too many tiles for a launch: ", blocks);
  work.chunks = row_tiles<int>(args.offsets, args.segments, args.n, work.height, context);
  work.sums = context.workspace<float>(chunk_slots(args.n, work.height) * args.inner * args.cols);
  constexpr int bytes = outer_stages<halves> * (2 + 2 * halves) * box_bytes;
  block::allow_shared_memory(grouped_outer_wgmma<halves, T>, bytes);
  block::launch_early(grouped_outer_wgmma<halves, T>, unsigned(blocks), threads, bytes, context, work);
  check_launch("grouped_gemm");
  add_chunks(work.chunks, work.height, work.sums, args.inner * args.cols, work.out, context);
}

}  // namespace tp::segment_matmul
