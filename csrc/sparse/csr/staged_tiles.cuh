// merge_path for one column through a plan in stages, which reads and writes memory in order but for short runs.
// Entries are cut into tiles in the order of storage, and into bins in the order of the plan.
//   1. A block multiplies the entries of a tile into shared memory and writes the products in the order of their bins.
//   2. A block collects the products of a bin, which of each tile lie together, in shared memory; there it goes through
//      them in the order of the plan and sums the rows.
// Rows that reach over several bins are completed like those of other tiles (sparse/csr/shares.cuh).
#pragma once
#include <cuda_pipeline.h>

#include "sparse/csr/shares.cuh"

namespace tp::sparse {

// Whatever they hold, their use is bounded.
struct Stages {
  const uint16_t *local, *source;  // entry i of the plan is item local[i] of its bin; product i between the stages is
  const uint32_t* place;           // of item source[i] of its tile; item i of all bins is product place[i]

  explicit Stages(const Args& a)
      : local(static_cast<const uint16_t*>(a.stages)),
        source(local + a.entries),
        place(reinterpret_cast<const uint32_t*>(source + a.entries)) {}
};

template <class Acc>
struct StageShape {
  static constexpr int items = 1 << 14, threads = 1024, places = items / threads;
  static constexpr int bytes = items * int(sizeof(Acc)), blocks = sizeof(Acc) <= 4 ? 2 : 1;
};

template <class M>
__global__ __launch_bounds__(StageShape<typename M::Acc>::threads,
                             StageShape<typename M::Acc>::blocks) void sort_products(const M matrix,
                                                                                     const Stages stages,
                                                                                     typename M::Acc* sorted) {
  using Acc = typename M::Acc;
  using T = typename M::T;
  using I = typename M::I;
  using Shape = StageShape<Acc>;
  constexpr int bunch = 8, step = bunch * Shape::threads;
  extern __shared__ uint4 memory[];
  auto* const products = reinterpret_cast<Acc*>(memory);
  const Args& a = matrix.a;
  const int64_t base = int64_t(blockIdx.x) * Shape::items;
  const int count = int(tp::min(a.entries - base, int64_t(Shape::items)));
  const auto* const values = static_cast<const T*>(a.values) + base;
  const auto* const origin = static_cast<const I*>(a.origin) + base;
  const auto* const source = stages.source + base;
  const auto* const x = static_cast<const T*>(a.x);
#pragma unroll 1
  for (int first = int(threadIdx.x); first < count; first += step) {
    T value[bunch];
    I from[bunch];
#pragma unroll
    for (int j = 0; j < bunch; ++j) {
      const int i = first + j * Shape::threads;
      value[j] = i < count ? values[i] : T(0);
      from[j] = i < count ? origin[i] : I(-1);
    }
#pragma unroll
    for (int j = 0; j < bunch; ++j) {
      const int i = first + j * Shape::threads;
      if (i < count) products[i] = inside(from[j], a.cols) ? Acc(value[j]) * Acc(x[from[j]]) : Acc(0);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int first = int(threadIdx.x); first < count; first += step) {
    uint16_t from[bunch];
#pragma unroll
    for (int j = 0; j < bunch; ++j) {
      const int i = first + j * Shape::threads;
      from[j] = i < count ? source[i] : uint16_t(0);
    }
#pragma unroll
    for (int j = 0; j < bunch; ++j) {
      const int i = first + j * Shape::threads;
      if (i < count) sorted[base + i] = products[from[j] % Shape::items];
    }
  }
}

// Copies the products of a bin into shared memory, asynchronously.
template <class Shape, class Acc>
TP_DEVICE void collect(Acc* items, const Acc* sorted, const uint32_t* place, int count, int64_t entries) {
  constexpr int bunch = Shape::places / 2;
  const int thread = int(threadIdx.x);
#pragma unroll
  for (int first = 0; first < Shape::places; first += bunch) {
    uint32_t at[bunch];
#pragma unroll
    for (int j = 0; j < bunch; ++j) {
      const int i = (first + j) * Shape::threads + thread;
      at[j] = i < count ? place[i] : ~0u;
    }
#pragma unroll
    for (int j = 0; j < bunch; ++j) {
      Acc* const item = items + (first + j) * Shape::threads + thread;
      if (int64_t(at[j]) < entries) {
        __pipeline_memcpy_async(item, sorted + at[j], sizeof(Acc));
      } else {
        *item = Acc(0);
      }
    }
  }
  __pipeline_commit();
}

// The thread's stretch of `local`, two to a word.
template <class Shape>
struct Locals {
  uint2 words[Shape::places / 4];

  TP_DEVICE Locals(const uint16_t* local, int mine, int count) {
    if (mine + Shape::places <= count) {
#pragma unroll
      for (int i = 0; i < Shape::places / 4; ++i) words[i] = reinterpret_cast<const uint2*>(local + mine)[i];
      return;
    }
    const auto word = [&](int at) {
      const unsigned low = at < count ? local[at] : 0, high = at + 1 < count ? local[at + 1] : 0;
      return low | high << 16;
    };
#pragma unroll
    for (int i = 0; i < Shape::places / 4; ++i) words[i] = uint2{word(mine + 4 * i), word(mine + 4 * i + 2)};
  }
  TP_DEVICE int operator[](int i) const {
    const unsigned word = i % 4 < 2 ? words[i / 4].x : words[i / 4].y;
    return int((word >> i % 2 * 16) % unsigned(Shape::items));
  }
};

template <class M>
__global__ __launch_bounds__(StageShape<typename M::Acc>::threads,
                             StageShape<typename M::Acc>::blocks) void sum_bins(const M matrix, const Stages stages,
                                                                                const typename M::Acc* sorted,
                                                                                const OpenEnds<typename M::Acc> ends,
                                                                                const block::Strips<true> column) {
  using Acc = typename M::Acc;
  using Shape = StageShape<Acc>;
  extern __shared__ uint4 memory[];
  __shared__ block::Joint<Acc, Shape::threads / warp_size> joint;
  __shared__ unsigned row_ends[Shape::items / 32];  // a bit an entry: the last of its row
  auto* const items = reinterpret_cast<Acc*>(memory);
  const auto b = matrix.bind(simt::Pointers{});
  const int thread = int(threadIdx.x), mine = thread * Shape::places;
  const int64_t bin = blockIdx.x, base = bin * Shape::items;
  const int count = int(tp::min(b.a.entries - base, int64_t(Shape::items)));
  const int64_t first_row = ends.splits[bin].segment, last_row = ends.splits[bin + 1].segment;
  const auto place_of = [&](int64_t pointer) { return int64_t(b.ptrs[pointer]) - base; };
  if (thread < Shape::items / 32) row_ends[thread] = 0;
  collect<Shape>(items, sorted, stages.place + base, count, b.a.entries);
  __syncthreads();

  bool bad = first_row > last_row || (bin == 0 && (first_row != 0 || place_of(0) != 0));
  for (int64_t row = first_row + thread; row < last_row; row += Shape::threads) {
    const int64_t begin = place_of(row), end = place_of(row + 1);
    bad |= end < begin || end > count || (begin < 0 && row != first_row);
    if (begin < end && end > 0 && end <= count) atomicOr(row_ends + (end - 1) / 32, 1u << (end - 1) % 32);
  }
  if (bad) *ends.bad = 1;
  const Locals<Shape> local(stages.local + base, mine, count);
  __pipeline_wait_prior(0);
  __syncthreads();

  Acc item[Shape::places], running(0), tail;
#pragma unroll
  for (int i = 0; i < Shape::places; ++i) item[i] = mine + i < count ? items[local[i]] : Acc(0);
  __syncthreads();
  const unsigned marks = row_ends[mine / 32] >> mine % 32 & ((1u << Shape::places) - 1);
#pragma unroll
  for (int i = 0; i < Shape::places; ++i) {
    running += item[i];
    if (marks >> i & 1) {  // from here on the sum of a row stands where its last entry is in the plan
      items[mine + i] = running;
      running = Acc(0);
    }
  }
  const Acc before = block::join<Sum<Acc>>(joint, column, running, marks != 0, tail).value;
  if (marks != 0) {
    Acc& first = items[mine + __ffs(int(marks)) - 1];
    first = before + first;
  }
  if (thread == Shape::threads - 1) ends.tails[bin] = tail;
  __syncthreads();
  for (int64_t row = first_row + thread; row < last_row; row += Shape::threads) {
    const int64_t begin = place_of(row), end = place_of(row + 1);
    const bool holds = begin < end && end > 0 && end <= count;
    const Acc sum = holds ? items[end - 1] : Acc(0);
    if (holds && begin < 0) {
      ends.heads[bin] = sum;
    } else {
      b.store(row, 0, sum);
    }
  }
}

// Whether the plan has stages, and a block the memory for them.
template <class Acc>
bool goes_in_stages(const Args& args) {
  if (args.stages == nullptr || args.k != 1 || reinterpret_cast<uintptr_t>(args.stages) % 8 != 0) return false;
  return block::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= StageShape<Acc>::bytes + (12 << 10);
}

template <class M>
void multiply_vector_in_stages(const M& matrix, Context& context) {
  using Acc = typename M::Acc;
  using Shape = StageShape<Acc>;
  const Args& a = matrix.a;
  const auto stream = cudaStream_t(context.stream);
  const auto* long_ptrs = a.long_index ? static_cast<const int64_t*>(a.ptrs) : nullptr;
  const block::Bounds<false> bounds{long_ptrs, static_cast<const int32_t*>(a.ptrs), false, a.rows, a.entries};
  const block::Path path(a.entries, a.rows, Shape::items, 0);  // bins of entries, whatever rows end there
  auto* splits = context.workspace<block::Split>(path.tiles + 2);
  auto* bad = reinterpret_cast<uint64_t*>(splits + path.tiles + 1);
  const OpenEnds<Acc> ends{splits, reinterpret_cast<unsigned*>(bad), context.workspace<Acc>(path.tiles),
                           context.workspace<Acc>(path.tiles)};
  auto* sorted = context.workspace<Acc>(a.entries);
  const auto run = [&](auto kernel, const auto&... args) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::bytes);
    kernel<<<unsigned(path.tiles), Shape::threads, Shape::bytes, stream>>>(args...);
    check_launch("merge_path");
  };
  block::find_splits(bounds, path, splits, bad, 1, context.stream);
  run(sort_products<M>, matrix, Stages(a), sorted);
  run(sum_bins<M>, matrix, Stages(a), sorted, ends, block::Strips<true>(1));
  const int64_t blocks = ceil_div(path.tiles, int64_t(tiles_to_complete(1)));
  complete_rows<<<unsigned(blocks), complete_threads, 0, stream>>>(matrix, path, ends, 1);
  check_launch("merge_path");
}

}  // namespace tp::sparse
