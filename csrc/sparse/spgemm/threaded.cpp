// Shares of rows with equally many products. A first pass counts the columns of each row of C, and a second one finds
// and fills them while the rows of B are still in the cache: a row's columns come out in order by setting bits
// (ordered_columns.h), and its products are added up in an array as long as a row.
//
// Many rows of B are bands: one column after another. Their products need no index, and are added as vectors are.
//
// The gradient of B's values adds up products of all rows of C. The rows are cut into shares that do not depend on the
// number of threads, each of which has sums of its own, and these are added up in order.
#include "sparse/threaded.h"

#include <algorithm>
#include <memory>

#include "sparse/spgemm/ordered_columns.h"
#include "sparse/spgemm/rows.h"

namespace tp {
namespace {

using namespace sparse;

constexpr int64_t least_band = 4, products_per_share = 1 << 14, most_shares = 64, most_sums = 8;

// to[0] to to[n - 1] += scale * x, where neither array is the other.
template <class Acc>
void add_band(Acc* __restrict to, Acc scale, const Acc* __restrict x, int64_t n) {
  for (int64_t t = 0; t < n; ++t) to[t] += scale * x[t];
}

// The sum of x * y, by eight running sums.
template <class Acc, class At>
Acc dot(const Acc* x, int64_t n, At at) {
  Acc sums[8] = {};
  int64_t t = 0;
  for (; t + 8 <= n; t += 8) {
    for (int u = 0; u < 8; ++u) sums[u] += x[t + u] * at(t + u);
  }
  for (; t < n; ++t) sums[t % 8] += x[t] * at(t);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <class S>
class Product {
  using T = typename S::T;
  using I = typename S::I;
  using Acc = typename S::Acc;

 public:
  Product(const S& s, Context& context) : s_(s), context_(context), a_(s.args) {
    find_bands();
    b_ = widened(s.b, a_.b_entries);
    work_ = context.workspace<int64_t>(a_.rows + 1);
    work_[0] = 0;
    context.parallel_for(a_.rows, 1 << 12, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        work_[i + 1] = 1;
        for (int64_t e = s.a_ptrs[i]; e < s.a_ptrs[i + 1]; ++e) work_[i + 1] += 1 + length(s.a_idx[e]);
      }
    });
    for (int64_t i = 0; i < a_.rows; ++i) work_[i + 1] += work_[i];
  }

  void multiply() {
    count_columns();
    const auto room = a_.room(a_.ptrs[a_.rows]);
    s_.take(room);
    I* const idx = static_cast<I*>(room.col_idx);
    in_shares([&](int64_t first, int64_t last) {
      OrderedColumns columns(a_.cols);
      const auto sums = scratch<Acc>(a_.cols);
      for (int64_t i = first; i < last; ++i) {
        for (int64_t e = s_.a_ptrs[i]; e < s_.a_ptrs[i + 1]; ++e) {
          const int64_t k = s_.a_idx[e], begin = s_.b_ptrs[k];
          if (is_band_[k]) {
            columns.add_band(s_.b_idx[begin], length(k));
          } else {
            columns.add(s_.b_idx + begin, length(k));
          }
        }
        columns.take(idx + a_.ptrs[i]);
        add_row(i, a_.ptrs, sums.get());
      }
    });
  }

  void values(Wanted wanted) {
    if (wanted == Wanted::b) return b_values();
    c_ = widened(s_.c, a_.c_entries);
    in_shares([&](int64_t first, int64_t last) {
      const auto row = scratch<Acc>(a_.cols);
      if (wanted == Wanted::a) std::fill(row.get(), row.get() + a_.cols, Acc(0));
      for (int64_t i = first; i < last; ++i) {
        if (wanted == Wanted::c) {
          add_row(i, s_.c_ptrs, row.get());
        } else {
          with_row(i, row.get(), [&](int64_t e, int64_t k) { s_.out[e] = T(dot_of_row(k, row.get())); });
        }
      }
    });
  }

 private:
  template <class X>
  static std::unique_ptr<X[]> scratch(int64_t n) {
    return std::unique_ptr<X[]>(new X[size_t(n)]);
  }
  int64_t length(int64_t k) const { return int64_t(s_.b_ptrs[k + 1]) - int64_t(s_.b_ptrs[k]); }

  // f(first, last) for ranges of rows, in order within a thread.
  template <class F>
  void in_shares(F f) {
    const int64_t shares = tp::max(int64_t(1), tp::min(work_[a_.rows] / products_per_share, most_shares));
    context_.parallel_for(shares, 1, [&](int64_t begin, int64_t end) { f(cut(begin, shares), cut(end, shares)); });
  }
  int64_t cut(int64_t share, int64_t shares) const {
    if (share == shares) return a_.rows;
    const int64_t before = int64_t(double(work_[a_.rows]) / double(shares) * double(share));
    return std::lower_bound(work_, work_ + a_.rows, before) - work_;
  }

  // Which rows of B are bands.
  void find_bands() {
    is_band_ = context_.workspace<bool>(a_.inner);
    context_.parallel_for(a_.inner, 1 << 12, [&](int64_t first, int64_t last) {
      for (int64_t k = first; k < last; ++k) {
        const I *at = s_.b_idx + s_.b_ptrs[k], *end = s_.b_idx + s_.b_ptrs[k + 1];
        is_band_[k] = end - at >= least_band && end[-1] - *at == end - at - 1;
        while (is_band_[k] && ++at < end) is_band_[k] = at[-1] + 1 == *at;
      }
    });
  }

