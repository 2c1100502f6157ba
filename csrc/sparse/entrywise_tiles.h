// A + B, A - B and A * B in equal shares, whatever the lengths of the rows.
//
// Merge path (Odeh, Green, Mwassi, Shmueli and Birk 2012): walk along the entries of both matrices, row by row and in
// each row by columns, A's entry before B's where columns are equal, and visit the end of each row after its entries.
// Tile t gets the items from t * tile on. One launch searches for the starts of all tiles. A second one counts the
// entries of C in each tile. Their scan gives the number of entries of C, which the host reads, and a third launch
// walks again and writes C. In a tile, each thread searches for its own start in shared memory and walks a few items,
// and the entries of C that the threads find are collected in shared memory, so that writes coalesce.
//
// An entry of A is followed by the entry of B at the same position, if there is one, and this entry sees the one of A
// before it. So each step decides alone whether it makes an entry of C, even at the edge of a tile.
//
// The second launch checks columns, too. Walks of neighbours meet, and columns increase along them, exactly if all
// columns of each row are in order.
//
// Often A and B have entries at the same positions. Then before each tile there is at most one entry of A whose equal
// one of B is yet to come (the lead), and the second launch compares the columns of both instead of walking. In such a
// tile of pairs, C has the positions of A, and a launch without any search writes it.
#pragma once
#include "core/for_each.h"
#include "core/partition_point.h"
#include "sparse/check_columns.h"
#include "sparse/entrywise.h"
#include "sparse/matrix.h"
#include "sparse/running_sums.h"

namespace tp::sparse::entrywise_tiles {

constexpr int threads = 256, items_per_thread = 8, tile = threads * items_per_thread;

// What is wrong with the operands, and which kinds of tiles there are, found on the device. The host reads all of it as
// one number.
enum Finding { bad_pointers, invalid, a_not_in_order, b_not_in_order, some_pairs, some_others, findings };

struct Findings {
  int64_t* word;
  static_assert(findings <= sizeof(int64_t));

  TP_HD boolean* data() const { return reinterpret_cast<boolean*>(word); }
  template <class Block>
  TP_HD auto bind(Block& block) const {
    return block.global("findings", data(), findings, simt::Sharing::idempotent);
  }
  template <class Notes>
  static TP_HD bool is_noted(const Notes& notes, Finding finding) {
    const boolean noted = notes[finding];
    return bool(noted);
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
      if (wrong_pointer(ptrs, i, m.rows, m.entries)) to[bad_pointers] = boolean(true);
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

// Finds how many row ends and how many entries of A come before each tile, and its lead: how many more of these are in
// its first row than entries of B, if 0 or 1, and otherwise 2.
template <class I>
struct Cut {
  Operands<I> operands;
  Findings found;
  int64_t *rows, *of_a_, tiles, items;
  int* leads;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = operands.bind(block);
    const auto cut_rows = block.global("cut_rows", rows, tiles + 1);
    const auto cut_a = block.global("cut_a", of_a_, tiles + 1);
    const auto to_leads = block.global("leads", leads, tiles + 1);
    const auto notes = found.bind(block);
    simt::for_each(block, "cut", tiles + 1, [&](int64_t t) {
      if (Findings::is_noted(notes, bad_pointers)) return;  // nothing may be read through them
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
      const int64_t lead = 2 * n - (d - row - a - b);
      to_leads[t] = lead == 0 || lead == 1 ? int(lead) : 2;
    });
  }
};

// What the second and the third launch share.
template <class I>
struct Tiles {
  Operands<I> operands;
  Findings found;
  bool of_both;  // C has an entry where both matrices have one, not where either has
  const int64_t *cut_rows, *cut_a;
  const int *leads, *paired;  // [tiles + 1], [tiles]: whether A and B have the same positions in the tile
  int64_t tiles, items;

  static constexpr int64_t shared_bytes =
      (tile + 3) * int64_t(sizeof(I)) + 2 * (tile + 2) * 2 + (threads + 1) * 2 + (2 * threads + 1) * 4 + 16;

