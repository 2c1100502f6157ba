// merge_path for one column: a block a tile. It multiplies all its entries, side by side and many loads at once, into
// shared memory; then every thread sums a stretch of them, cut at the marks that stand at the last entries of rows.
#pragma once
#include "sparse/csr/shares.cuh"

namespace tp::sparse {

template <class Acc>
struct VectorTile {
  static constexpr int warps = 8, threads = warps * warp_size;
  static constexpr int places = 9;                            // odd: lanes meet in no bank
  static constexpr int items = threads * places - warp_size;  // a thread's entries begin where a warp's read is aligned
  using Mark = uint16_t;
  // One mark an entry, one a stretch, then the products, then the sums of rows, which take the rest of the items.
  static constexpr int mark_bytes = (items + threads) * int(sizeof(Mark)), clear_bytes = (mark_bytes + 15) / 16 * 16;
  static constexpr int bytes = clear_bytes + (items + 2) * int(sizeof(Acc));
};

template <bool planned, class M>
__global__ __launch_bounds__(VectorTile<typename M::Acc>::threads) void multiply_tiles(
    const M matrix, const block::Bounds<false> bounds, const OpenEnds<typename M::Acc> ends,
    const block::Strips<true> column) {
  using Acc = typename M::Acc;
  using Shape = VectorTile<Acc>;
  using Mark = typename Shape::Mark;
  constexpr int threads = Shape::threads;
  __shared__ uint4 memory[(Shape::bytes + 15) / 16];
  __shared__ block::Joint<Acc, Shape::warps> joint;
  __shared__ bool open;  // the first row that ends here began in an earlier tile
  const int thread = int(threadIdx.x);
  for (int i = thread; i < Shape::clear_bytes / 16; i += threads) memory[i] = uint4{};
  auto *row_marks = reinterpret_cast<Mark*>(memory), *first_marks = row_marks + Shape::items;
  auto* products = reinterpret_cast<Acc*>(memory + Shape::clear_bytes / 16);
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t tile = blockIdx.x;
  const block::Share share(bounds, Shape::items, std::integral_constant<int, 1>{}, ends.splits, tile, ends.bad);
  Acc* const results = products + share.rows;
  __syncthreads();

  // All entries of the tile are on their way before anything else is read. A warp's 32 are aligned, so that it reads no
  // more sectors than it has to; a few before the tile come along.
  const int mine = thread - int(share.row % warp_size);
  const Bunch<std::decay_t<decltype(b)>, Shape::places, planned> bunch(b, share.row + mine, share.row + share.rows,
                                                                       threads);
  // The mark of a row is the place of its sum, counted from 1. It stands at the row's last entry, and beside the
  // stretch in which no row ends earlier.
  block::each_segment<threads>(bounds, share, share.ends, ends.bad, [&](int r, int begin, int end) {
    if (r == 0) open = begin < 0;
    if (tp::max(begin, 0) < end) {
      const int stretch = (end - 1) / Shape::places;
      row_marks[end - 1] = Mark(r + 1);
      if (begin <= stretch * Shape::places) first_marks[stretch] = Mark(r + 1);
    } else {
      results[r] = Acc(0);
    }
  });
  Acc product[Shape::places];
  bunch.multiply(b, product);
#pragma unroll
  for (int j = 0; j < Shape::places; ++j) {
    if (unsigned(mine + j * threads) < unsigned(share.rows)) products[mine + j * threads] = product[j];
  }
  __syncthreads();

  const int start = thread * Shape::places, count = tp::max(0, tp::min(Shape::places, share.rows - start));
  Acc running(0);
  struct Item {
    Acc product;
    Mark mark;
  };
  block::walk<Shape::places>(
      count, [&](int i) { return Item{products[start + i], row_marks[start + i]}; },
      [&](int, const Item& item) {
        running += item.product;
        if (item.mark != 0) results[item.mark - 1] = running;
        running = item.mark != 0 ? Acc(0) : running;
      });
  // What the first sum of a stretch lacks.
  const int first = first_marks[thread];
  Acc tail;
  const auto before = block::join<Sum<Acc>>(joint, column, running, first != 0, tail);
  if (first != 0) {
    const Acc head = before.value + results[first - 1];
    results[first - 1] = head;
    if (before.open && open) ends.heads[tile] = head;
  }
  if (thread == threads - 1) ends.tails[tile] = tail;
  __syncthreads();
  for (int r = thread; r < share.ends; r += threads) {
    if (r > 0 || !open) b.store(share.segment + r, 0, results[r]);
  }
}

template <class M>
void multiply_vector_by_path(const M& matrix, Context& context) {
  using Shape = VectorTile<typename M::Acc>;
  const block::Path path(matrix.a.entries, matrix.a.rows, Shape::items, 1);
  by_path(matrix, path, context, [&](const auto& ends) {
    with_plan(matrix.a, [&](auto planned) {
      multiply_tiles<planned.value><<<unsigned(path.tiles), Shape::threads, 0, cudaStream_t(context.stream)>>>(
          matrix, bounds_of(matrix), ends, block::Strips<true>(1));
    });
    check_launch("merge_path");
  });
}

}  // namespace tp::sparse
