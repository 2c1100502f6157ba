// The entries of a sampled product: the row and column of each, and the dot product of the two rows.
#pragma once
#include "sparse/matrix.h"
#include "sparse/pointers.h"

namespace tp::sparse {

template <class T_, class In, class Index, class Out>
struct BoundSample {
  using T = T_;
  using Acc = acc_t<T>;
  SampledArgs a;
  In gy, x;
  Index row_idx, col_idx, ptrs, row_nnz;
  Out out;

  // The row of an entry, or -1 if it is padding or must not be used.
  TP_HD int64_t row(int64_t entry) const {
    int64_t r;
    if (a.row_idx != nullptr) {
      r = row_idx[entry];
      if (r == -1) return -1;
    } else if (a.ptrs != nullptr) {
      r = last_not_after(entry, 0, a.rows);
      if (!inside(r, a.rows)) return -1;
    } else {
      r = entry % a.rows;
      if (a.row_nnz != nullptr && entry / a.rows >= int64_t(row_nnz[r])) return -1;
    }
    return usable(r, a.rows, a.op, "row_idx", entry) ? r : -1;
  }
  TP_HD int64_t column(int64_t entry) const {
    const int64_t c = col_idx[entry];
    if (c == -1) return -1;
    return usable(c, a.cols, a.op, "col_idx", entry) ? c : -1;
  }
  // The last r from low - 1 to high - 1 with ptrs[r] <= entry, provided that the pointers do not decrease.
  TP_HD int64_t last_not_after(int64_t entry, int64_t low, int64_t high) const {
    while (low < high) {
      const int64_t middle = low + (high - low) / 2, pointer = ptrs[middle];
      if (pointer <= entry) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - 1;
  }
  TP_HD Acc dot(int64_t row, int64_t column) const {
    Acc sum(0);
    for (int64_t c = 0; c < a.k; ++c) {
      const T g = gy[row * a.k + c], factor = x[column * a.k + c];
      sum += Acc(g) * Acc(factor);
    }
    return sum;
  }
  // The result for an entry of a row, or of row -1.
  TP_HD Acc sample(int64_t entry, int64_t row) const {
    const int64_t c = row < 0 ? -1 : column(entry);
    return c < 0 ? Acc(0) : dot(row, c);
  }
};

template <class T_, class I_>
struct Sample {
  using T = T_;
  using I = I_;
  SampledArgs a;

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto index = [&](const char* name, const void* data, int64_t n) {
      return block.global(name, static_cast<const I*>(data), n);
    };
    const auto gy = block.global("gy", static_cast<const T*>(a.gy), a.rows * a.k);
    const auto x = block.global("x", static_cast<const T*>(a.x), a.cols * a.k);
    const auto out = block.global("out", static_cast<T*>(a.out), a.entries);
    const auto row_idx = index("row_idx", a.row_idx, a.entries);
    return BoundSample<T, std::decay_t<decltype(x)>, std::decay_t<decltype(row_idx)>, std::decay_t<decltype(out)>>{
        a,
        gy,
        x,
        row_idx,
        index("col_idx", a.col_idx, a.entries),
        index("ptrs", a.ptrs, a.rows + 1),
        index("row_nnz", a.row_nnz, a.rows),
        out};
  }
};

template <class F>
void with_sample(const SampledArgs& args, Context& context, F f) {
  if (!context.device.cuda && args.ptrs != nullptr) {
    with_types(args, [&](auto, auto index) {
      const auto* const p = static_cast<const typename decltype(index)::type*>(args.ptrs);
      check_pointers(args.op, "ptrs", p, args.rows + 1, args.entries, false, context);
    });
  }
  with_types(args, [&](auto type, auto index) {
    f(Sample<typename decltype(type)::type, typename decltype(index)::type>{args});
  });
}

}  // namespace tp::sparse
