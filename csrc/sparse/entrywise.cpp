#include "sparse/entrywise.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "block/on_vectors.h"
#include "sparse/matrix.h"
#include "sparse/merge_rows.h"
#include "sparse/pointers.h"

namespace tp::sparse {
namespace {

using namespace merged_rows;

constexpr int64_t work_per_share = 1 << 14;

// The rows of one share. Row i has entries begin[i] to end[i] - 1.
template <class T, class I>
struct Rows {
  const I *begin, *end, *idx;
  const T* values;

  int64_t length(int64_t i) const { return int64_t(end[i]) - int64_t(begin[i]); }
  // Whether there are no unused entries between rows.
  bool packed() const { return end == begin + 1; }
};

// ---- functions of a share of rows that do not depend on the values

// Whether the columns of rows first to last - 1 increase strictly within each row and are in 0..cols - 1. The columns
// of all rows are compared with their neighbours in one loop; a column may be less than the one before it only where a
// row begins.
template <class I>
bool in_order(const I* ptrs, const I* idx, int64_t first, int64_t last, int64_t cols) {
  using U = std::make_unsigned_t<I>;
  const int64_t begin = ptrs[first], end = ptrs[last];
  if (begin == end) return true;
  bool ordered = false, *const found = &ordered;
  on_vectors([=] {
    I descents = 0;
    U outside = U(idx[end - 1]) >= U(cols);
    for (int64_t e = begin; e < end - 1; ++e) {
      descents += I(idx[e] >= idx[e + 1]);
      outside |= U(U(idx[e]) >= U(cols));
    }
    for (int64_t i = first; i < last; ++i) {
      const int64_t e = ptrs[i];
      if (e > begin && e < ptrs[i + 1]) descents -= I(idx[e - 1] >= idx[e]);
    }
    *found = descents == 0 && outside == 0;
  });
  return ordered;
}

// Whether rows of two matrices have the same columns.
template <class T, class I>
bool same(const Rows<T, I>& a, const Rows<T, I>& b, int64_t first, int64_t last) {
  if (!a.packed() || !b.packed()) return false;
  const I *p = a.begin, *q = b.begin;
  if (p[last] - p[first] != q[last] - q[first]) return false;
  if (!std::equal(a.idx + p[first], a.idx + p[last], b.idx + q[first])) return false;
  for (int64_t i = first; i < last; ++i) {
    if (p[i] - p[first] != q[i] - q[first]) return false;
  }
  return true;
}

// Whether rows i of two matrices are their rows i - 1, moved by the same number of columns.
template <class I>
bool both_repeat(const Rows<void, I>& a, const Rows<void, I>& b, int64_t i) {
  const int64_t na = a.length(i), nb = b.length(i);
  if (na == 0 || nb == 0 || na != a.length(i - 1) || nb != b.length(i - 1)) return false;
  const I *columns = a.idx + a.begin[i], *others = b.idx + b.begin[i];
  const I *before = a.idx + a.begin[i - 1], *others_before = b.idx + b.begin[i - 1];
  const I shift = I(columns[0] - before[0]);
  return repeats(columns, before, na, shift) && repeats(others, others_before, nb, shift);
}

struct Counts {
  int64_t entries;
  bool regular;  // whether most rows repeat the row before them
};

// Counts the entries of rows first to last - 1 of C, which are the columns that both rows have (`of_both`) or that
// either has. ptrs[i + 1] becomes the number of entries of rows `first` to i.
template <class I>
Counts count(bool of_both, const Rows<void, I>& a, const Rows<void, I>& b, int64_t b_entries, int64_t first,
             int64_t last, I* ptrs) {
  Counts counts, *const found = &counts;
  on_vectors([=] {
    int64_t n = 0, common = 0, repeating = 0;
    for (int64_t i = first; i < last; ++i) {
      const int64_t na = a.length(i), nb = b.length(i), at_b = b.begin[i];
      const bool again = i > first && both_repeat(a, b, i);
      if (!again) common = count_common(a.idx + a.begin[i], na, b.idx + at_b, nb, b_entries - at_b);
      repeating += again;
      n += of_both ? common : na + nb - common;
      ptrs[i + 1] = I(n);
    }
    *found = {n, 8 * repeating >= 7 * (last - first)};
  });
  return counts;
}

// Whether few of the steps of a merge differ from the step before them, judging by a few rows.
template <class I>
bool change_rarely(const Rows<void, I>& a, const Rows<void, I>& b, int64_t first, int64_t last) {
  int64_t changed = 0, entries = 0;
  for (int64_t i = first; i < tp::min(last, first + 8); ++i) {
    changed += changes(a.idx + a.begin[i], a.length(i), b.idx + b.begin[i], b.length(i));
    entries += a.length(i) + b.length(i);
  }
  return 8 * changed <= entries;
}

// ---- all rows

template <class T, class I>
class Matrices {
  using Share = Rows<T, I>;

