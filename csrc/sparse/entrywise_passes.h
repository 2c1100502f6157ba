// The second and the third launch of A + B, A - B and A * B: counting the entries of C, and writing them
// (entrywise_tiles.h).
#pragma once
#include "sparse/entrywise_tiles.h"

namespace tp::sparse::entrywise_tiles {

// Counts the entries of C in each tile, and checks all columns.
template <class I>
struct CountEntries {
  Tiles<I> tiles;
  int64_t* counts;
  int* paired;  // [tiles]: whether A and B have the same positions in the tile

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto to = block.global("counts", counts, tiles.tiles + 1);
    const auto to_paired = block.global("paired", paired, tiles.tiles);
    const auto notes = tiles.found.bind(block);
    const auto give = [&](int64_t id, int entries, bool pairs) {
      const Finding kind = pairs ? some_pairs : some_others;
      if (!Findings::is_noted(notes, kind)) notes[kind] = boolean(true);  // writes to one address are slow
      to[id] = entries;
      to_paired[id] = pairs ? 1 : 0;
      if (id == tiles.tiles - 1) to[id + 1] = 0;
    };
    tiles.template each<true>(
        block, [](int64_t) { return int64_t(0); },
        [&](int64_t id, const auto& share) {
          block.phase("count pairs", [&](int t) {
            if (t == 0) give(id, share.na, true);
          });
        },
        [&](const auto& x, auto&) {
          block.phase("count", [&](int t) {
            if (t == 0) give(x.id, x.entries(), false);
          });
        });
  }
};

template <class T>
TP_HD T combine(Entrywise op, T x, T y) {
  using Acc = acc_t<T>;
  const Acc left(x), right(y);
  return T(Acc(op == Entrywise::add ? left + right : op == Entrywise::subtract ? left - right : left * right));
}

// What both kernels that write C need.
template <class T, class I>
struct Output {
  Tiles<I> tiles;
  Entrywise op;
  const T *a, *b;
  const int64_t* before;  // [tiles + 1]: how many entries of C come before each tile
  I *ptrs, *idx;
  T* values;
  int64_t entries;

  template <class Block>
  TP_HD auto bind_before(Block& block) const {
    return [from = block.global("before", before, tiles.tiles + 1)](int64_t id) {
      const int64_t entries = from[id];
      return entries;
    };
  }
};

// Writes the tiles of pairs: entry k of A in the tile and entry k + lead of B become entry k of C.
template <class T, class I>
struct WritePairs {
  Output<T, I> s;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto operands = s.tiles.operands.bind(block);
    const auto a_values = block.global("a_values", s.a, s.tiles.operands.a.entries);
    const auto b_values = block.global("b_values", s.b, s.tiles.operands.b.entries);
    const auto c_ptrs = block.global("row_ptrs", s.ptrs, s.tiles.operands.a.rows + 1);
    const auto c_idx = block.global("col_idx", s.idx, s.entries);
    const auto c = block.global("values", s.values, s.entries);
    const auto share_of = s.tiles.template shares<false>(block, s.bind_before(block));
    for (int64_t id = block.index().x; id < s.tiles.tiles; id += block.grid().x) {
      const auto share = share_of(id);
      if (share.state != Tiles<I>::of_pairs) continue;
      block.phase("write", [&](int t) {
        if (id == 0 && t == 0) c_ptrs[0] = I(0);
        for (int k = 1 + t; k <= share.rows; k += threads) {
          const int64_t end = operands.a_ptrs[share.row + k];
          c_ptrs[share.row + k] = I(share.before + end - share.a);
        }
        for (int k = t; k < share.na; k += threads) {
          const I column = operands.a_idx[share.a + k];
          const T left = a_values[share.a + k], right = b_values[share.b + k + share.lead];
          c_idx[share.before + k] = column;
          c[share.before + k] = combine(s.op, left, right);
        }
      });
    }
  }
};

// Writes all other tiles.
template <class T, class I>
struct WriteEntries {
  Output<T, I> s;

  static constexpr int64_t shared_bytes = Tiles<I>::shared_bytes + tile * 4;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Found = typename Tiles<I>::Found;
    const auto a_values = block.global("a_values", s.a, s.tiles.operands.a.entries);
    const auto b_values = block.global("b_values", s.b, s.tiles.operands.b.entries);
    const auto c_ptrs = block.global("row_ptrs", s.ptrs, s.tiles.operands.a.rows + 1);
    const auto c_idx = block.global("col_idx", s.idx, s.entries);
    const auto c = block.global("values", s.values, s.entries);
    const auto items = block.template shared<int>("items", tile);
    s.tiles.template each<false>(block, s.bind_before(block), nullptr, [&](const auto& x, auto& mine) {
      const auto& columns = x.arrays.columns;
      block.phase("collect", [&](int t) {
        const Found& seen = mine[t];
        int position = t > 0 ? int(x.arrays.sums[x.from + t - 1]) : 0;
        int64_t row = x.share.row + seen.row;
        if (x.id == 0 && t == 0) c_ptrs[0] = I(0);
        for (int k = 0; k < items_per_thread; ++k) {
          const int item = seen.items[k];
          if (item == Found::row_end) {
            c_ptrs[++row] = I(x.share.before + position);
          } else if (item != Found::nothing) {
            items[position++] = item;
          }
        }
      });
      block.phase("write", [&](int t) {
        const int n = x.entries();
        for (int k = t; k < n; k += threads) {
          const int item = items[k], i = Found::a_of(item), j = Found::b_of(item);
          I column;
          T left(0), right(0);
          if (i >= 0) {
            left = a_values[x.share.a + i];
            column = columns[1 + i];
          } else {
            column = columns[x.share.na + 2 + j];
          }
          if (j >= 0) right = b_values[x.share.b + j];
          c_idx[x.share.before + k] = column;
          c[x.share.before + k] = combine(s.op, left, right);
        }
      });
    });
  }
};

}  // namespace tp::sparse::entrywise_tiles
