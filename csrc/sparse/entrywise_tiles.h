// A + B, A - B and A * B in equal shares, whatever the lengths of the rows.
//
// Merge path (Odeh, Green, Mwassi, Shmueli and Birk 2012): walk along the entries of both matrices, row by row and in
// each row by columns, A's entry before B's where columns are equal, and visit the end of each row after its entries.
// Tile t gets the items from t * tile on. One launch searches for the starts of all tiles. A second one counts the
// entries of C in each tile. Their scan gives the number of entries of C, which the host reads, and a third launch
// walks again and writes C. In a tile, each thread searches for its own start in shared memory and walks a few items,
// and the entries of C that the threads find are collected in shared memory, so that writes coalesce.
//
// An entry of A is followed by the entry of B in the same place, if there is one, and this entry sees the one of A
// before it. So each step decides alone whether it makes an entry of C, even at the edge of a tile.
//
// The second launch checks columns, too. Walks of neighbours meet, and columns increase along them, exactly if all
// columns of each row are in order.
#pragma once
#include "core/for_each.h"
#include "core/partition_point.h"
#include "sparse/entrywise.h"
#include "sparse/matrix.h"

namespace tp::sparse::entrywise_tiles {

constexpr int threads = 256, items_per_thread = 8, tile = threads * items_per_thread;

// What is wrong with the operands, found on the device. The host reads all of it as one number.
enum Finding { invalid, a_not_in_order, b_not_in_order, findings };

struct Findings {
  int64_t* word;
  static_assert(findings <= sizeof(int64_t));

  TP_HD boolean* data() const { return reinterpret_cast<boolean*>(word); }
  template <class Block>
  TP_HD auto bind(Block& block) const {
    return block.global("findings", data(), findings, simt::Sharing::idempotent);
  }
};

template <class I>
struct Structure {
  const I *ptrs, *idx;
  int64_t entries, rows, cols;
};

// Checks row pointers: 0 first, the number of entries last, none less than the one before.
template <class I>
struct CheckPointers {
  Structure<I> m;
  Findings found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto ptrs = block.global("row_ptrs", m.ptrs, m.rows + 1);
    const auto to = found.bind(block);
    simt::for_each(block, "pointers", m.rows + 1, [&](int64_t i) {
      const int64_t here = ptrs[i], before = i > 0 ? int64_t(ptrs[i - 1]) : 0;
      if (here < before || (i == 0 && here != 0) || (i == m.rows && here != m.entries)) to[invalid] = boolean(true);
    });
  }
};

// ---- tiles

// The arrays of both structures.
template <class I>
struct Operands {
  Structure<I> a, b;

  int64_t items() const { return a.rows + a.entries + b.entries; }

  template <class Index>
  struct Bound {
    Index a_ptrs, a_idx, b_ptrs, b_idx;
  };
  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto array = [&](const char* name, const I* data, int64_t n) { return block.global(name, data, n); };
    const auto a_ptrs = array("a_row_ptrs", a.ptrs, a.rows + 1);
    return Bound<std::decay_t<decltype(a_ptrs)>>{a_ptrs, array("a_col_idx", a.idx, a.entries),
                                                 array("b_row_ptrs", b.ptrs, b.rows + 1),
                                                 array("b_col_idx", b.idx, b.entries)};
  }
};

// How many of the first k items of a row are entries of A, if A and B have na and nb there: a_before_b(i, j) tells
// whether entry i of A is before entry j of B.
template <class Int, class Before>
TP_HD Int of_a(Int k, Int na, Int nb, Before a_before_b) {
  return partition_point(tp::max(Int(0), k - nb), tp::min(k, na), [&](Int i) { return a_before_b(i, k - 1 - i); });
}

