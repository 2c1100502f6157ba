// merge_path for several columns: a group of lanes a tile, each lane some columns of Y. It walks its share of entries
// and row ends and keeps the sums of the row at hand in registers.
#pragma once
#include "sparse/csr/shares.cuh"

namespace tp::sparse {

constexpr int column_threads = 128;

template <bool planned, class M, class C>
__global__ __launch_bounds__(column_threads, 8) void multiply_column_tiles(const M matrix, const block::Path path,
                                                                           const C columns,
                                                                           const OpenEnds<typename M::Acc> ends) {
  using Acc = typename M::Acc;
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t tile = (int64_t(blockIdx.x) * column_threads + threadIdx.x) / columns.lanes;
  const int64_t c = (int64_t(blockIdx.y) * columns.lanes + int(threadIdx.x) % columns.lanes) * C::width;
  if (tile >= path.tiles || c >= b.a.k) return;
  const block::Split from = ends.splits[tile], to = ends.splits[tile + 1];
  const int64_t last_entry = tp::max(from.row, tp::min(to.row, from.row + path.items));
  const int64_t last_row = tp::max(from.segment, tp::min(to.segment, from.segment + path.items + 2));
  bool bad = last_entry != to.row || last_row != to.segment;
  bad |= tile == 0 && (int64_t(b.ptrs[0]) != 0 || int64_t(b.ptrs[b.a.rows]) != b.a.entries);

  RowSums<std::decay_t<decltype(b)>, C::width> sums;
  const auto keep = [&](Acc* to) {
#pragma unroll
    for (int i = 0; i < C::width; ++i) to[tile * b.a.k + c + i] = sums.sum[i];
  };
  sums.clear();
  int64_t entry = from.row, next = from.segment < last_row ? int64_t(b.ptrs[from.segment + 1]) : 0;
  for (int64_t row = from.segment; row < last_row; ++row) {
    const int64_t given = next;
    if (row + 1 < last_row) next = b.ptrs[row + 2];  // early, so that its load overlaps the row
    const int64_t end = tp::max(entry, tp::min(given, last_entry));
    bad |= end != given;
    sums.template add<planned>(b, entry, end, c);
    if (row == from.segment && b.pointer(row) < from.row) {
      keep(ends.heads);
    } else {
#pragma unroll
      for (int i = 0; i < C::width; ++i) b.store(row, c + i, sums.sum[i]);
    }
    sums.clear();
    entry = end;
  }
  sums.template add<planned>(b, entry, last_entry, c);
  keep(ends.tails);
  if (bad) *ends.bad = 1;
}

template <class M>
void multiply_columns_by_path(const M& matrix, Context& context) {
  with_columns(matrix, {matrix.a.x}, [&](auto columns) {
    const Args& a = matrix.a;
    // Long tiles leave few open ends, short ones keep more of the chip busy.
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
