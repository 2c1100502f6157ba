// How a kernel reads a matrix: named arrays, with every pointer clamped and every index checked before use.
#pragma once
#include "core/simt.h"
#include "sparse/sparse.h"

namespace tp::sparse {

#ifdef TP_FEW_TYPES
using ValueTypes = Types<int64_t, half, float>;
#else
using ValueTypes = Types<int32_t, int64_t, half, bfloat16, float, double>;
#endif

TP_HD inline bool inside(int64_t i, int64_t n) { return uint64_t(i) < uint64_t(n); }

// Tells whether array[at], whose value is i, may index n elements. If not, the host raises an error and the device
// skips it.
TP_HD inline bool usable(int64_t i, int64_t n, const char* op, const char* array, int64_t at) {
  if (inside(i, n)) return true;
#ifndef __CUDA_ARCH__
  fail(ErrorKind::index, op, ": ", array, "[", at, "] is ", i, ", which is out of range: expected 0 to ", n - 1);
#endif
  return false;
}

// The arrays of a format's Args, bound to a block; `Arrays` binds those of indices. A member that uses an array may be
// called only if the format has that array.
template <class A_, class T, class I, class Arrays, class In, class Out, class Sums>
struct Bound : Arrays {
  using A = A_;
  using Value = T;
  using Position = I;
  using Acc = acc_t<T>;
  A a;
  In values, x, y0;
  Out y;
  Sums sums;

  // Pointer i, clamped to 0..entries.
  TP_HD int64_t pointer(int64_t i) const {
    const int64_t p = this->ptrs[i];
    return tp::max(int64_t(0), tp::min(p, a.entries));
  }
  // The number of entries of the row in a slot, at most `most`, the entries that the slot has room for.
  TP_HD int64_t length(int64_t slot, int64_t most) const {
    const int64_t n = this->row_nnz[slot];
    return usable(n, most + 1, a.op, "row_nnz", slot) ? n : tp::max(int64_t(0), tp::min(n, most));
  }
  TP_HD bool row_usable(int64_t row, int64_t at) const { return usable(row, a.rows, a.op, "row_idx", at); }
  // Tells whether the column of entry `at` may be used to read x.
  template <bool padded>
  TP_HD bool column_usable(int64_t column, int64_t at) const {
    if (padded && column == -1) return false;
    return usable(column, a.cols, a.op, "col_idx", at);
  }
  // The index in `values` of entry `at` of a plan, or -1.
  TP_HD int64_t through_plan(int64_t at) const {
    const int64_t entry = this->perm[at];
    return usable(entry, a.entries, a.op, "plan_perm", at) ? entry : -1;
  }
  TP_HD Acc product(int64_t at, int64_t column, int64_t c) const {
    const T value = values[at], factor = x[column * a.k + c];
    return Acc(value) * Acc(factor);
  }
  // Tells whether y is exactly the sums, the most common case: nothing is added, and no accumulators are kept.
  TP_HD bool alone() const { return a.sums == nullptr && a.before == nullptr && a.y0 == nullptr; }
  // Stores an element of Y, given its sum.
  TP_HD void store(int64_t row, int64_t c, Acc sum) const {
    const int64_t i = row * a.k + c;
    if (a.sums != nullptr) {
      sums[i] = sum;
      return;
    }
    if (a.before != nullptr) sum += static_cast<const Acc*>(a.before)[i];
    if (a.y0 != nullptr) {
      const T start = y0[i];
      sum += Acc(start);
    }
    y[i] = T(sum);
  }
};

template <class A_, class T_, class I_>
struct Matrix {
  using A = A_;
  using T = T_;
  using I = I_;
  using Acc = acc_t<T>;
  A a;

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto index = [&](const char* name, const void* data, int64_t n) {
      return block.global(name, static_cast<const I*>(data), n);
    };
    const auto values = block.global("values", static_cast<const T*>(a.values), a.entries);
    const auto x = block.global("x", static_cast<const T*>(a.x), a.cols * a.k);
    const auto y0 = block.global("y0", static_cast<const T*>(a.y0), a.rows * a.k);
    const auto y = block.global("y", static_cast<T*>(a.y), a.rows * a.k);
    const auto sums = block.global("sums", static_cast<Acc*>(a.sums), a.rows * a.k);
    const auto arrays = a.bind(index);
    return Bound<A, T, I, std::decay_t<decltype(arrays)>, std::decay_t<decltype(x)>, std::decay_t<decltype(y)>,
                 std::decay_t<decltype(sums)>>{arrays, a, values, x, y0, y, sums};
  }
};

// Calls f(Type<T>, Type<I>) for the dtype and the index type of some Args.
template <class AnyArgs, class F>
void with_types(const AnyArgs& args, F f) {
  dispatch(ValueTypes{}, args.dtype, args.op, [&](auto type) {
    if (args.long_index) {
      f(type, Type<int64_t>{});
    } else {
      f(type, Type<int32_t>{});
    }
  });
}

// Calls f(Matrix) for the Args of a format.
template <class A, class F>
void with_matrix(const A& args, F f) {
  with_types(args, [&](auto type, auto index) {
    f(Matrix<A, typename decltype(type)::type, typename decltype(index)::type>{args});
  });
}

// Multiplies HYB as two products: first the padded rows, whose accumulators are kept, then the tail, which continues
// from those accumulators.
template <class Padded, class Tail>
void multiply_hybrid(const HybArgs& args, Context& context, Padded padded, Tail tail) {
  if (args.tail_entries == 0) return padded(args, context);
  EllArgs rows = args;
  dispatch(ValueTypes{}, args.dtype, args.op,
           [&](auto type) { rows.sums = context.workspace<acc_t<typename decltype(type)::type>>(args.rows * args.k); });
  padded(rows, context);
  CooArgs rest{args, {args.tail_row_idx, args.tail_col_idx, nullptr}, args.row_sorted};
  rest.before = rows.sums;
  rest.values = args.tail_values;
  rest.entries = args.tail_entries;
  tail(rest, context);
}

}  // namespace tp::sparse
