// merge_path through a plan with stages. It reads and writes memory in order, except for short runs. Entries are
// divided into tiles in storage order, and into bins in the order of the plan. The items that two stages put in the
// order of the plan are products for one column, and values for several columns.
// 1. A block computes the items of a tile into shared memory, and writes them ordered by bin.
// 2. A block collects the items of a bin, where those from one tile are contiguous. It sums the rows of products
// (sparse/csr/bins.cuh), or writes the values, which are then multiplied as if there were no plan.
#pragma once
#include "sparse/csr/bins.cuh"

namespace tp::sparse {

// The plan's two orders, [entries] each. Item i of all bins is number slot[i] of the first stage's output, and entry
// local[i] of its bin. Number i of that output is item source[i] of its tile. The arrays may hold anything, because
// every use is bounded.
struct Stages {
  const uint16_t *local, *source;
  const uint32_t* slot;

  explicit Stages(const CsrArgs& a)
      : local(static_cast<const uint16_t*>(a.stages)),
        source(local + a.entries),
        slot(reinterpret_cast<const uint32_t*>(source + a.entries)) {}
};

// The items of a product with one column.
template <class M>
struct Products {
  using T = typename M::T;
  using I = typename M::I;
  using Item = typename M::Acc;
  const T *values, *x;
  const I* origin;
  int64_t cols;

  explicit Products(const CsrArgs& a)
      : values(static_cast<const T*>(a.values)),
        x(static_cast<const T*>(a.x)),
        origin(static_cast<const I*>(a.origin)),
        cols(a.cols) {}
  // Calls put(j, the item of entry at[j]) where that is before `end`.
  template <int batch, class Put>
  TP_DEVICE void each(const int64_t (&at)[batch], int64_t end, Put put) const {
    T value[batch];
    I from[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      value[j] = at[j] < end ? values[at[j]] : T(0);
      from[j] = at[j] < end ? origin[at[j]] : I(-1);
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (at[j] < end) put(j, inside(from[j], cols) ? Item(value[j]) * Item(x[from[j]]) : Item(0));
    }
  }
};

// The items of a product with several columns.
template <class T>
struct Values {
  using Item = T;
  const T* values;

  explicit Values(const CsrArgs& a) : values(static_cast<const T*>(a.values)) {}
  template <int batch, class Put>
  TP_DEVICE void each(const int64_t (&at)[batch], int64_t end, Put put) const {
    T value[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) value[j] = at[j] < end ? values[at[j]] : T(0);
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (at[j] < end) put(j, value[j]);
    }
  }
};

// First stage: computes the items of the entries of a tile, and stores them ordered by bin.
template <class Items, class Item = typename Items::Item>
__global__ __launch_bounds__(BinShape<Item>::threads,
                             BinShape<Item>::blocks) void sort_tiles(const Items items_of, const Stages stages,
                                                                     int64_t entries, Item* sorted) {
  using Shape = BinShape<Item>;
  constexpr int batch = 8, step = batch * Shape::threads;
  extern __shared__ uint4 memory[];
  block::allow_next_launch();
  auto* const items = reinterpret_cast<Item*>(memory);
  const int64_t base = int64_t(blockIdx.x) * Shape::items;
  const int count = int(tp::min(entries - base, int64_t(Shape::items)));
  const auto* const source = stages.source + base;
// Read the entries in storage order, in which values and columns are read in sequence.
#pragma unroll 1
  for (int first = int(threadIdx.x); first < count; first += step) {
    int64_t at[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) at[j] = base + first + j * Shape::threads;
    items_of.each(at, base + count, [&](int j, Item item) { items[first + j * Shape::threads] = item; });
  }
  // When all items are in shared memory, store them in the order of the bins.
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
      if (i < count) sorted[base + i] = items[from[j] % Shape::items];
    }
  }
  block::wait_for_launch_before();  // the next launch waits only for this one, so this one must wait for the one before
}

// Second stage: collects the items of a bin. Those from one tile are contiguous in `sorted`.
template <class Item>
struct CollectStaged {
  Stages stages;
  const Item* sorted;
  int64_t entries;