  // Where a tile begins, and its numbers of row ends and of entries.
  struct Share {
    int64_t row, a, b, before;
    int rows, na, nb;
    int b_loaded;  // how many columns of B are loaded: those of the tile, and one more if there is one
    int lead, state;
  };
  // A tile is torn, and skipped, if rows are out of order; all tiles are hopeless if pointers are wrong. Before columns
  // are compared, a tile is of pairs if its numbers of entries fit.
  enum { plain, torn, of_pairs, hopeless };

  // The items of a thread that matter: the end of a row, or an entry of C, which comes from entry a - 1 of A and entry
  // b - 1 of B in the tile. a or b is 0 if there is none.
  struct Found {
    static constexpr int nothing = 0, row_end = -1;
    int row, items[items_per_thread];
    static TP_HD int entry(int a, int b) { return a | b << 16; }
    static TP_HD int a_of(int item) { return (item & 0xffff) - 1; }
    static TP_HD int b_of(int item) { return (item >> 16) - 1; }
  };
  static_assert(tile + 2 < 1 << 15, "positions in a tile have 15 bits");

  // The share of a tile; before(id) tells how many entries of C come before it. With `check`, pointers may be wrong.
  template <bool check, class Block, class Before>
  TP_HD auto shares(Block& block, Before before) const {
    const auto rows_before = block.global("cut_rows", cut_rows, tiles + 1);
    const auto a_before = block.global("cut_a", cut_a, tiles + 1);
    const auto all_leads = block.global("leads", leads, tiles + 1);
    const auto are_pairs = block.global("paired", paired, tiles);
    const auto notes = found.bind(block);
    return [this, &block, rows_before, a_before, all_leads, are_pairs, notes, before](int64_t id) {
      return block.uniform("share", [&] {
        // Loads come first, so that they do not wait for each other.
        const int64_t row = rows_before[id], a = a_before[id], next_row = rows_before[id + 1],
                      next_a = a_before[id + 1];
        const int lead = all_leads[id];
        int next_lead = 0;
        bool pairs = false;
        if constexpr (check) {
          next_lead = all_leads[id + 1];
        } else {
          pairs = int(are_pairs[id]) != 0;
        }
        Share share{};
        share.state = torn;
        if constexpr (check) {
          if (Findings::is_noted(notes, bad_pointers)) share.state = hopeless;
          if (share.state == hopeless) return share;
        }
        const int64_t b = id * tile - row - a, next_b = tp::min((id + 1) * tile, items) - next_row - next_a;
        share.row = row, share.a = a, share.b = b;
        if (next_a < a || next_b < b) return share;
        share.rows = int(next_row - row), share.na = int(next_a - a), share.nb = int(next_b - b);
        share.b_loaded = int(tp::min(next_b - b + 1, operands.b.entries - b));
        share.lead = lead;
        if (check) pairs = lead <= 1 && next_lead <= 1 && share.na + lead == share.nb + next_lead;
        share.state = pairs ? of_pairs : plain;
        share.before = before(id);
        return share;
      });
    };
  }

  // The arrays of a block. columns[1 + i] is the column of entry i of A in the tile, for i from -1 on, and
  // columns[na + 2 + j] that of entry j of B, for j from -1 to nb. Row k of the tile ends at a_ends[k + 1] and
  // b_ends[k + 1], as far as it can be told from what is loaded.
  template <class Block>
  struct Arrays {
    decltype(std::declval<const Findings&>().bind(std::declval<Block&>())) notes;
    decltype(std::declval<const Operands<I>&>().bind(std::declval<Block&>())) x;
    decltype(std::declval<Block&>().template shared<I>("", 0)) columns;
    decltype(std::declval<Block&>().template shared<int>("", 0)) sums, differ;
    decltype(std::declval<Block&>().template shared<int16_t>("", 0)) a_ends, b_ends, starts;

