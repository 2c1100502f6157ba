// The factors of a sparse product as a block sees them that computes a row of C: the entries of A in the row, and the
// rows of B that they scale.
#pragma once
#include "core/bits.h"
#include "core/for_each.h"
#include "core/partition_point.h"
#include "sparse/matrix.h"
#include "sparse/running_sums.h"
#include "sparse/spgemm/row_groups.h"

namespace tp::sparse {

// Arrays of a block.
template <class Block, class X>
using Shared = decltype(std::declval<Block&>().template shared<X>("", 0));
template <class Block, class X>
using Global = decltype(std::declval<Block&>().global("", std::declval<X*>(), 0));

// A row of A, and its products.
struct Row {
  int64_t begin, end, first, last;
  TP_HD int64_t entries() const { return end - begin; }
  TP_HD int64_t products() const { return last - first; }
  TP_HD bool is_short() const { return sparse::is_short(entries(), products()); }
};

// The operands, and where the products of each entry of A begin.
template <class I>
struct Factors {
  const I *a_ptrs, *a_idx, *b_ptrs, *b_idx;
  const int64_t* before;  // [a_entries + 1]
  int64_t rows, inner, a_entries, b_entries;

  template <class Index, class Long>
  struct Bound {
    Index a_ptrs, a_idx, b_ptrs, b_idx;
    Long before;
    TP_HD int64_t products_before(int64_t row) const {
      const int64_t entry = a_ptrs[row], products = before[entry];
      return products;
    }
    TP_HD Row row(int64_t i) const {
      const int64_t begin = a_ptrs[i], end = a_ptrs[i + 1], first = before[begin], last = before[end];
      return {begin, end, first, last};
    }
  };
  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto index = [&](const char* name, const I* data, int64_t n) { return block.global(name, data, n); };
    const auto a = index("a_row_ptrs", a_ptrs, rows + 1);
    const auto long_array = block.global("before", before, a_entries + 1);
    return Bound<std::decay_t<decltype(a)>, std::decay_t<decltype(long_array)>>{
        a, index("a_col_idx", a_idx, a_entries), index("b_row_ptrs", b_ptrs, inner + 1),
        index("b_col_idx", b_idx, b_entries), long_array};
  }
};

// Counts the products of each entry of A, with a 0 after the last, and sets *wrong if a column of A is out of range.
// The pointers of B may be wrong, too, but then the counts are not used.
template <class I, class Number>
struct CountProducts {
  Factors<I> factors;  // before is not used
  Number* counts;
  boolean* wrong;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = factors.bind(block);
    const auto to = block.global("counts", counts, factors.a_entries + 1);
    const auto to_wrong = block.global("wrong", wrong, 1, simt::Sharing::idempotent);
    simt::for_each(block, "count", factors.a_entries + 1, [&](int64_t e) {
      int64_t n = 0;
      if (e < factors.a_entries) {
        const int64_t k = x.a_idx[e];
        if (inside(k, factors.inner)) {
          const int64_t begin = x.b_ptrs[k], end = x.b_ptrs[k + 1];
          n = end - begin;
        } else {
          to_wrong[0] = boolean(true);
        }
      }
      to[e] = Number(n);
    });
  }
};

// The smallest b with 2^b >= n.
TP_HD inline int bits_of(int64_t n) {
  int bits = 0;
  while (int64_t(1) << bits < n) ++bits;
  return bits;
}

// The rows of C that one kernel computes. Where most belong to other kernels, a block has a share of several rows, at
// all of which it looks at once.
template <class Block>
class ChosenRows {
 public:
  static constexpr int64_t shared_bytes = sizeof(int);
  // At most 32 rows, and so few that there are many blocks for each that a device holds at once.
  static int share_of(int64_t rows) { return int(tp::max(int64_t(1), tp::min(rows >> 16, int64_t(32)))); }

  TP_HD explicit ChosenRows(Block& block) : chosen_(block.template shared<int>("chosen", 1)) {}

  // Calls f(i) for all rows i of the block's shares for which own(row) is true.
  template <class Own, class F>
  TP_HD void each(Block& block, int64_t rows, int share, Own own, F f) const {
    for (int64_t first = block.index().x * share; first < rows; first += block.grid().x * share) {
      for (uint32_t rest = choose(block, first, rows, share, own); rest != 0; rest &= rest - 1) {
        f(first + lowest_bit(rest));
      }
    }
  }