 public:
  Matrices(const EntrywiseArgs& args, Context& context)
      : args_(args), context_(context), rows_(args.rows), a_(args.a), b_(args.b) {
    check_row_pointers(a_), check_row_pointers(b_);
    const int64_t work = work_before(rows_);
    shares_ = tp::max(int64_t(1), work / work_per_share);
    cuts_ = context.workspace<int64_t>(shares_ + 1);
    for (int64_t share = 0; share <= shares_; ++share) {
      const int64_t before = int64_t(double(work) / double(shares_) * double(share));
      cuts_[share] = share == shares_ ? rows_ : first_row(before);
    }
  }

  template <class Op>
  void combine(I* ptrs, const std::function<Room(int64_t)>& room) {
    int64_t* const before = context_.workspace<int64_t>(shares_ + 1);
    Copies copies_a(shares_), copies_b(shares_);
    std::vector<char> predictable(size_t(shares_), 0);
    each_share([&](int64_t share, int64_t first, int64_t last) {
      const Share a = put_in_order(a_, copies_a, share), b = put_in_order(b_, copies_b, share);
      if (same(a, b, first, last)) {
        for (int64_t i = first; i < last; ++i) ptrs[i + 1] = a.end[i] - a.begin[first];
        before[share + 1] = a.begin[last] - a.begin[first];
      } else {
        const Counts counts = count(of_both<Op>, structure(a), structure(b), b_.entries, first, last, ptrs);
        before[share + 1] = counts.entries;
        predictable[size_t(share)] = counts.regular || change_rarely(structure(a), structure(b), first, last);
      }
    });
    before[0] = 0;
    for (int64_t share = 0; share < shares_; ++share) before[share + 1] += before[share];
    ptrs[0] = 0;
    const Room to = room(before[shares_]);
    I* const idx = static_cast<I*>(to.col_idx);
    T* const values = static_cast<T*>(to.values);
    each_share([&](int64_t share, int64_t first, int64_t last) {
      const Share a = in_order_of(a_, copies_a, share), b = in_order_of(b_, copies_b, share);
      const int64_t begin = before[share], n = before[share + 1] - begin;
      for (int64_t i = first; i < last; ++i) ptrs[i + 1] = I(begin + ptrs[i + 1]);
      const auto has_all = [&](const Share& m) { return m.packed() && m.begin[last] - m.begin[first] == n; };
      if (has_all(a) && has_all(b)) {  // so that their columns are the same
        fill_same<Op>(a, b, first, n, idx + begin, values + begin);
      } else {
        const auto fill_rows = predictable[size_t(share)] ? &Matrices::fill<Op, true> : &Matrices::fill<Op, false>;
        fill_rows(a, b, first, last, begin, ptrs, idx, values);
      }
    });
  }

  void values_at(T* out) {
    Copies copies(shares_);
    each_share([&](int64_t share, int64_t first, int64_t last) {
      const Share a = put_in_order(a_, copies, share), b = original(b_);
      T* const to = out + b.begin[first];
      if (same(a, b, first, last)) {
        std::copy(a.values + a.begin[first], a.values + a.begin[last], to);
      } else if (in_order(b.begin, b.idx, first, last, args_.cols)) {
        on_vectors([=] {
          for (int64_t i = first; i < last; ++i) {
            const int64_t at_a = a.begin[i], at_b = b.begin[i];
            fill_at(a.idx + at_a, a.values + at_a, a.length(i), b.idx + at_b, b.length(i), out + at_b);
          }
        });
      } else {
        check_columns(b_, first, last);
        for (int64_t i = first; i < last; ++i) {
          const int64_t at_a = a.begin[i], at_b = b.begin[i];
          find_each(a.idx + at_a, a.values + at_a, a.length(i), b.idx + at_b, b.length(i), out + at_b);
        }
      }
    });
  }