  TP_DEVICE void operator()(int64_t bin, Item* items) const {
    using Shape = BinShape<Item>;
    constexpr int batch = 4;
    const int64_t base = bin * Shape::items;
    const int count = int(tp::min(entries - base, int64_t(Shape::items)));
    const uint32_t* const slot = stages.slot + base;
    const uint16_t* const local = stages.local + base;
#pragma unroll 1
    for (int first = int(threadIdx.x); first < count; first += batch * Shape::threads) {
      uint32_t from[batch];
      uint16_t to[batch];
      Item item[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int i = first + j * Shape::threads;
        from[j] = i < count ? slot[i] : ~0u;
        to[j] = i < count ? local[i] : uint16_t(~0u);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) item[j] = int64_t(from[j]) < entries ? sorted[from[j]] : Item(0);
#pragma unroll
      for (int j = 0; j < batch; ++j) put_item(items, to[j], item[j]);
    }
  }
};

// Second stage for several columns: stores the items of each bin in the order of the plan.
template <class Item>
__global__ __launch_bounds__(BinShape<Item>::threads,
                             BinShape<Item>::blocks) void order_bins(const CollectStaged<Item> collect, Item* ordered) {
  using Shape = BinShape<Item>;
  extern __shared__ uint4 memory[];
  auto* const items = reinterpret_cast<Item*>(memory);
  block::allow_next_launch();
  const int64_t base = int64_t(blockIdx.x) * Shape::items;
  const int count = int(tp::min(collect.entries - base, int64_t(Shape::items)));
  for (int i = int(threadIdx.x); i < Shape::items; i += Shape::threads) items[i] = Item(0);
  __syncthreads();
  block::wait_for_launch_before();
  collect(blockIdx.x, items);
  __syncthreads();
  for (int i = int(threadIdx.x); i < count; i += Shape::threads) ordered[base + i] = items[item_slot(i)];
}

// Whether the plan has stages, and a block can have enough shared memory for them.
template <class Item>
bool goes_in_stages(const CsrArgs& args) {
  if (args.stages == nullptr || args.perm_indexes || reinterpret_cast<uintptr_t>(args.stages) % 8 != 0) return false;
  return block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() >= BinShape<Item>::bytes + (12 << 10);
}

// Launches the first stage. It reads at once, so it may start early only behind an ordinary launch of its operator.
template <class Items, class Item = typename Items::Item>
void sort_by_bin(const Items& items, const CsrArgs& a, Context& context, Item* sorted, bool early) {
  using Shape = BinShape<Item>;
  const dim3 tiles(unsigned(ceil_div(a.entries, int64_t(Shape::items))));
  block::allow_shared_memory(sort_tiles<Items>, Shape::bytes);
  if (early) {
    block::launch_early(sort_tiles<Items>, tiles, Shape::threads, Shape::bytes, context, items, Stages(a), a.entries,
                        sorted);
  } else {
    sort_tiles<<<tiles, Shape::threads, Shape::bytes, cudaStream_t(context.stream)>>>(items, Stages(a), a.entries,
                                                                                      sorted);
  }
}

template <class M>
void multiply_vector_in_stages(const M& matrix, Context& context) {
  using Acc = typename M::Acc;
  const CsrArgs& a = matrix.a;
  auto* sorted = context.workspace<Acc>(a.entries);
  const auto first_stage = [&](int64_t) { sort_by_bin(Products<M>(a), a, context, sorted, true); };
  multiply_by_bins(matrix, a.entries, context, first_stage, CollectStaged<Acc>{Stages(a), sorted, a.entries});
  check_launch("merge_path");
}

// Returns the same product without perm: its values are in the order of the plan.
template <class M>
M in_plan_order(const M& matrix, Context& context) {
  using T = typename M::T;
  using Shape = BinShape<T>;
  const CsrArgs& a = matrix.a;
  auto *sorted = context.workspace<T>(a.entries), *ordered = context.workspace<T>(a.entries);
  sort_by_bin(Values<T>(a), a, context, sorted, false);
  block::allow_shared_memory(order_bins<T>, Shape::bytes);
  block::launch_early(order_bins<T>, dim3(unsigned(ceil_div(a.entries, int64_t(Shape::items)))), Shape::threads,
                      Shape::bytes, context, CollectStaged<T>{Stages(a), sorted, a.entries}, ordered);
  M result = matrix;
  result.a.values = ordered;
  result.a.perm = nullptr;
  return result;
}

}  // namespace tp::sparse
