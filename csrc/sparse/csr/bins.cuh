// The second of two stages. Entries in row order are divided into bins, with one block per bin. The products of a bin
// arrive in any order; the block collects them into their slots in shared memory and sums the rows there. Rows that
// cross bins are completed as those that cross tiles (sparse/csr/shares.cuh).
#pragma once
#include "sparse/csr/shares.cuh"

namespace tp::sparse {

template <class Acc>
struct BinShape {
  static constexpr int items = bin_entries, threads = 1024, per_thread = items / threads;
  static constexpr int blocks = sizeof(Acc) <= 4 ? 2 : 1;
  static constexpr int bytes = items * int(sizeof(Acc));
  using Four = block::Vector<Acc, 4>;
};

// The slot of item i of a bin in shared memory. It is permuted so that lanes that read neighbouring runs of 16 items,
// four at a time, do not conflict on a bank.
TP_DEVICE inline int item_slot(int i) { return i ^ (i >> 3 & 28); }

// Stores an item in its slot. Padding has an index outside the bin, and is dropped.
template <class Acc>
TP_DEVICE void put_item(Acc* items, unsigned i, Acc item) {
  if (i < unsigned(bin_entries)) items[item_slot(int(i))] = item;
}

// Sums a thread's items and starts again after each mark. Where one of four consecutive items is marked, each of the
// four is replaced by the sum up to it. Returns the sum after the last mark.
template <class Shape, class Acc>
TP_DEVICE __forceinline__ Acc scan_items(Acc* items, int first_item, unsigned marks) {
  using Four = typename Shape::Four;
  Acc running(0);
#pragma unroll
  for (int first = 0; first < Shape::per_thread; first += 4) {
    Four& four = *reinterpret_cast<Four*>(items + item_slot(first_item + first));
    Four sums = four;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      running += sums.v[i];
      sums.v[i] = running;
      if (marks >> (first + i) & 1) running = Acc(0);
    }
    if (marks >> first & 15) four = sums;  // the sum of a row replaces the product of its last entry
  }
  return running;
}

// A row's begin and end as indices of items in the bin: -1 for an item before the bin, count + 1 for one after it.
struct BinRow {
  int begin, end;
};

// The rows `first` to `last` - 1, which end in a bin: that of the `count` entries from `base` on. Each thread handles
// every Shape::threads-th row.
template <class Shape, class B>
struct BinRows {
  const B& b;
  int64_t base, first, last;
  int count;
  BinRow mine;  // loaded early, while the products are on their way

  TP_DEVICE BinRows(const B& b, int64_t base, int count, int64_t first, int64_t last)
      : b(b), base(base), first(first), last(last), count(count), mine(at(first + threadIdx.x)) {}

  TP_DEVICE int item(int64_t pointer) const {
    return int(tp::max(int64_t(-1), tp::min(int64_t(b.ptrs[pointer]) - base, int64_t(count + 1))));
  }
  TP_DEVICE BinRow at(int64_t row) const { return row < last ? BinRow{item(row), item(row + 1)} : BinRow{}; }
  // Calls f(row, its begin and end, whether it has entries and ends in the bin) for the rows of this thread.
  template <class F>
  TP_DEVICE __forceinline__ void each(const F& f) const {
    BinRow found = mine;
    for (int64_t row = first + threadIdx.x; row < last; found = at(row += Shape::threads)) {
      f(row, found, found.begin < found.end && found.end > 0 && found.end <= count);
    }
  }
};

// Sums the rows of each bin of `collect.entries` entries; collect(bin, items) stores the products of a bin in their
// slots.
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
  __shared__ block::SliceScanStorage<Acc, Shape::threads / warp_size> scan_storage;
  __shared__ unsigned row_ends[Shape::items / 32];  // one bit per entry of the bin, set at the last entry of each row
  auto* const items = reinterpret_cast<Acc*>(memory);
  const auto b = matrix.bind(simt::Pointers{});
  const int thread = int(threadIdx.x), mine = thread * Shape::per_thread;
  const int64_t bin = blockIdx.x, base = bin * Shape::items;
  const int count = int(tp::min(collect.entries - base, int64_t(Shape::items)));
  block::allow_next_launch();
  if (thread < Shape::items / 32) row_ends[thread] = 0;