 private:
  template <class Op>
  static constexpr bool of_both = std::is_same_v<Op, Multiply>;

  struct Matrix {
    const char* name;
    const I *ptrs, *idx;
    const T* values;
    int64_t entries;

    explicit Matrix(const Operand& m)
        : name(m.name),
          ptrs(static_cast<const I*>(m.ptrs)),
          idx(static_cast<const I*>(m.idx)),
          values(static_cast<const T*>(m.values)),
          entries(m.entries) {}
  };

  // Sorted copies of the shares of a matrix whose rows are not in order.
  struct Copies {
    std::vector<char> has;
    I *ends = nullptr, *idx = nullptr;
    T* values = nullptr;

    explicit Copies(int64_t shares) : has(size_t(shares), 0) {}
  };

  void check_row_pointers(const Matrix& m) const {
    const std::string name = std::string(m.name) + "'s row_ptrs";
    check_pointers(args_.op, name.c_str(), m.ptrs, rows_ + 1, m.entries, false, context_);
  }
  void check_columns(const Matrix& m, int64_t first, int64_t last) const {
    const std::string name = std::string(m.name) + "'s col_idx";
    for (int64_t e = m.ptrs[first]; e < m.ptrs[last]; ++e) usable(m.idx[e], args_.cols, args_.op, name.c_str(), e);
  }