    TP_HD Arrays(Block& block, const Tiles& all)
        : notes(all.found.bind(block)),
          x(all.operands.bind(block)),
          columns(block.template shared<I>("columns", tile + 3)),
          sums(block.template shared<int>("sums", 2 * threads)),
          differ(block.template shared<int>("differ", 1)),
          a_ends(block.template shared<int16_t>("a_ends", tile + 2)),
          b_ends(block.template shared<int16_t>("b_ends", tile + 2)),
          starts(block.template shared<int16_t>("starts", threads + 1)) {}
  };

  // A tile that was walked. The first sums[from + t] entries of C in it come from threads 0 to t.
  template <class Block>
  struct Walked {
    int64_t id;
    const Share& share;
    const Arrays<Block>& arrays;
    int from;
    TP_HD int entries() const { return arrays.sums[from + threads - 1]; }
  };

  // Calls f(Walked, the Found of each thread) for each tile that is not of pairs. With `check`, columns that are out of
  // range or not in order are noted, and tiles of pairs are found, for which it calls pairs(id, Share).
  template <bool check, class Block, class Before, class Pairs, class F>
  TP_HD void each(Block& block, Before before, Pairs pairs, F f) const {
    const Arrays<Block> arrays(block, *this);
    const auto share_of = shares<check>(block, before);
    auto mine = block.template per_lane<Found>("seen");
    auto end = block.template per_lane<int>("end");
    for (int64_t id = block.index().x; id < tiles; id += block.grid().x) {
      const Share s = share_of(id);
      if (s.state == (check ? hopeless : of_pairs)) continue;
      load<check>(block, arrays, s);
      if constexpr (check) {
        if (s.state == of_pairs && are_same(block, arrays, s)) {
          pairs(id, s);
          continue;
        }
      }
      block.phase("walk", [&](int t) { walk<check>(arrays, s, t, mine[t], end[t]); });
      if constexpr (check) {
        // The walks of neighbours meet if columns are in order.
        block.phase("meet", [&](int t) {
          const int next = arrays.starts[t + 1];
          if (end[t] != next) note_both(arrays);
        });
      }
      const int from = running_sums(block, arrays.sums);
      f(Walked<Block>{id, s, arrays, from}, mine);
    }
  }

 private:
  template <class Arrays>
  static TP_HD void note_both(const Arrays& m) {
    m.notes[a_not_in_order] = boolean(true);
    m.notes[b_not_in_order] = boolean(true);
  }

  template <bool check, class Block>
  TP_HD void load(Block& block, const Arrays<Block>& m, const Share& s) const {
    const int na = s.na, nb = s.nb, b_loaded = s.b_loaded;
    block.phase("load", [&](int t) {
      for (int k = t; k <= na; k += threads) {
        if (s.a + k > 0) m.columns[k] = m.x.a_idx[s.a + k - 1];
      }
      for (int k = t; k <= nb + 1; k += threads) {
        if (s.b + k > 0 && k <= b_loaded) m.columns[na + 1 + k] = m.x.b_idx[s.b + k - 1];
      }
      for (int k = t; k <= s.rows + 1; k += threads) {
        const int64_t row = tp::min(s.row + k, operands.a.rows), a = m.x.a_ptrs[row], b = m.x.b_ptrs[row];
        m.a_ends[k] = int16_t(tp::max(int64_t(-1), tp::min(a - s.a, int64_t(na) + 1)));
        m.b_ends[k] = int16_t(tp::max(int64_t(-1), tp::min(b - s.b, int64_t(nb) + 1)));
      }
      if (check && t == 0) {
        m.starts[threads] = int16_t(na);
        m.differ[0] = 0;
        if (s.state == torn) note_both(m);
      }
    });
  }

