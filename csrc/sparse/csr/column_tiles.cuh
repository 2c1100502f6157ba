// merge_path for several columns. Each tile has a group of lanes, and each lane some columns of Y. The group walks
// along its share of entries and row ends, with the sums of the current row in registers. The next entries are loaded
// together with the rows of X that the current ones need.
#pragma once
#include "sparse/csr/shares.cuh"

namespace tp::sparse {

constexpr int column_threads = 128;

// `size` neighbouring entries, the first of which has an index that is a multiple of `size`, so that they are loaded 16
// bytes at a time.
template <class B, int size, bool planned>
struct EntryRun {
  using T = typename B::Value;
  using I = typename B::Position;
  I column[size];  // -1 if there is no such entry, or if its column is outside the matrix
  T value[size];

  // Reads an array from its element 0 on: all `size` elements if they exist, otherwise elements low to high - 1.
  template <class E>
  TP_DEVICE static void fetch(const E* array, bool all_exist, int low, int high, E (&to)[size]) {
    constexpr int width = tp::min(size, int(16 / sizeof(E)));
    using V = block::Vector<E, width>;
#pragma unroll
    for (int j = 0; j < size; j += width) {
      V v{};
      if (all_exist) {
        v = *reinterpret_cast<const V*>(array + j);
      } else {
#pragma unroll
        for (int l = 0; l < width; ++l) {
          if (j + l >= low && j + l < high) v.v[l] = array[j + l];
        }
      }
#pragma unroll
      for (int l = 0; l < width; ++l) to[j + l] = v.v[l];
    }
  }
  // Loads entries low to high - 1 of those from entry `at` on.
  TP_DEVICE void load(const B& b, bool aligned, int64_t at, int low, int high) {
    using U = typename std::make_unsigned<I>::type;
    const U cols = U(tp::min(b.a.cols, int64_t(std::numeric_limits<I>::max())));
    const bool all_exist = aligned && high > 0 && at + size <= b.a.entries;
    I entry[size];
    if constexpr (planned) fetch(b.perm + at, all_exist, low, high, entry);
    if (!planned || !b.a.perm_indexes) fetch(b.col_idx + at, all_exist, low, high, column);
    if constexpr (!planned) fetch(b.values + at, all_exist, low, high, value);
#pragma unroll
    for (int j = 0; j < size; ++j) {
      bool exists = j >= low && j < high;
      if constexpr (planned) {
        exists = exists && inside(entry[j], b.a.entries);
        value[j] = exists ? b.values[entry[j]] : T(0);
        if (b.a.perm_indexes && exists) column[j] = b.col_idx[entry[j]];
      }
      column[j] = exists && U(column[j]) < cols ? column[j] : I(-1);
    }
  }
  TP_DEVICE bool exists(int j) const { return column[j] >= 0; }
};

template <bool planned, class M, class C>
__global__ __launch_bounds__(column_threads, 7) void multiply_column_tiles(const M matrix, const block::Path path,
                                                                           const C columns,
                                                                           const OpenEnds<typename M::Acc> ends,
                                                                           bool aligned, bool y_aligned) {
  using T = typename M::T;
  using Acc = typename M::Acc;
  using X = block::Vector<T, C::width>;
  using Sums = block::Vector<Acc, C::width>;
  constexpr int size = 4;
  block::allow_next_launch();
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t number = (int64_t(blockIdx.x) * column_threads + threadIdx.x) / columns.lanes;
  const int64_t c = (int64_t(blockIdx.y) * columns.lanes + int(threadIdx.x) % columns.lanes) * C::width;
  block::wait_for_launch_before();
  if (number >= path.tiles || c >= b.a.k) return;
  Tile tile(b, path, ends.splits, number);
  Sums sum{};
  const auto keep = [&](Acc* to) { *reinterpret_cast<Sums*>(to + number * b.a.k + c) = sum; };
  const bool by_vectors = y_aligned && b.alone();
  const auto store = [&](int64_t row) {
    if (by_vectors) {
      X y;
#pragma unroll
      for (int i = 0; i < C::width; ++i) y.v[i] = T(sum.v[i]);
      *reinterpret_cast<X*>(b.y + row * b.a.k + c) = y;
    } else {
#pragma unroll
      for (int i = 0; i < C::width; ++i) b.store(row, c + i, sum.v[i]);
    }
  };
  // The end of the current row, and of the next one, which is loaded one row early.
  int row = 0, end = tile.end(b, 0), next_end = tile.end(b, 1);
  tile.bad |= end < 0;
  const auto close_row = [&] {
    if (row == 0 && tile.cut) {
      keep(ends.heads);
    } else {
      store(tile.row + row);
    }
    sum = Sums{};
    tile.bad |= next_end < end;
    end = next_end;
    next_end = tile.end(b, ++row + 1);  // loaded early, so that the load overlaps the row
  };
  using Run = EntryRun<std::decay_t<decltype(b)>, size, planned>;
  const int first = -int(tile.entry % size);
  Run next;
  next.load(b, aligned, tile.entry + first, -first, tile.entries - first);
  // Walk along the entries, `size` at a time: read their rows of X, load the next entries, then add each entry to the
  // sums, after closing the rows that end before it.
  for (int at = first; at < tile.entries; at += size) {
    const Run run = next;
    X x[size];
#pragma unroll
    for (int j = 0; j < size; ++j) {
      if (run.exists(j)) x[j] = *reinterpret_cast<const X*>(b.x + int64_t(run.column[j]) * b.a.k + c);
    }
    next.load(b, aligned, tile.entry + at + size, 0, tile.entries - at - size);
#pragma unroll
    for (int j = 0; j < size; ++j) {
#pragma unroll 1
      while (end <= at + j) close_row();
      if (!run.exists(j)) continue;
#pragma unroll
      for (int i = 0; i < C::width; ++i) sum.v[i] += Acc(run.value[j]) * Acc(x[j].v[i]);
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
    const bool aligned = is_aligned(a.values) && is_aligned(a.col_idx) && is_aligned(a.perm);
    by_path(matrix, path, context, [&](const auto& ends) {
      const dim3 blocks(unsigned(ceil_div(path.tiles * columns.lanes, int64_t(column_threads))),
                        unsigned(columns.strips));
      with_plan(a, [&](auto planned) {
        block::launch_early(multiply_column_tiles<decltype(planned)::value, M, decltype(columns)>, blocks,
                            column_threads, 0, context, matrix, path, columns, ends, aligned, is_aligned(a.y));
      });
      check_launch("merge_path");
    });
  });
}

}  // namespace tp::sparse