#pragma unroll
  for (int i = 0; i < Shape::per_thread; i += 4) *reinterpret_cast<Four*>(items + mine + i) = Four{};
  __syncthreads();
  block::wait_for_launch_before();

  const int64_t first_row = ends.splits[bin].segment;
  const BinRows<Shape, std::decay_t<decltype(b)>> rows(b, base, count, first_row, ends.splits[bin + 1].segment);
  // Collect the products of the bin, and mark the last entries of its rows.
  collect(bin, items);
  bool bad = first_row > rows.last || (bin == 0 && (first_row != 0 || int64_t(b.ptrs[0]) != 0));
  rows.each([&](int64_t row, const BinRow& found, bool holds) {
    bad |= found.end < found.begin || found.end > count || (found.begin < 0 && row != first_row);
    if (holds) atomicOr(row_ends + (found.end - 1) / 32, 1u << (found.end - 1) % 32);
  });
  if (bad) *ends.bad = 1;
  __syncthreads();

  // Each thread scans its items and starts again after each mark; then the block finds what precedes each thread's
  // items, which belongs to the first row that ends among them.
  Acc tail;
  const unsigned marks = row_ends[mine / 32] >> mine % 32 & ((1u << Shape::per_thread) - 1);
  const Acc running = scan_items<Shape>(items, mine, marks);
  const Acc before = block::scan_slices<Sum<Acc>>(scan_storage, column, running, marks != 0, tail).value;
  if (marks != 0) {
    Acc& first = items[item_slot(mine + __ffs(int(marks)) - 1)];
    first = before + first;
  }
  if (thread == Shape::threads - 1) ends.tails[bin * b.a.k + c] = tail;
  __syncthreads();
  // Store the rows that end in this bin. If a row began in an earlier bin, its sum is only a part, which the last
  // launch completes.
  rows.each([&](int64_t row, const BinRow& found, bool holds) {
    const Acc sum = holds ? items[item_slot(found.end - 1)] : Acc(0);
    if (holds && found.begin < 0) {
      ends.heads[bin * b.a.k + c] = sum;
    } else {
      b.store(row, c, sum);
    }
  });
}

// Multiplies a matrix of `entries` entries in bins. first_stage(c) launches the multiplication with column c of X;
// `collect` finds the products of a bin.
template <class M, class FirstStage, class Collect>
void multiply_by_bins(const M& matrix, int64_t entries, Context& context, FirstStage first_stage,
                      const Collect& collect) {
  using Acc = typename M::Acc;
  using Shape = BinShape<Acc>;
  const auto& a = matrix.a;
  const block::Bounds<false> bounds{a.long_index ? static_cast<const int64_t*>(a.ptrs) : nullptr,
                                    static_cast<const int32_t*>(a.ptrs), false, a.rows, entries};
  const block::Path path(entries, a.rows, Shape::items,
                         0);  // bins have equal numbers of entries, however many rows end in them
  auto* splits = context.workspace<block::Split>(path.tiles + 2);
  auto* bad = reinterpret_cast<uint64_t*>(splits + path.tiles + 1);
  const OpenEnds<Acc> ends{splits, reinterpret_cast<unsigned*>(bad), context.workspace<Acc>(path.tiles * a.k),
                           context.workspace<Acc>(path.tiles * a.k)};
  block::find_splits(bounds, path, splits, bad, 1, context.stream);
  const auto kernel = sum_bins<M, Collect>;
  block::allow_shared_memory(kernel, Shape::bytes);
  for (int64_t c = 0; c < a.k; ++c) {
    first_stage(c);
    block::launch_early(kernel, dim3(unsigned(path.tiles)), Shape::threads, Shape::bytes, context, matrix, collect,
                        ends, block::Strips<true>(1), c);
  }
  complete_path(matrix, path, ends, context);
}

}  // namespace tp::sparse