  // Values as they are added up.
  const Acc* widened(const T* values, int64_t n) {
    if constexpr (std::is_same_v<T, Acc>) {
      return values;
    } else {
      if (values == nullptr) return nullptr;
      Acc* wide = context_.workspace<Acc>(n);
      context_.parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) wide[i] = Acc(values[i]);
      });
      return wide;
    }
  }

  void count_columns() {
    int64_t* const ptrs = a_.ptrs;
    in_shares([&](int64_t first, int64_t last) {
      const std::unique_ptr<uint32_t[]> seen(new uint32_t[size_t(a_.cols)]());
      for (int64_t i = first; i < last; ++i) {
        const uint32_t mark = uint32_t(i - first) + 1;
        int64_t found = 0;
        for (int64_t e = s_.a_ptrs[i]; e < s_.a_ptrs[i + 1]; ++e) {
          const int64_t k = s_.a_idx[e], n = length(k);
          const I* const idx = s_.b_idx + s_.b_ptrs[k];
          found += is_band_[k] ? mark_band(seen.get() + idx[0], mark, n) : mark_columns(seen.get(), mark, idx, n);
        }
        ptrs[i + 1] = found;
      }
    });
    ptrs[0] = 0;
    for (int64_t i = 0; i < a_.rows; ++i) ptrs[i + 1] += ptrs[i];
  }
  static int64_t mark_band(uint32_t* seen, uint32_t mark, int64_t n) {
    uint32_t found = 0;
    for (int64_t t = 0; t < n; ++t) {
      found += seen[t] != mark;
      seen[t] = mark;
    }
    return found;
  }
  static int64_t mark_columns(uint32_t* seen, uint32_t mark, const I* idx, int64_t n) {
    int64_t found = 0;
    for (int64_t t = 0; t < n; ++t) {
      found += seen[idx[t]] != mark;
      seen[idx[t]] = mark;
    }
    return found;
  }

  // Row i of C, whose columns are known.
  template <class Ptrs>
  void add_row(int64_t i, const Ptrs* c_ptrs, Acc* sums) {
    const int64_t begin = c_ptrs[i], end = c_ptrs[i + 1];
    for (int64_t h = begin; h < end; ++h) sums[s_.c_idx[h]] = Acc(0);
    for (int64_t e = s_.a_ptrs[i]; e < s_.a_ptrs[i + 1]; ++e) {
      const int64_t k = s_.a_idx[e], g = s_.b_ptrs[k], n = length(k);
      const Acc scale(s_.a[e]);
      const I* const idx = s_.b_idx + g;
      if (is_band_[k]) {
        add_band(sums + idx[0], scale, b_ + g, n);
      } else {
        for (int64_t t = 0; t < n; ++t) sums[idx[t]] += scale * b_[g + t];
      }
    }
    for (int64_t h = begin; h < end; ++h) s_.out[h] = T(sums[s_.c_idx[h]]);
  }

  // f(entry of A, its column) for row i, while `row`, else zero, holds row i of C.
  template <class F>
  void with_row(int64_t i, Acc* row, F f) {
    const int64_t begin = s_.c_ptrs[i], end = s_.c_ptrs[i + 1];
    for (int64_t h = begin; h < end; ++h) row[s_.c_idx[h]] += c_[h];
    for (int64_t e = s_.a_ptrs[i]; e < s_.a_ptrs[i + 1]; ++e) f(e, int64_t(s_.a_idx[e]));
    for (int64_t h = begin; h < end; ++h) row[s_.c_idx[h]] = Acc(0);
  }
  Acc dot_of_row(int64_t k, const Acc* row) const {
    const int64_t g = s_.b_ptrs[k], n = length(k);
    const I* const idx = s_.b_idx + g;
    if (is_band_[k]) return dot(b_ + g, n, [band = row + idx[0]](int64_t t) { return band[t]; });
    return dot(b_ + g, n, [row, idx](int64_t t) { return row[idx[t]]; });
  }

  void b_values() {
    const int64_t n = a_.b_entries, worth = work_[a_.rows] / (4 * n);
    const int64_t shares = tp::max(int64_t(1), tp::min(worth, most_sums));
    c_ = widened(s_.c, a_.c_entries);
    Acc* const sums = context_.workspace<Acc>(shares * n);
    context_.parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      const auto row = scratch<Acc>(a_.cols);
      std::fill(row.get(), row.get() + a_.cols, Acc(0));
      for (int64_t share = begin; share < end; ++share) {
        Acc* const own = sums + share * n;
        std::fill(own, own + n, Acc(0));
        const int64_t last = cut(share + 1, shares);
        for (int64_t i = cut(share, shares); i < last; ++i) {
          with_row(i, row.get(), [&](int64_t e, int64_t k) { add_to_row(k, Acc(s_.a[e]), row.get(), own); });
        }
      }
    });
    context_.parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        Acc sum = sums[g];
        for (int64_t share = 1; share < shares; ++share) sum += sums[share * n + g];
        s_.out[g] = T(sum);
      }
    });
  }
  void add_to_row(int64_t k, Acc scale, const Acc* row, Acc* sums) const {
    const int64_t g = s_.b_ptrs[k], n = length(k);
    const I* const idx = s_.b_idx + g;
    if (is_band_[k]) return add_band(sums + g, scale, row + idx[0], n);
    for (int64_t t = 0; t < n; ++t) sums[g + t] += scale * row[idx[t]];
  }

  S s_;
  Context& context_;
  const SpgemmArgs& a_;
  bool* is_band_;
  const Acc *b_, *c_ = nullptr;
  int64_t* work_;  // of the rows before each: its products, its entries, and 1
};

}  // namespace

void spgemm::threaded(const Args& args, Context& context) {
  with_spgemm(args, context, [&](const auto& s) {
    Product product(s, context);
    if (args.wanted == Wanted::product) {
      product.multiply();
    } else {
      product.values(args.wanted);
    }
  });
}

}  // namespace tp