// Finds how many row ends and how many entries of A come before each tile.
template <class I>
struct Cut {
  Operands<I> operands;
  int64_t *rows, *of_a_, tiles, items;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = operands.bind(block);
    const auto cut_rows = block.global("cut_rows", rows, tiles + 1);
    const auto cut_a = block.global("cut_a", of_a_, tiles + 1);
    simt::for_each(block, "cut", tiles + 1, [&](int64_t t) {
      const int64_t d = tp::min(t * tile, items), all_rows = operands.a.rows;
      const int64_t row = partition_point(int64_t(0), all_rows, [&](int64_t i) {
        const int64_t a = x.a_ptrs[i + 1], b = x.b_ptrs[i + 1];
        return i + 1 + a + b <= d;
      });
      const int64_t a = x.a_ptrs[row], b = x.b_ptrs[row];
      int64_t n = 0;
      if (row < all_rows) {
        const int64_t a_end = x.a_ptrs[row + 1], b_end = x.b_ptrs[row + 1];
        n = of_a(d - row - a - b, a_end - a, b_end - b, [&](int64_t i, int64_t j) {
          const I left = x.a_idx[a + i], right = x.b_idx[b + j];
          return left <= right;
        });
      }
      cut_rows[t] = row;
      cut_a[t] = a + n;
    });
  }
};

// What the second and the third launch share.
template <class I>
struct Tiles {
  Operands<I> operands;
  Findings found;
  bool of_both;  // C has the places that both matrices have, not those that either has
  const int64_t *cut_rows, *cut_a;
  int64_t tiles, items;

  static constexpr int64_t shared_bytes =
      (tile + 3) * int64_t(sizeof(I)) + 2 * (tile + 2) * 2 + (threads + 1) * 2 + 2 * threads * 4 + 16;

  // Where a tile begins, and its numbers of row ends and of entries.
  struct Share {
    int64_t row, a, b, before;
    int rows, na, nb;
    int torn;  // 1 if rows are out of order, so that the tile is skipped
  };

  // The items of a thread that matter: the end of a row, or an entry of C, which comes from entry a - 1 of A and entry
  // b - 1 of B in the tile. a or b is 0 if there is none.
  struct Found {
    static constexpr int nothing = 0, row_end = -1;
    int row, items[items_per_thread];
    static TP_HD int entry(int a, int b) { return a | b << 16; }
    static TP_HD int a_of(int item) { return (item & 0xffff) - 1; }
    static TP_HD int b_of(int item) { return (item >> 16) - 1; }
  };
  static_assert(tile + 2 < 1 << 15, "places in a tile have 15 bits");

  // A tile in shared memory. The first sums[from + t] entries of C in it come from threads 0 to t. columns[1 + i] is
  // the column of entry i of A, for i from -1 on, and columns[na + 2 + j] that of entry j of B, for j from -1 to nb.
  template <class Columns, class Sums>
  struct Loaded {
    int64_t id;
    Share share;
    Columns columns;
    Sums sums;
    int from;
  };

