// The arrays of a product of two sparse matrices, typed, and their checks on the host.
#pragma once
#include <type_traits>

#include "sparse/rows.h"
#include "sparse/spgemm.h"

namespace tp::sparse {

template <class T_, class I_>
struct Spgemm {
  using T = T_;
  using I = I_;
  using Acc = acc_t<T>;
  const SpgemmArgs& args;
  const I *a_ptrs, *a_idx, *b_ptrs, *b_idx, *c_ptrs, *c_idx;
  const T *a, *b, *c;
  T* out;

  explicit Spgemm(const SpgemmArgs& s)
      : args(s),
        a_ptrs(static_cast<const I*>(s.a_ptrs)),
        a_idx(static_cast<const I*>(s.a_idx)),
        b_ptrs(static_cast<const I*>(s.b_ptrs)),
        b_idx(static_cast<const I*>(s.b_idx)),
        c_ptrs(static_cast<const I*>(s.c_ptrs)),
        c_idx(static_cast<const I*>(s.c_idx)),
        a(static_cast<const T*>(s.a)),
        b(static_cast<const T*>(s.b)),
        c(static_cast<const T*>(s.c)),
        out(static_cast<T*>(s.out)) {}

  // Sets C once its structure is known.
  void take(const SpgemmArgs::Room& room) {
    c_idx = static_cast<const I*>(room.col_idx);
    out = static_cast<T*>(room.values);
  }
};

// Raises an error on the host unless all n indices are less than `limit`.
template <class I>
void check_all(const char* op, const char* name, const I* index, int64_t n, int64_t limit, Context& context) {
  using U = typename std::make_unsigned<I>::type;
  context.parallel_for(n, int64_t(1) << 15, [&](int64_t begin, int64_t end) {
    bool wrong = false;
    for (int64_t i = begin; i < end; ++i) wrong |= U(index[i]) >= U(limit);
    for (int64_t i = begin; wrong && i < end; ++i) usable(index[i], limit, op, name, i);
  });
}

// Raises an error unless all pointers and indices are valid. The rungs that also run on the device check them there.
template <class S>
void check_on_host(const S& s, Context& context) try {
  const SpgemmArgs& args = s.args;
  const auto check = [&](const char* ptrs_name, const auto* ptrs, int64_t rows, const char* idx_name, const auto* idx,
                         int64_t entries, int64_t limit) {
    check_pointers(args.op, ptrs_name, ptrs, rows + 1, entries, false, context);
    check_all(args.op, idx_name, idx, entries, limit, context);
  };
  check("a_row_ptrs", s.a_ptrs, args.rows, "a_col_idx", s.a_idx, args.a_entries, args.inner);
  check("b_row_ptrs", s.b_ptrs, args.inner, "b_col_idx", s.b_idx, args.b_entries, args.cols);
  if (args.wanted != Wanted::product) {
    check("c_row_ptrs", s.c_ptrs, args.rows, "c_col_idx", s.c_idx, args.c_entries, args.cols);
  }
} catch (const Error&) {
  if (s.args.explain) s.args.explain();
  throw;
}

// Calls f(Spgemm<T, I>).
template <class F>
void with_spgemm(const SpgemmArgs& args, F f) {
  with_types(args, [&](auto type, auto index) {
    f(Spgemm<typename decltype(type)::type, typename decltype(index)::type>(args));
  });
}

}  // namespace tp::sparse
