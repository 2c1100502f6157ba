// Shares of rows with equally many products. Each share collects its rows of C in its own memory until the size of C is
// known. Setting bits yields the columns of a row in order (ordered_columns.h), and an array as long as a row adds up
// the products, while the rows of B are in the cache.
//
// Four cases are faster. The columns of a row of B often share words of bits; these are computed once for each row.
// Many rows of B are bands, that is, their columns are consecutive; their products need no index and are added as
// vectors. The other rows of B are scattered in memory, and are prefetched a few entries of A ahead. If C has many
// columns, the few products of a short row are sorted, by counting, and added up in that order.
//
// The gradient of B's values adds up products of all rows of C. The rows are divided into shares, whose number does not
// depend on the number of threads; each share has its own sums, and these are added in order.
#include "sparse/threaded.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "block/on_vectors.h"
#include "sparse/spgemm/ordered_columns.h"
#include "sparse/spgemm/rows.h"

namespace tp {
namespace {

using namespace sparse;

// Of a row whose columns are compared with each other: products, and columns of C, as otherwise the array is in L1.
constexpr int64_t most_counted = 32, least_columns = 1 << 13;
constexpr int64_t least_band = 4, products_per_share = 1 << 14, most_shares = 64, most_sums = 8, ahead = 8;

// to[0] to to[n - 1] += scale * x; the two arrays do not overlap.
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

// Writes the n different keys, which are not negative, in order; there is room for a multiple of eight.
inline void sort_by_counting(int64_t* keys, int64_t n, int64_t* sorted) {
  on_vectors([=] {
    const int64_t padded = (n + 7) / 8 * 8;
    for (int64_t i = n; i < padded; ++i) keys[i] = std::numeric_limits<int64_t>::max();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t key = keys[i];
      int64_t before = 0;
      for (int64_t j = 0; j < padded; ++j) before += keys[j] < key;
      sorted[before] = key;
    }
  });
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
    if (a_.refuses(work_[a_.rows] - a_.a_entries - a_.rows)) return;
    gather_words();
    int64_t* const ptrs = a_.ptrs;
    const int64_t shares = count_shares();
    std::vector<Rows> found(static_cast<size_t>(shares));
    context_.parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      OrderedColumns columns(a_.cols);
      const auto sums = zeros<Acc>(a_.cols);
      for (int64_t share = begin; share < end; ++share) {
        const int64_t first = cut(share, shares), last = cut(share + 1, shares);
        Rows& rows = found[size_t(share)];
        rows.reserve(room_for(first, last) + 1);  // take() may write one more
        for (int64_t i = first; i < last; ++i) ptrs[i + 1] = multiply_row(i, columns, sums.get(), rows);
        rows.reserve(rows.entries);
      }
    });
    ptrs[0] = 0;
    for (int64_t i = 0; i < a_.rows; ++i) ptrs[i + 1] += ptrs[i];
    const auto room = a_.room(ptrs[a_.rows]);
    parallel(context_, shares, [&](int64_t share) {
      const int64_t at = ptrs[cut(share, shares)];
      found[size_t(share)].move(static_cast<I*>(room.col_idx) + at, static_cast<T*>(room.values) + at);
    });
  }

  void values(Wanted wanted) {
    if (wanted == Wanted::b) return b_values();
    c_ = widened(s_.c, a_.c_entries);
    const int64_t shares = count_shares();
    context_.parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      const auto row = zeros<Acc>(a_.cols);
      const int64_t last = cut(end, shares);
      for (int64_t i = cut(begin, shares); i < last; ++i) {
        if (wanted == Wanted::a) {
          with_row(i, row.get(), [&](int64_t e, int64_t g, int64_t n) { s_.out[e] = T(dot_of_row(g, n, row.get())); });
        } else {
          fill_row(i, row.get());
        }
      }
    });
  }

 private:
  // Rows of C, with room for more entries than they will have. The system does not allocate pages that are never
  // written.
  struct Rows {
    struct Free {
      void operator()(void* memory) const { std::free(memory); }
    };
    template <class X>
    static void resize(std::unique_ptr<X[], Free>& array, int64_t n) {
      void* const memory = std::realloc(array.get(), size_t(tp::max(n, int64_t(1))) * sizeof(X));
      if (memory == nullptr) throw std::bad_alloc();
      static_cast<void>(array.release());
      array.reset(static_cast<X*>(memory));
    }
    void reserve(int64_t n) { resize(idx, n), resize(values, n); }
    void move(I* to, T* values_to) {
      std::memcpy(to, idx.get(), size_t(entries) * sizeof(I));
      std::memcpy(static_cast<void*>(values_to), values.get(), size_t(entries) * sizeof(T));
      idx.reset(), values.reset();
    }
    std::unique_ptr<I[], Free> idx;
    std::unique_ptr<T[], Free> values;
    int64_t entries = 0;
  };

  template <class X>
  static std::unique_ptr<X[]> zeros(int64_t n) {
    return std::unique_ptr<X[]>(new X[size_t(n)]());
  }
  int64_t length(int64_t k) const { return int64_t(s_.b_ptrs[k + 1]) - int64_t(s_.b_ptrs[k]); }

  int64_t count_shares() const {
    return tp::max(int64_t(1), tp::min(work_[a_.rows] / products_per_share, most_shares));
  }
  int64_t cut(int64_t share, int64_t shares) const {
    if (share == shares) return a_.rows;
    const int64_t before = int64_t(double(work_[a_.rows]) / double(shares) * double(share));
    return std::lower_bound(work_, work_ + a_.rows, before) - work_;
  }

  // For each row of B, at the index of its first entry: whether it is a band.
  void find_bands() {
    band_at_ = context_.workspace<bool>(a_.b_entries);
    context_.parallel_for(a_.inner, 1 << 12, [&](int64_t first, int64_t last) {
      for (int64_t k = first; k < last; ++k) {
        const I *at = s_.b_idx + s_.b_ptrs[k], *end = s_.b_idx + s_.b_ptrs[k + 1];
        if (end - at < least_band) continue;
        bool& is_band = band_at_[s_.b_ptrs[k]];
        is_band = end[-1] - *at == end - at - 1;
        while (is_band && ++at < end) is_band = at[-1] + 1 == *at;
      }
    });
  }
  bool is_band(int64_t g, int64_t n) const { return n >= least_band && band_at_[g]; }

  // The words of bits that the columns of each row of B set, if they are few. Those of a row are stored from the index
  // of its first entry on.
  void gather_words() {
    I *words = context_.workspace<I>(a_.b_entries), *counts = context_.workspace<I>(a_.inner);
    uint64_t* const masks = context_.workspace<uint64_t>(a_.b_entries);
    std::atomic<int64_t> total{0};
    context_.parallel_for(a_.inner, 1 << 12, [&](int64_t first, int64_t last) {
      int64_t found = 0;
      for (int64_t k = first; k < last; ++k) {
        const int64_t g = s_.b_ptrs[k];
        int64_t n = 0;
        OrderedColumns::each_word(s_.b_idx + g, length(k), [&](uint64_t word, uint64_t mask) {
          words[g + n] = I(word);
          masks[g + n++] = mask;
        });
        counts[k] = I(n);
        found += n;
      }
      total += found;
    });
    if (total > a_.b_entries / 2) return;
    words_ = words, counts_ = counts, masks_ = masks;
  }

  // Values in the dtype in which they are added up.
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

  // An upper bound on the number of entries of some rows of C.
  int64_t room_for(int64_t first, int64_t last) const {
    int64_t most = 0;
    for (int64_t i = first; i < last; ++i) most += tp::min(work_[i + 1] - work_[i], a_.cols);
    return most;
  }

  // Calls f(entry of A, first entry of its row of B, length of that row) for all entries of row i of A.
  template <class F>
  void each_row_of_b(int64_t i, F f) const {
    for (int64_t e = s_.a_ptrs[i]; e < s_.a_ptrs[i + 1]; ++e) {
      if (e + 2 * ahead < a_.a_entries) {
        __builtin_prefetch(s_.b_ptrs + s_.a_idx[e + 2 * ahead]);
        const int64_t g = s_.b_ptrs[s_.a_idx[e + ahead]];
        __builtin_prefetch(s_.b_idx + g);
        __builtin_prefetch(b_ + g);
      }
      const int64_t k = s_.a_idx[e];
      f(e, int64_t(s_.b_ptrs[k]), length(k));
    }
  }

  // Appends row i of C and returns its length. `sums` is zero before and after.
  int64_t multiply_row(int64_t i, OrderedColumns& columns, Acc* sums, Rows& rows) {
    if (words_ == nullptr && a_.cols >= least_columns && products_of(i) <= most_counted)
      return multiply_short_row(i, rows);
    if (words_ != nullptr) {
      each_row_of_b(i, [&](int64_t e, int64_t g, int64_t) {
        columns.add_words(words_ + g, masks_ + g, int64_t(counts_[s_.a_idx[e]]));
      });
      add_products(i, sums);
    } else {
      each_row_of_b(i, [&](int64_t e, int64_t g, int64_t n) {
        columns.add(s_.b_idx + g, n);
        add_row(Acc(s_.a[e]), g, n, sums);
      });
    }
    I* const idx = rows.idx.get() + rows.entries;
    T* const values = rows.values.get() + rows.entries;
    const int64_t n = columns.take(idx) - idx;
    for (int64_t h = 0; h < n; ++h) {
      values[h] = T(sums[idx[h]]);
      sums[idx[h]] = Acc(0);
    }
    rows.entries += n;
    return n;
  }

  int64_t products_of(int64_t i) const {
    return work_[i + 1] - work_[i] - 1 - (int64_t(s_.a_ptrs[i + 1]) - int64_t(s_.a_ptrs[i]));
  }

  // Does the same for a row of few products. The position of each is the number of those that have a smaller column, or
  // the same column and come before it.
  int64_t multiply_short_row(int64_t i, Rows& rows) {
    int64_t keys[most_counted];  // column and number
    Acc terms[most_counted];
    int64_t n = 0;
    each_row_of_b(i, [&](int64_t e, int64_t g, int64_t length) {
      const Acc scale(s_.a[e]);
      for (int64_t t = g; t < g + length; ++t, ++n) {
        keys[n] = int64_t(s_.b_idx[t]) * most_counted + n;
        terms[n] = scale * b_[t];
      }
    });
    int64_t sorted[most_counted];
    sort_by_counting(keys, n, sorted);
    I* const idx = rows.idx.get() + rows.entries;
    T* const values = rows.values.get() + rows.entries;
    int64_t count = 0;
    for (int64_t p = 0; p < n;) {
      const int64_t column = sorted[p] / most_counted;
      Acc sum(0);
      for (; p < n && sorted[p] / most_counted == column; ++p) sum += terms[sorted[p] % most_counted];
      idx[count] = I(column);
      values[count++] = T(sum);
    }
    rows.entries += count;
    return count;
  }

  void add_products(int64_t i, Acc* sums) const {
    each_row_of_b(i, [&](int64_t e, int64_t g, int64_t n) { add_row(Acc(s_.a[e]), g, n, sums); });
  }
  void add_row(Acc scale, int64_t g, int64_t n, Acc* sums) const {
    const I* const idx = s_.b_idx + g;
    if (is_band(g, n)) return add_band(sums + idx[0], scale, b_ + g, n);
    for (int64_t t = 0; t < n; ++t) sums[idx[t]] += scale * b_[g + t];
  }

  // Computes the values of row i of C, whose columns are known.
  void fill_row(int64_t i, Acc* sums) {
    const int64_t begin = s_.c_ptrs[i], end = s_.c_ptrs[i + 1];
    for (int64_t h = begin; h < end; ++h) sums[s_.c_idx[h]] = Acc(0);
    add_products(i, sums);
    for (int64_t h = begin; h < end; ++h) s_.out[h] = T(sums[s_.c_idx[h]]);
  }

  // Calls each_row_of_b while `row` holds the values of row i of C; otherwise `row` is zero.
  template <class F>
  void with_row(int64_t i, Acc* row, F f) {
    const int64_t begin = s_.c_ptrs[i], end = s_.c_ptrs[i + 1];
    for (int64_t h = begin; h < end; ++h) row[s_.c_idx[h]] += c_[h];
    each_row_of_b(i, f);
    for (int64_t h = begin; h < end; ++h) row[s_.c_idx[h]] = Acc(0);
  }
  Acc dot_of_row(int64_t g, int64_t n, const Acc* row) const {
    const I* const idx = s_.b_idx + g;
    if (is_band(g, n)) return dot(b_ + g, n, [band = row + idx[0]](int64_t t) { return band[t]; });
    return dot(b_ + g, n, [row, idx](int64_t t) { return row[idx[t]]; });
  }

  void b_values() {
    const int64_t n = a_.b_entries, worth = work_[a_.rows] / (4 * n);
    const int64_t shares = tp::max(int64_t(1), tp::min(worth, most_sums));
    c_ = widened(s_.c, a_.c_entries);
    Acc* const sums = context_.workspace<Acc>(shares * n);
    context_.parallel_for(shares, 1, [&](int64_t begin, int64_t end) {
      const auto row = zeros<Acc>(a_.cols);
      for (int64_t share = begin; share < end; ++share) {
        Acc* const own = sums + share * n;
        std::fill(own, own + n, Acc(0));
        const int64_t last = cut(share + 1, shares);
        for (int64_t i = cut(share, shares); i < last; ++i) {
          with_row(i, row.get(),
                   [&](int64_t e, int64_t g, int64_t n) { add_to_row(g, n, Acc(s_.a[e]), row.get(), own); });
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
  void add_to_row(int64_t g, int64_t n, Acc scale, const Acc* row, Acc* sums) const {
    const I* const idx = s_.b_idx + g;
    if (is_band(g, n)) return add_band(sums + g, scale, row + idx[0], n);
    for (int64_t t = 0; t < n; ++t) sums[g + t] += scale * row[idx[t]];
  }

  S s_;
  Context& context_;
  const SpgemmArgs& a_;
  bool* band_at_;
  const I *words_ = nullptr, *counts_ = nullptr;
  const uint64_t* masks_ = nullptr;
  const Acc *b_ = nullptr, *c_ = nullptr;
  int64_t* work_;  // the work of the rows before each row: its products, its entries, and 1 per row
};

}  // namespace

void spgemm::threaded(const Args& args, Context& context) {
  with_spgemm(args, [&](const auto& s) {
    check_on_host(s, context);
    Product product(s, context);
    if (args.wanted == Wanted::product) {
      product.multiply();
    } else {
      product.values(args.wanted);
    }
  });
}

}  // namespace tp