  // Calls f(Loaded, the Found of each thread) for each tile. `first(tile)` tells how many entries of C come before it.
  // With `check`, columns that are out of range or not in order are noted.
  template <bool check, class Block, class First, class F>
  TP_HD void each(Block& block, First first, F f) const {
    const auto notes = found.bind(block);
    const auto x = operands.bind(block);
    const auto rows_before = block.global("cut_rows", cut_rows, tiles + 1);
    const auto a_before = block.global("cut_a", cut_a, tiles + 1);
    const auto columns = block.template shared<I>("columns", tile + 3);
    const auto sums = block.template shared<int>("sums", 2 * threads);
    const auto a_ends = block.template shared<int16_t>("a_ends", tile + 2);
    const auto b_ends = block.template shared<int16_t>("b_ends", tile + 2);
    const auto starts = block.template shared<int16_t>("starts", threads + 1);
    auto mine = block.template per_lane<Found>("seen");
    auto end = block.template per_lane<int>("end");
    for (int64_t id = block.index().x; id < tiles; id += block.grid().x) {
      const Share s = block.uniform("share", [&] {
        Share share{};
        const int64_t row = rows_before[id], a = a_before[id], next_row = rows_before[id + 1],
                      next_a = a_before[id + 1];
        const int64_t b = id * tile - row - a, next_b = tp::min((id + 1) * tile, items) - next_row - next_a;
        share.row = row, share.a = a, share.b = b;
        share.before = first(id);
        share.torn = next_a < a || next_b < b ? 1 : 0;
        if (share.torn == 1) return share;
        share.rows = int(next_row - row), share.na = int(next_a - a), share.nb = int(next_b - b);
        return share;
      });
      const int na = s.na, nb = s.nb, n = s.rows + na + nb;
      const int b_loaded = int(tp::min(int64_t(nb) + 1, operands.b.entries - s.b));
      block.phase("load", [&](int t) {
        for (int k = t; k <= na; k += threads) {
          if (s.a + k > 0) columns[k] = x.a_idx[s.a + k - 1];
        }
        for (int k = t; k <= nb + 1; k += threads) {
          if (s.b + k > 0 && k <= b_loaded) columns[na + 1 + k] = x.b_idx[s.b + k - 1];
        }
        // Row k of the tile begins at k and ends at k + 1, as far as it can be told from what is loaded.
        for (int k = t; k <= s.rows + 1; k += threads) {
          const int64_t row = tp::min(s.row + k, operands.a.rows), a = x.a_ptrs[row], b = x.b_ptrs[row];
          a_ends[k] = int16_t(tp::max(int64_t(-1), tp::min(a - s.a, int64_t(na) + 1)));
          b_ends[k] = int16_t(tp::max(int64_t(-1), tp::min(b - s.b, int64_t(nb) + 1)));
        }
        if (check && t == 0) starts[threads] = int16_t(na);
        if (check && t == 0 && s.torn == 1) {
          notes[a_not_in_order] = boolean(true);
          notes[b_not_in_order] = boolean(true);
        }
      });
      block.phase("walk", [&](int t) {
        const int d = tp::min(t * items_per_thread, n);
        int row = partition_point(0, s.rows, [&](int k) {
          const int a = a_ends[k + 1], b = b_ends[k + 1];
          return k + 1 + a + b <= d;
        });
        const int a_begin = a_ends[row], b_begin = b_ends[row];
        int a_end = a_ends[row + 1], b_end = b_ends[row + 1];
        int i = tp::max(a_begin, 0), j = tp::max(b_begin, 0);
        i += of_a(d - row - i - j, tp::min(a_end, na) - i, tp::min(b_end, nb) - j, [&](int u, int v) {
          const I left = columns[1 + i + u], right = columns[na + 2 + j + v];
          return left <= right;
        });
        j = d - row - i;
        if (check) starts[t] = int16_t(i);
        // The columns of entries i and j, and those before them in the row, or -1.
        I left(0), right(0), before_left(-1), before_right(-1);
        if (i < na) left = columns[1 + i];
        if (j < b_loaded) right = columns[na + 2 + j];
        if (i > a_begin) before_left = columns[i];
        if (j > b_begin) before_right = columns[na + 1 + j];
        Found seen{};
        seen.row = row;
        int count = 0;
        for (int k = 0; k < items_per_thread; ++k) {
          if (d + k >= n) continue;
          const bool has_a = i < tp::min(a_end, na), has_b = j < tp::min(b_end, nb);
          if (!has_a && !has_b) {
            seen.items[k] = Found::row_end;
            ++row;
            if (row <= s.rows) a_end = a_ends[row + 1], b_end = b_ends[row + 1];
            before_left = before_right = I(-1);
            continue;
          }
          const bool from_a = has_a && (!has_b || left <= right);
          const bool both = from_a ? j < b_end && left == right : before_left == right;
          if (of_both ? from_a && both : from_a || !both) {
            seen.items[k] = Found::entry(from_a ? i + 1 : 0, from_a && !both ? 0 : j + 1);
            ++count;
          }
          const I column = from_a ? left : right;
          if (check) {
            if ((from_a ? before_left : before_right) >= column) {
              notes[from_a ? a_not_in_order : b_not_in_order] = boolean(true);
            }
            if (!inside(column, operands.a.cols)) notes[invalid] = boolean(true);
          }
          i += from_a ? 1 : 0, j += from_a ? 0 : 1;
          I next(0);
          if (from_a ? i < na : j < b_loaded) next = columns[from_a ? 1 + i : na + 2 + j];
          if (from_a) {
            before_left = column, left = next;
          } else {
            before_right = column, right = next;
          }
        }
        mine[t] = seen;
        end[t] = i;
        sums[t] = count;
      });
      if (check) {
        block.phase("meet", [&](int t) {  // the walks of neighbours
          const int next = starts[t + 1];
          if (end[t] == next) return;
          notes[a_not_in_order] = boolean(true);
          notes[b_not_in_order] = boolean(true);
        });
      }
      int from = 0;  // where the sums are; each step writes the other half
      for (int stride = 1; stride < threads; stride *= 2, from = threads - from) {
        block.phase("scan", [&](int t) {
          int sum = sums[from + t];
          if (t >= stride) sum += int(sums[from + t - stride]);
          sums[threads - from + t] = sum;
        });
      }
      f(Loaded<decltype(columns), decltype(sums)>{id, s, columns, sums, from}, mine);
    }
  }
};

