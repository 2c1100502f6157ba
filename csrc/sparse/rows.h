// The formats that store rows: where the entries of each lie. A place is a row in the order of storage; JDS and SELL
// say by row_perm which row that is.
#pragma once
#include "sparse/matrix.h"
#include "sparse/pointers.h"

namespace tp::sparse {

// `count` entries, `step` apart.
struct Walk {
  int64_t count, first, step;
  template <class B>
  TP_HD int64_t at(const B&, int64_t j) const {
    return first + j * step;
  }
};

struct Csr {
  static constexpr bool padded = false, permuted = false, planned = true, sectioned = false;
  static int64_t pointers(const Args& a) { return a.rows + 1; }
  // Those of a plan leave out padding, which comes last.
  template <class I>
  static void check(const Args& a, const I* p, Context& context) {
    const bool plan = a.perm != nullptr;
    check_pointers(a.op, plan ? "plan_ptrs" : "row_ptrs", p, a.rows + 1, a.entries, plan, context);
  }
  template <class B>
  TP_HD static Walk walk(const B& b, int64_t place) {
    const int64_t begin = b.pointer(place);
    return {tp::max(int64_t(0), b.pointer(place + 1) - begin), begin, 1};
  }
};

struct Ell {
  static constexpr bool padded = true, permuted = false, planned = false, sectioned = false;
  static int64_t pointers(const Args&) { return 0; }
  template <class I>
  static void check(const Args&, const I*, Context&) {}
  template <class B>
  TP_HD static Walk walk(const B& b, int64_t place) {
    return {b.length(place, b.a.width), place, b.a.rows};
  }
};

// Entry j of a place lies in diagonal j.
struct Jds {
  static constexpr bool padded = false, permuted = true, planned = false, sectioned = false;
  static int64_t pointers(const Args& a) { return a.width + 1; }
  template <class I>
  static void check(const Args& a, const I* p, Context& context) {
    check_pointers(a.op, "diag_ptrs", p, a.width + 1, a.entries, false, context);
    check_diagonals<I>(a);
  }
  struct Diagonals {
    int64_t count, place;
    template <class B>
    TP_HD int64_t at(const B& b, int64_t j) const {
      return b.pointer(j) + place;
    }
  };
  // Diagonals never get longer, so those that reach a place come first.
  template <class B>
  TP_HD static Diagonals walk(const B& b, int64_t place) {
    int64_t low = 0, high = b.a.width;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (b.pointer(middle + 1) - b.pointer(middle) > place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return {low, place};
  }
};

// a / b, by 32 bits where these hold both: a division of 64 bits takes longer than a short row.
TP_HD inline int64_t quotient(int64_t a, int64_t b) {
  return ((a | b) >> 32) == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}

struct Sell {
  static constexpr bool padded = true, permuted = true, planned = false, sectioned = true;
  static int64_t pointers(const Args& a) { return ceil_div(a.rows, a.section_rows) + 1; }
  template <class I>
  static void check(const Args& a, const I* p, Context& context) {
    check_pointers(a.op, "section_ptrs", p, pointers(a), a.entries, false, context);
    check_sections<I>(a);
  }
  template <class B>
  TP_HD static Walk walk(const B& b, int64_t place) {
    const int64_t section = quotient(place, b.a.section_rows), start = section * b.a.section_rows;
    const int64_t height = tp::min(b.a.section_rows, b.a.rows - start), begin = b.pointer(section);
    const int64_t width = tp::max(int64_t(0), b.pointer(section + 1) - begin) / height;
    return {b.length(place, width), begin + place - start, height};
  }
};

// f(Matrix) of the format's Args. Where rows are permuted, y is cleared first: row_perm may miss some.
template <class Format, class F>
void with_rows(const Args& args, Context& context, F f) {
  with_pointers(args, args.ptrs, context, [&](const auto* pointers) { Format::check(args, pointers, context); });
  with_matrix(args, Format::pointers(args), [&](const auto& matrix) {
    using T = typename std::decay_t<decltype(matrix)>::T;
    if (Format::permuted) context.clear(args.y, args.rows * args.k * int64_t(sizeof(T)));
    f(matrix);
  });
}

// The row at a place, or -1.
template <class Format, class B>
TP_HD int64_t row_at(const B& b, int64_t place) {
  if (!Format::permuted) return place;
  const int64_t row = b.row_perm[place];
  return usable(row, b.a.rows, b.a.op, "row_perm", place) ? row : -1;
}

// Entry `at` of a row times its element of column c of X; 0 where there is none.
template <class Format, class B>
TP_HD typename B::Acc term(const B& b, int64_t at, int64_t c) {
  using Acc = typename B::Acc;
  if (Format::permuted && !inside(at, b.a.entries)) return Acc(0);
  const int64_t entry = Format::planned && b.a.perm != nullptr ? b.through_plan(at) : at;
  if (entry < 0) return Acc(0);
  if (Format::planned && b.a.perm_indexes) at = entry;
  const int64_t column = b.col_idx[at];
  return b.template column_usable<Format::padded>(column, at) ? b.product(entry, column, c) : Acc(0);
}

// The product of the row at a place with column c of X.
template <class Format, class B>
TP_HD typename B::Acc dot(const B& b, int64_t place, int64_t c) {
  const auto walk = Format::walk(b, place);
  typename B::Acc sum(0);
  for (int64_t j = 0; j < walk.count; ++j) sum += term<Format>(b, walk.at(b, j), c);
  return sum;
}

}  // namespace tp::sparse