 private:
  // Returns one bit per row, which is set if the row is one of this kernel's.
  template <class Own>
  TP_HD uint32_t choose(Block& block, int64_t first, int64_t rows, int share, Own own) const {
    if (share == 1) return block.uniform("choose", [&] { return uint32_t(own(first)); });
    block.phase("clear", [&](int t) {
      if (t == 0) chosen_[0] = 0;
    });
    block.phase("choose", [&](int t) {
      if (t < share && first + t < rows && own(first + t)) chosen_.template atomic<BitOr<int>>(0, int(1u << t));
    });
    return block.uniform("chosen", [&] { return uint32_t(int(chosen_[0])); });
  }

  Shared<Block, int> chosen_;
};

// The rows of B that the entries of a row of A scale, as many entries at a time as there are threads: entry `at` + q of
// A begins with entry starts[q] of B and has lengths[q] products.
template <class I, class Block>
class Entries {
 public:
  static constexpr int64_t bytes_per_thread = sizeof(I) + sizeof(int);

  TP_HD explicit Entries(Block& block)
      : starts(block.template shared<I>("starts", block.threads())),
        lengths(block.template shared<int>("lengths", block.threads())) {}

  template <class X>
  static TP_HD Row row_of(Block& block, const X& x, int64_t i) {
    return block.uniform("row", [&] { return x.row(i); });
  }
  // Calls load(q, at + q), and use(number of entries) once the next entries are loaded.
  template <class X, class Load, class Use>
  TP_HD void each(Block& block, const X& x, const Row& row, Load load, Use use) const {
    const int threads = block.threads();
    for (int64_t at = row.begin; at < row.end; at += threads) {
      const int n = int(tp::min(row.end - at, int64_t(threads)));
      block.phase("entries", [&](int t) {
        if (t >= n) return;
        const int64_t k = x.a_idx[at + t], begin = x.b_ptrs[k], end = x.b_ptrs[k + 1];
        starts[t] = I(begin);
        lengths[t] = int(end - begin);
        load(t, at + t);
      });
      use(n);
    }
  }

  Shared<Block, I> starts;
  Shared<Block, int> lengths;
};

// Some columns of a matrix.
struct Window {
  int64_t low, high;
};

// The same for the products in a window of columns. Rows of B are in order, so each has one range there. Entries of A
// without products in the window are left out; otherwise most entries would be such, because long rows are divided into
// many windows.
template <class I, class Block>
class EntriesWithin : public Entries<I, Block> {
 public:
  static constexpr int64_t bytes_per_thread = Entries<I, Block>::bytes_per_thread + 2 * int64_t(sizeof(int));

  TP_HD explicit EntriesWithin(Block& block)
      : Entries<I, Block>(block), sums(block.template shared<int>("sums", 2 * block.threads())) {}

  template <class X, class Load, class Use>
  TP_HD void each(Block& block, const X& x, const Row& row, const Window& window, Load load, Use use) const {
    const int threads = block.threads();
    auto mine = block.template per_lane<Range>("mine");
    for (int64_t at = row.begin; at < row.end; at += threads) {
      const int n = int(tp::min(row.end - at, int64_t(threads)));
      block.phase("search", [&](int t) {
        mine[t] = t < n ? range_of(x, x.a_idx[at + t], window) : Range{};
        sums[t] = mine[t].length > 0 ? 1 : 0;
      });
      const int from = running_sums(block, sums);
      block.phase("keep", [&](int t) {
        const Range& range = mine[t];
        if (range.length == 0) return;
        const int q = int(sums[from + t]) - 1;
        this->starts[q] = I(range.begin);
        this->lengths[q] = range.length;
        load(q, at + t);
      });
      const int kept = block.uniform("kept", [&] { return int(sums[from + threads - 1]); });
      if (kept > 0) use(kept);
    }
  }

  Shared<Block, int> sums;  // between calls of `each`, the caller's

 private:
  struct Range {
    int64_t begin;
    int length;
  };
  // The entries of row k of B that lie in the window.
  template <class X>
  static TP_HD Range range_of(const X& x, int64_t k, const Window& window) {
    const int64_t first = x.b_ptrs[k], last = x.b_ptrs[k + 1];
    const auto before = [&](int64_t column) {
      return [&x, column](int64_t g) { return int64_t(x.b_idx[g]) < column; };
    };
    const int64_t begin = partition_point(first, last, before(window.low));
    return {begin, int(partition_point(begin, last, before(window.high)) - begin)};
  }
};

}  // namespace tp::sparse