// Counts the entries of C in each tile, and checks all columns.
template <class I>
struct CountEntries {
  Tiles<I> tiles;
  int64_t* counts;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto to = block.global("counts", counts, tiles.tiles + 1);
    tiles.template each<true>(
        block, [](int64_t) { return int64_t(0); },
        [&](const auto& x, auto&) {
          block.phase("count", [&](int t) {
            if (t > 0) return;
            const int sum = x.sums[x.from + threads - 1];
            to[x.id] = sum;
            if (x.id == tiles.tiles - 1) to[x.id + 1] = 0;
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

// Writes C.
template <class T, class I>
struct WriteEntries {
  Tiles<I> tiles;
  Entrywise op;
  const T *a, *b;
  const int64_t* before;  // [tiles + 1]: how many entries of C come before each tile
  I *ptrs, *idx;
  T* values;
  int64_t entries;

  static constexpr int64_t shared_bytes = Tiles<I>::shared_bytes + tile * 4;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Found = typename Tiles<I>::Found;
    const auto a_values = block.global("a_values", a, tiles.operands.a.entries);
    const auto b_values = block.global("b_values", b, tiles.operands.b.entries);
    const auto first = block.global("before", before, tiles.tiles + 1);
    const auto c_ptrs = block.global("row_ptrs", ptrs, tiles.operands.a.rows + 1);
    const auto c_idx = block.global("col_idx", idx, entries);
    const auto c = block.global("values", values, entries);
    const auto items = block.template shared<int>("items", tile);
    const auto start = [&](int64_t id) {
      const int64_t place = first[id];
      return place;
    };
    tiles.template each<false>(block, start, [&](const auto& x, auto& mine) {
      block.phase("collect", [&](int t) {
        const Found& seen = mine[t];
        int place = t > 0 ? int(x.sums[x.from + t - 1]) : 0;
        int64_t row = x.share.row + seen.row;
        if (x.id == 0 && t == 0) c_ptrs[0] = I(0);
        for (int k = 0; k < items_per_thread; ++k) {
          const int item = seen.items[k];
          if (item == Found::row_end) {
            c_ptrs[++row] = I(x.share.before + place);
          } else if (item != Found::nothing) {
            items[place++] = item;
          }
        }
      });
      block.phase("write", [&](int t) {
        const int n = x.sums[x.from + threads - 1];
        for (int k = t; k < n; k += threads) {
          const int item = items[k], i = Found::a_of(item), j = Found::b_of(item);
          I column;
          T left(0), right(0);
          if (i >= 0) {
            left = a_values[x.share.a + i];
            column = x.columns[1 + i];
          } else {
            column = x.columns[x.share.na + 2 + j];
          }
          if (j >= 0) right = b_values[x.share.b + j];
          c_idx[x.share.before + k] = column;
          c[x.share.before + k] = combine(op, left, right);
        }
      });
    });
  }
};

}  // namespace tp::sparse::entrywise_tiles