  // Whether entry i of A and entry i + lead of B, of the same rows, are all equal; in order, and in range.
  template <class Block>
  TP_HD bool are_same(Block& block, const Arrays<Block>& m, const Share& s) const {
    const int lead = s.lead, b_loaded = s.b_loaded, next_lead = s.na + lead - s.nb;
    // A column may be less than the one before it only where a row begins.
    const auto descends = [&](const auto& ends, int k, int position) {
      const I before = m.columns[k - 1], column = m.columns[k];
      if (before < column) return false;
      return int(ends[partition_point(0, s.rows, [&](int row) { return int(ends[row]) < position; })]) != position;
    };
    block.phase("compare", [&](int t) {
      bool differ = false;
      for (int i = t - lead; i < s.na; i += threads) {
        if (i + lead >= b_loaded) {
          differ = true;
          continue;
        }
        const I column = m.columns[1 + i], other = m.columns[s.na + 2 + i + lead];
        differ = differ || column != other || !inside(int64_t(column), operands.a.cols);
        if (i >= 0 && s.a + i > 0) differ = differ || descends(m.a_ends, 1 + i, i);
      }
      for (int k = 1 + t; k <= s.rows; k += threads) differ = differ || int(m.a_ends[k]) + lead != int(m.b_ends[k]);
      if (t == 0 && s.b > 0 && s.nb > 0) differ = differ || descends(m.b_ends, s.na + 2, 0);
      if (t == 0 && next_lead == 1) differ = differ || int(m.b_ends[s.rows + 1]) <= s.nb;
      if (differ) m.differ.template atomic<Max<int>>(0, 1);
    });
    return block.uniform("differ", [&] { return int(m.differ[0]) == 0; });
  }

  // The items of one thread: counts the entries of C, and tells where in A its walk ends.
  template <bool check, class Arrays>
  TP_HD void walk(const Arrays& m, const Share& s, int t, Found& mine, int& end) const {
    const int na = s.na, nb = s.nb, n = s.rows + na + nb, b_loaded = s.b_loaded;
    const int d = tp::min(t * items_per_thread, n);
    int row = partition_point(0, s.rows, [&](int k) {
      const int a = m.a_ends[k + 1], b = m.b_ends[k + 1];
      return k + 1 + a + b <= d;
    });
    const int a_begin = m.a_ends[row], b_begin = m.b_ends[row];
    int a_end = m.a_ends[row + 1], b_end = m.b_ends[row + 1];
    int i = tp::max(a_begin, 0), j = tp::max(b_begin, 0);
    i += of_a(d - row - i - j, tp::min(a_end, na) - i, tp::min(b_end, nb) - j, [&](int u, int v) {
      const I left = m.columns[1 + i + u], right = m.columns[na + 2 + j + v];
      return left <= right;
    });
    j = d - row - i;
    if (check) m.starts[t] = int16_t(i);
    // The columns of entries i and j, and those before them in the row, or -1.
    I left(0), right(0), before_left(-1), before_right(-1);
    if (i < na) left = m.columns[1 + i];
    if (j < b_loaded) right = m.columns[na + 2 + j];
    if (i > a_begin) before_left = m.columns[i];
    if (j > b_begin) before_right = m.columns[na + 1 + j];
    Found seen{};
    seen.row = row;
    int count = 0;
    for (int k = 0; k < items_per_thread; ++k) {
      if (d + k >= n) continue;
      const bool has_a = i < tp::min(a_end, na), has_b = j < tp::min(b_end, nb);
      if (!has_a && !has_b) {
        seen.items[k] = Found::row_end;
        ++row;
        if (row <= s.rows) a_end = m.a_ends[row + 1], b_end = m.b_ends[row + 1];
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
      if (check) note(m, from_a, from_a ? before_left : before_right, column);
      i += from_a ? 1 : 0, j += from_a ? 0 : 1;
      I next(0);
      if (from_a ? i < na : j < b_loaded) next = m.columns[from_a ? 1 + i : na + 2 + j];
      if (from_a) {
        before_left = column, left = next;
      } else {
        before_right = column, right = next;
      }
    }
    if (check) end = i;
    mine = seen;
    m.sums[t] = count;
  }

  // Notes what is wrong with a column and the one before it.
  template <class Arrays>
  TP_HD void note(const Arrays& m, bool from_a, I before, I column) const {
    if (before >= column) m.notes[from_a ? a_not_in_order : b_not_in_order] = boolean(true);
    if (!inside(column, operands.a.cols)) m.notes[invalid] = boolean(true);
  }
};

}  // namespace tp::sparse::entrywise_tiles
