// merge_path for one column through a plan with stages. It reads and writes memory in order, except for short runs.
// Entries are divided into tiles in storage order, and into bins in the order of the plan.
// 1. A block multiplies the entries of a tile into shared memory, and writes the products ordered by bin.
// 2. A block collects the products of a bin, where those from one tile are contiguous, and sums the rows
// (sparse/csr/bins.cuh).
#pragma once
#include "sparse/csr/bins.cuh"

namespace tp::sparse {

// The plan's two orders, [entries] each. Item i of all bins is product slot[i] of the first stage's output, and entry
// local[i] of its bin. Product i of that output is item source[i] of its tile. The arrays may hold anything, because
// every use is bounded.
struct Stages {
  const uint16_t *local, *source;
  const uint32_t* slot;

  explicit Stages(const CsrArgs& a)
      : local(static_cast<const uint16_t*>(a.stages)),
        source(local + a.entries),
        slot(reinterpret_cast<const uint32_t*>(source + a.entries)) {}
};

// First stage: multiplies the entries of a tile, and stores the products ordered by bin.
template <class M>
__global__ __launch_bounds__(BinShape<typename M::Acc>::threads,
                             BinShape<typename M::Acc>::blocks) void sort_products(const M matrix, const Stages stages,
                                                                                   typename M::Acc* sorted) {
  using Acc = typename M::Acc;
  using T = typename M::T;
  using I = typename M::I;
  using Shape = BinShape<Acc>;
  constexpr int batch = 8, step = batch * Shape::threads;
  extern __shared__ uint4 memory[];
  block::allow_next_launch();
  auto* const products = reinterpret_cast<Acc*>(memory);
  const CsrArgs& a = matrix.a;
  const int64_t base = int64_t(blockIdx.x) * Shape::items;
  const int count = int(tp::min(a.entries - base, int64_t(Shape::items)));
  const auto* const values = static_cast<const T*>(a.values) + base;
  const auto* const origin = static_cast<const I*>(a.origin) + base;
  const auto* const source = stages.source + base;
  const auto* const x = static_cast<const T*>(a.x);
// Multiply the entries in storage order, in which values and columns are read in sequence.
#pragma unroll 1
  for (int first = int(threadIdx.x); first < count; first += step) {
    T value[batch];
    I from[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int i = first + j * Shape::threads;
      value[j] = i < count ? values[i] : T(0);
      from[j] = i < count ? origin[i] : I(-1);
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int i = first + j * Shape::threads;
      if (i < count) products[i] = inside(from[j], a.cols) ? Acc(value[j]) * Acc(x[from[j]]) : Acc(0);
    }
  }
  // When all products are in shared memory, store them in the order of the bins.
  __syncthreads();
#pragma unroll 1
  for (int first = int(threadIdx.x); first < count; first += step) {
    uint16_t from[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int i = first + j * Shape::threads;
      from[j] = i < count ? source[i] : uint16_t(0);
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int i = first + j * Shape::threads;
      if (i < count) sorted[base + i] = products[from[j] % Shape::items];
    }
  }
  block::wait_for_launch_before();  // the next launch waits only for this one, so this one must wait for the one before
}

// Second stage: collects the products of a bin. Those from one tile are contiguous in `sorted`.
template <class Acc>
struct CollectStaged {
  Stages stages;
  const Acc* sorted;
  int64_t entries;

  TP_DEVICE void operator()(int64_t bin, Acc* items) const {
    using Shape = BinShape<Acc>;
    constexpr int batch = 4;
    const int64_t base = bin * Shape::items;
    const int count = int(tp::min(entries - base, int64_t(Shape::items)));
    const uint32_t* const slot = stages.slot + base;
    const uint16_t* const local = stages.local + base;
#pragma unroll 1
    for (int first = int(threadIdx.x); first < count; first += batch * Shape::threads) {
      uint32_t from[batch];
      uint16_t to[batch];
      Acc product[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int i = first + j * Shape::threads;
        from[j] = i < count ? slot[i] : ~0u;
        to[j] = i < count ? local[i] : uint16_t(~0u);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) product[j] = int64_t(from[j]) < entries ? sorted[from[j]] : Acc(0);
#pragma unroll
      for (int j = 0; j < batch; ++j) put_item(items, to[j], product[j]);
    }
  }
};

// Whether the plan has stages, and a block can have enough shared memory for them.
template <class Acc>
bool goes_in_stages(const CsrArgs& args) {
  if (args.stages == nullptr || args.k != 1 || reinterpret_cast<uintptr_t>(args.stages) % 8 != 0) return false;
  return block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() >= BinShape<Acc>::bytes + (12 << 10);
}

template <class M>
void multiply_vector_in_stages(const M& matrix, Context& context) {
  using Acc = typename M::Acc;
  using Shape = BinShape<Acc>;
  const CsrArgs& a = matrix.a;
  auto* sorted = context.workspace<Acc>(a.entries);
  const auto first_stage = [&](int64_t) {
    block::allow_shared_memory(sort_products<M>, Shape::bytes);
    const int64_t tiles = ceil_div(a.entries, int64_t(Shape::items));
    block::launch_early(sort_products<M>, dim3(unsigned(tiles)), Shape::threads, Shape::bytes, context, matrix,
                        Stages(a), sorted);
  };
  multiply_by_bins(matrix, a.entries, context, first_stage, CollectStaged<Acc>{Stages(a), sorted, a.entries});
  check_launch("merge_path");
}

}  // namespace tp::sparse
