// merge_path for several columns. Each tile has a group of lanes, and each lane some columns of Y. The group walks
// along its share of entries and row ends, with the sums of the current row in registers. The next entries are loaded
// together with the rows of X that the current ones need.
#pragma once
#include "sparse/csr/shares.cuh"

namespace tp::sparse {

constexpr int column_threads = 128;

template <bool planned, class M, class C>
__global__ __launch_bounds__(column_threads, 7) void multiply_column_tiles(const M matrix, const block::Path path,
                                                                           const C columns,
                                                                           const OpenEnds<typename M::Acc> ends) {
  using T = typename M::T;
  using Acc = typename M::Acc;
  using X = block::Vector<T, C::width>;
  constexpr int size = 4;
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t number = (int64_t(blockIdx.x) * column_threads + threadIdx.x) / columns.lanes;
  const int64_t c = (int64_t(blockIdx.y) * columns.lanes + int(threadIdx.x) % columns.lanes) * C::width;
  if (number >= path.tiles || c >= b.a.k) return;
  Tile tile(b, path, ends.splits, number);
  Acc sum[C::width];
  const auto clear = [&] {
#pragma unroll
    for (int i = 0; i < C::width; ++i) sum[i] = Acc(0);
  };
  const auto keep = [&](Acc* to) {
#pragma unroll
    for (int i = 0; i < C::width; ++i) to[number * b.a.k + c + i] = sum[i];
  };
  // The end of the current row, and of the next one, which is loaded one row early.
  int row = 0, end = tile.end(b, 0), next_end = tile.end(b, 1);
  tile.bad |= end < 0;
  const auto close_row = [&] {
    if (row == 0 && tile.cut) {
      keep(ends.heads);
    } else {
#pragma unroll
      for (int i = 0; i < C::width; ++i) b.store(tile.row + row, c + i, sum[i]);
    }
    clear();
    tile.bad |= next_end < end;
    end = next_end;
    next_end = tile.end(b, ++row + 1);  // loaded early, so that the load overlaps the row
  };
  clear();
  using Entries = EntryBatch<std::decay_t<decltype(b)>, size, planned>;
  Entries next(b, tile.entry, tile.entry + tile.entries, 1);
  // Walk along the entries, `size` at a time: read their rows of X, load the next entries, then add each entry to the
  // sums, after closing the rows that end before it.
  for (int at = 0; at < tile.entries; at += size) {
    const Entries entries = next;
    X x[size];
#pragma unroll
    for (int j = 0; j < size; ++j) {
      if (entries.exists(j)) x[j] = *reinterpret_cast<const X*>(b.x + int64_t(entries.column[j]) * b.a.k + c);
    }
    next = Entries(b, tile.entry + at + size, tile.entry + tile.entries, 1);
#pragma unroll
    for (int j = 0; j < size; ++j) {
#pragma unroll 1
      while (end <= at + j) close_row();
      if (!entries.exists(j)) continue;
#pragma unroll
      for (int i = 0; i < C::width; ++i) sum[i] += Acc(entries.value[j]) * Acc(x[j].v[i]);
    }
  }
#pragma unroll 1
  // Close the rows that end after the last entry; what is left belongs to a row that ends in a later tile.
  while (end <= tile.entries) close_row();
  keep(ends.tails);
  if (tile.bad || row != tile.rows) *ends.bad = 1;
}

template <class M>
void multiply_columns_by_path(const M& matrix, Context& context) {
  with_columns(matrix, matrix.a.x, [&](auto columns) {
    const CsrArgs& a = matrix.a;
    // Long tiles leave fewer rows incomplete; short tiles keep more of the device busy. Tiles of 16 to 256 items aim at
    // 2^18 lanes, about as many as an H200 has room for (132 multiprocessors with 2048 threads each).
    const int64_t groups = int64_t(1 << 18) / columns.lanes;
    const int items = int(tp::max(int64_t(16), tp::min(int64_t(256), (a.entries + a.rows) / groups)));
    const block::Path path(a.entries, a.rows, items, 1);
    by_path(matrix, path, context, [&](const auto& ends) {
      const dim3 blocks(unsigned(ceil_div(path.tiles * columns.lanes, int64_t(column_threads))),
                        unsigned(columns.strips));
      with_plan(a, [&](auto planned) {
        multiply_column_tiles<planned.value>
            <<<blocks, column_threads, 0, cudaStream_t(context.stream)>>>(matrix, path, columns, ends);
      });
      check_launch("merge_path");
    });
  });
}

}  // namespace tp::sparse
