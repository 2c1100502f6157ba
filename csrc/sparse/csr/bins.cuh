// The second of two stages: entries in the order of rows are cut into bins, and a block of threads collects the
// products of a bin, which come in any order, where they belong in shared memory; there it sums the rows. Rows that
// reach over several bins are completed like those of other tiles (sparse/csr/shares.cuh).
#pragma once
#include "sparse/csr/shares.cuh"

namespace tp::sparse {

template <class Acc>
struct BinShape {
  static constexpr int items = bin_entries, threads = 1024, places = items / threads;
  static constexpr int blocks = sizeof(Acc) <= 4 ? 2 : 1;
  static constexpr int bytes = items * int(sizeof(Acc));
  using Four = block::Vector<Acc, 4>;
};

// Where item i of a bin lies: lanes that go through stretches of 16 side by side, by fours, meet in no bank.
TP_DEVICE inline int item_place(int i) { return i ^ (i >> 3 & 28); }

// Puts a product where it belongs; what is no item of the bin belongs nowhere.
template <class Acc>
TP_DEVICE void put_item(Acc* items, unsigned i, Acc product) {
  if (i < unsigned(bin_entries)) items[item_place(int(i))] = product;
}

// `collect.entries` entries; collect(bin, items) puts the products of a bin at their places.
template <class M, class Collect>
__global__ __launch_bounds__(BinShape<typename M::Acc>::threads,
                             BinShape<typename M::Acc>::blocks) void sum_bins(const M matrix, const Collect collect,
                                                                              const OpenEnds<typename M::Acc> ends,
                                                                              const block::Strips<true> column,
                                                                              int64_t c) {
  using Acc = typename M::Acc;
  using Shape = BinShape<Acc>;
  using Four = typename Shape::Four;
  extern __shared__ uint4 memory[];
  __shared__ block::Joint<Acc, Shape::threads / warp_size> joint;
  __shared__ unsigned row_ends[Shape::items / 32];  // a bit an entry: the last of its row
  auto* const items = reinterpret_cast<Acc*>(memory);
  const auto b = matrix.bind(simt::Pointers{});
  const int thread = int(threadIdx.x), mine = thread * Shape::places;
  const int64_t bin = blockIdx.x, base = bin * Shape::items;
  const int count = int(tp::min(collect.entries - base, int64_t(Shape::items)));
  block::allow_next_launch();
  if (thread < Shape::items / 32) row_ends[thread] = 0;
#pragma unroll
  for (int i = 0; i < Shape::places; i += 4) *reinterpret_cast<Four*>(items + mine + i) = Four{};
  __syncthreads();
  block::wait_for_launch_before();

  // Where a row begins and ends, as items: -1 for what lies before the bin, count + 1 for what lies beyond.
  struct Row {
    int begin, end;
  };
  const int64_t first_row = ends.splits[bin].segment, last_row = ends.splits[bin + 1].segment;
  const auto item_of = [&](int64_t pointer) {
    return int(tp::max(int64_t(-1), tp::min(int64_t(b.ptrs[pointer]) - base, int64_t(count + 1))));
  };
  const auto row_at = [&](int64_t row) { return row < last_row ? Row{item_of(row), item_of(row + 1)} : Row{}; };
  const Row thread_row = row_at(first_row + thread);  // loaded along with the products
  const auto each_row = [&](auto f) {
    Row found = thread_row;
    for (int64_t row = first_row + thread; row < last_row; found = row_at(row += Shape::threads)) {
      f(row, found, found.begin < found.end && found.end > 0 && found.end <= count);
    }
  };
  collect(bin, items);
  bool bad = first_row > last_row || (bin == 0 && (first_row != 0 || int64_t(b.ptrs[0]) != 0));
  each_row([&](int64_t row, const Row& found, bool holds) {
    bad |= found.end < found.begin || found.end > count || (found.begin < 0 && row != first_row);
    if (holds) atomicOr(row_ends + (found.end - 1) / 32, 1u << (found.end - 1) % 32);
  });
  if (bad) *ends.bad = 1;
  __syncthreads();

  Acc running(0), tail;
  const unsigned marks = row_ends[mine / 32] >> mine % 32 & ((1u << Shape::places) - 1);
#pragma unroll
  for (int first = 0; first < Shape::places; first += 4) {
    Four& four = *reinterpret_cast<Four*>(items + item_place(mine + first));
    Four sums = four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      running += sums.v[i];
      sums.v[i] = running;
      if (marks >> (first + i) & 1) running = Acc(0);
    }
    if (marks >> first & 15) four = sums;  // the sum of a row stands where its last entry was
  }
  const Acc before = block::join<Sum<Acc>>(joint, column, running, marks != 0, tail).value;
  if (marks != 0) {
    Acc& first = items[item_place(mine + __ffs(int(marks)) - 1)];
    first = before + first;
  }
  if (thread == Shape::threads - 1) ends.tails[bin * b.a.k + c] = tail;
  __syncthreads();
  each_row([&](int64_t row, const Row& found, bool holds) {
    const Acc sum = holds ? items[item_place(found.end - 1)] : Acc(0);
    if (holds && found.begin < 0) {
      ends.heads[bin * b.a.k + c] = sum;
    } else {
      b.store(row, c, sum);
    }
  });
}

// A matrix of so many entries, cut into bins: first_stage(c) multiplies column c of X, collect finds the products.
template <class M, class FirstStage, class Collect>
void multiply_by_bins(const M& matrix, int64_t entries, Context& context, FirstStage first_stage,
                      const Collect& collect) {
  using Acc = typename M::Acc;
  using Shape = BinShape<Acc>;
  const Args& a = matrix.a;
  const block::Bounds<false> bounds{a.long_index ? static_cast<const int64_t*>(a.ptrs) : nullptr,
                                    static_cast<const int32_t*>(a.ptrs), false, a.rows, entries};
  const block::Path path(entries, a.rows, Shape::items, 0);  // bins of entries, whatever rows end there
  auto* splits = context.workspace<block::Split>(path.tiles + 2);
  auto* bad = reinterpret_cast<uint64_t*>(splits + path.tiles + 1);
  const OpenEnds<Acc> ends{splits, reinterpret_cast<unsigned*>(bad), context.workspace<Acc>(path.tiles * a.k),
                           context.workspace<Acc>(path.tiles * a.k)};
  block::find_splits(bounds, path, splits, bad, 1, context.stream);
  const auto kernel = sum_bins<M, Collect>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::bytes);
  for (int64_t c = 0; c < a.k; ++c) {
    first_stage(c);
    block::launch_early(kernel, dim3(unsigned(path.tiles)), Shape::threads, Shape::bytes, context, matrix, collect,
                        ends, block::Strips<true>(1), c);
  }
  complete_path(matrix, path, ends, context);
}

}  // namespace tp::sparse