  // Shares have about the same number of entries and rows.
  int64_t work_before(int64_t row) const { return row + int64_t(a_.ptrs[row]) + int64_t(b_.ptrs[row]); }
  int64_t first_row(int64_t work) const {
    int64_t low = 0, high = rows_;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      work_before(middle) < work ? low = middle + 1 : high = middle;
    }
    return low;
  }
  // Calls f(share, its first row, the end of its rows) for all shares.
  template <class F>
  void each_share(F f) const {
    context_.parallel_for(shares_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t share = begin; share < end; ++share) f(share, cuts_[share], cuts_[share + 1]);
    });
  }

  static Share original(const Matrix& m) { return {m.ptrs, m.ptrs + 1, m.idx, m.values}; }
  static Rows<void, I> structure(const Share& m) { return {m.begin, m.end, m.idx, nullptr}; }
  Share in_order_of(const Matrix& m, const Copies& copies, int64_t share) const {
    return copies.has[size_t(share)] ? Share{m.ptrs, copies.ends, copies.idx, copies.values} : original(m);
  }
  // Returns a share, which is sorted into a copy first if its rows are not in order.
  Share put_in_order(const Matrix& m, Copies& copies, int64_t share) {
    const int64_t first = cuts_[share], last = cuts_[share + 1];
    if (!in_order(m.ptrs, m.idx, first, last, args_.cols)) {
      check_columns(m, first, last);
      allocate(m, copies);
      sort(m, copies, first, last);
      copies.has[size_t(share)] = 1;
    }
    return in_order_of(m, copies, share);
  }
  // Allocates copies of all rows. The system provides only the pages that are written.
  void allocate(const Matrix& m, Copies& copies) {
    const std::lock_guard<std::mutex> lock(allocation_);
    if (copies.idx != nullptr) return;
    copies.ends = context_.workspace<I>(rows_);
    copies.idx = context_.workspace<I>(m.entries);
    copies.values = context_.workspace<T>(m.entries);
  }
  static void sort(const Matrix& m, const Copies& to, int64_t first, int64_t last) {
    std::vector<std::pair<I, I>> order;  // column, entry
    for (int64_t i = first; i < last; ++i) {
      order.clear();
      for (I e = m.ptrs[i]; e < m.ptrs[i + 1]; ++e) order.emplace_back(m.idx[e], e);
      std::sort(order.begin(), order.end());
      I at = m.ptrs[i];
      for (size_t k = 0; k < order.size(); ++at) {
        const I column = order[k].first;
        acc_t<T> sum(m.values[order[k].second]);
        while (++k < order.size() && order[k].first == column) sum += acc_t<T>(m.values[order[k].second]);
        to.idx[at] = column;
        to.values[at] = T(sum);
      }
      to.ends[i] = at;
    }
  }

  // Writes rows first to last - 1 of C; the rows before them have `begin` entries. `predictable` decides how rows
  // are merged, but not what is written.
  template <class Op, bool predictable>
  static void fill(const Share& a, const Share& b, int64_t first, int64_t last, int64_t begin, const I* ptrs, I* idx,
                   T* values) {
    on_vectors([=] {
      int64_t at = begin;
      for (int64_t i = first; i < last; ++i) {
        const int64_t at_a = a.begin[i], at_b = b.begin[i], n = ptrs[i + 1] - at;
        const I *columns = a.idx + at_a, *others = b.idx + at_b;
        const T *x = a.values + at_a, *y = b.values + at_b;
        if constexpr (predictable && of_both<Op>) {
          fill_common_by_branches<Op>(columns, x, others, y, idx + at, values + at, n);
        } else if constexpr (predictable) {
          fill_union_by_branches<Op>(columns, x, a.length(i), others, y, b.length(i), idx + at, values + at);
        } else if constexpr (of_both<Op>) {
          fill_common<Op>(columns, x, a.length(i), others, y, b.length(i), idx + at, values + at, n);
        } else {
          fill_union<Op>(columns, x, a.length(i), others, y, b.length(i), idx + at, values + at, n);
        }
        at += n;
      }
    });
  }

  // Writes n entries of C where A and B have the same columns.
  template <class Op>
  static void fill_same(const Share& a, const Share& b, int64_t first, int64_t n, I* idx, T* values) {
    std::copy_n(a.idx + a.begin[first], n, idx);
    on_vectors([=, x = a.values + a.begin[first], y = b.values + b.begin[first]] {
      TP_INDEPENDENT
      for (int64_t k = 0; k < n; ++k) values[k] = Op::combine(x[k], y[k]);
    });
  }

  const EntrywiseArgs& args_;
  Context& context_;
  int64_t rows_, shares_;
  Matrix a_, b_;
  int64_t* cuts_;  // where shares of rows begin and the last one ends
  std::mutex allocation_;
};

// Calls f(Matrices<T, I>, Type<T>, Type<I>).
template <class F>
void with_matrices(const EntrywiseArgs& args, Context& context, F f) {
  dispatch(ValueTypes{}, args.dtype, args.op, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.long_index) {
      Matrices<T, int64_t> matrices(args, context);
      f(matrices, type, Type<int64_t>{});
    } else {
      Matrices<T, int32_t> matrices(args, context);
      f(matrices, type, Type<int32_t>{});
    }
  });
}

}  // namespace

void entrywise(Entrywise op, const EntrywiseArgs& args, void* ptrs, const std::function<Room(int64_t)>& room,
               Context& context) {
  if (context.device.cuda || simt::session()) return entrywise_in_tiles(op, args, ptrs, room, context);
  with_matrices(args, context, [&](auto& matrices, auto, auto index) {
    auto* const to = static_cast<typename decltype(index)::type*>(ptrs);
    switch (op) {
      case Entrywise::add:
        return matrices.template combine<Add>(to, room);
      case Entrywise::subtract:
        return matrices.template combine<Subtract>(to, room);
      case Entrywise::multiply:
        return matrices.template combine<Multiply>(to, room);
    }
  });
}

void values_at(const EntrywiseArgs& args, void* out, Context& context) {
  if (context.device.cuda || simt::session()) return look_up_values(args, out, context);
  with_matrices(args, context, [&](auto& matrices, auto type, auto) {
    matrices.values_at(static_cast<typename decltype(type)::type*>(out));
  });
}

}  // namespace tp::sparse
