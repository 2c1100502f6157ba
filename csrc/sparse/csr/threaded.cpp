// Rows of any lengths, on threads. The end of each row counts as one more item after its last entry, and the items are
// divided into equal shares. The parts of a row that lie in several shares are combined afterwards, in order.
#include "sparse/csr/row_sums.h"

namespace tp {
namespace {

using namespace sparse;

constexpr int64_t rows_per_step = 32, short_row = 12;

// Computes y for rows first to last - 1, whose entries, begin to end - 1, have been checked, if row_sums.h cannot be
// used. Each short row has one running sum, because most of its time is the mispredicted end of its loop.
template <class B>
void sum_rows(const B& b, int64_t first, int64_t last, int64_t begin, int64_t end) {
  using T = typename B::Value;
  using Acc = typename B::Acc;
  static_assert(short_row * rows_per_step <= chunk_length, "a long row among short ones must fit in one chunk");
  const T *const values = b.values, *const x = b.x;
  const auto *const columns = b.col_idx, *const ptrs = b.ptrs;
  const auto stop_of = [&](int64_t row) { return tp::max(begin, tp::min(int64_t(ptrs[row + 1]), end)); };
  if (end - begin <= short_row * (last - first)) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t stop = stop_of(row);
      Acc sum(0);
      for (; begin < stop; ++begin) sum += Acc(values[begin]) * Acc(x[columns[begin]]);
      b.store(row, 0, sum);
    }
    return;
  }
  for (int64_t row = first; row < last; ++row) {
    const int64_t stop = stop_of(row);
    wide_t<T> total(0);
    do {
      const int64_t pause = tp::min(stop, begin + chunk_length);
      Acc sum[4] = {Acc(0), Acc(0), Acc(0), Acc(0)};
      for (; begin + 4 <= pause; begin += 4) {
        for (int i = 0; i < 4; ++i) sum[i] += Acc(values[begin + i]) * Acc(x[columns[begin + i]]);
      }
      for (; begin < pause; ++begin) sum[0] += Acc(values[begin]) * Acc(x[columns[begin]]);
      total += wide_t<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    } while (begin < stop);
    b.store(row, 0, Acc(total));
  }
}

template <class M>
class CsrShares {
  using T = typename M::T;
  using I = typename M::I;
  using Acc = typename M::Acc;
  using Wide = wide_t<T>;
  using Bound = decltype(std::declval<M>().bind(simt::Pointers{}));

  static constexpr int64_t most_shares = 512;

 public:
  CsrShares(const M& matrix, Context& context)
      : context_(context), b_(matrix.bind(simt::Pointers{})), items_(b_.a.entries + b_.a.rows) {
    // The number of shares does not depend on the number of threads: 1, 2, 4 or a multiple of 8.
    const int64_t enough = ceil_div(items_per_share / 2, tp::min(b_.a.k, columns_per_strip));
    const int64_t eights = tp::min(items_ / (16 * enough) + 1, most_shares / 8);
    int64_t shares = 1;
    while (shares < 8 && shares * enough < items_) shares *= 2;
    if (shares == 8) shares *= eights;
    size_ = tp::max(int64_t(1), ceil_div(items_, shares));
    count_ = tp::max(int64_t(1), ceil_div(items_, size_));
  }

  void run() {
    const int64_t k = b_.a.k;
    Wide few[64];  // allocating memory takes as long as a few thousand entries
    partial_ = 2 * count_ * k <= 64 ? few : context_.workspace<Wide>(2 * count_ * k);
    find_starts();
    parallel(context_, count_, [this](int64_t i) { sum_share(i); });
    join();
  }

 private:
  struct Stop {
    int64_t row, entry;
  };
  // Share i begins at item i * size_, in the first row that does not end before that item. The starts of all shares are
  // searched for together, so that their cache misses overlap.
  void find_starts() {
    for (int64_t i = 0; i <= count_; ++i) starts_[i].row = 0;
    for (int64_t n = b_.a.rows; n > 0;) {
      const int64_t skip = ceil_div(n, int64_t(2));
      for (int64_t i = 0; i <= count_; ++i) {
        const int64_t last = starts_[i].row + skip - 1;
        starts_[i].row += b_.pointer(last + 1) + last < item(i) ? skip : 0;
      }
      n -= skip;
    }
    for (int64_t i = 0; i <= count_; ++i) starts_[i].entry = item(i) - starts_[i].row;
  }
  int64_t item(int64_t share) const { return tp::min(share * size_, items_); }
  // The share's part of the first row that ends in it, and its part of the row that continues after it.
  Wide* ended(int64_t share) { return partial_ + 2 * share * b_.a.k; }
  Wide* open(int64_t share) { return ended(share) + b_.a.k; }

  void sum_share(int64_t share) {
    const Stop from = starts_[share], to = starts_[share + 1];
    int64_t entry = from.entry;
    const auto each = [&](auto sum) {
      for (int64_t row = from.row; row < to.row; ++row) {
        const int64_t end = b_.pointer(row + 1);
        sum(row, entry, end);
        entry = tp::max(entry, end);
      }
      sum(to.row, entry, to.entry);
    };
    if (b_.a.k == 1 && b_.a.perm == nullptr) {
      sum_plain_rows(share, from, to);
    } else if (sums_narrow_rows()) {
      sum_narrow_rows(share, from, to);
    } else {
      std::vector<Acc> sums(size_t(b_.a.k));
      int64_t checked = entry;
      each([&](int64_t row, int64_t begin, int64_t end) {
        if (checked < end) {
          const int64_t stop = tp::max(end, tp::min(checked + 2 * chunk_length, b_.a.entries));
          check(checked, stop);
          checked = stop;
        }
        if (row == to.row) {
          sum_chunks(begin, end, open(share), sums.data());
        } else if (row == from.row) {
          sum_chunks(begin, end, ended(share), sums.data());
        } else {
          sum_row(row, begin, end, sums);
        }
      });
    }
  }

  void sum_plain_rows(int64_t share, const Stop& from, const Stop& to) {
    int64_t entry = from.entry;
    if (from.row < to.row) {
      const int64_t next = tp::max(entry, b_.pointer(from.row + 1));
      *ended(share) = sum_run(entry, next);
      sum_rows(from.row + 1, to.row, next);
      entry = tp::max(next, b_.pointer(to.row));
    }
    *open(share) = sum_run(entry, to.entry);
  }
  bool sums_narrow_rows() const {
#ifdef TP_WITH_AVX2
    if constexpr (is_floating<T> && std::is_same<T, Acc>::value) {
      return b_.a.entries <= short_row * b_.a.rows && b_.a.k > 1 && b_.a.k <= dense_rows::most_narrow<Acc> &&
             b_.alone() && has_avx2();
    }
#endif
    return false;
  }
  // A few rows at a time, so that entries stay in the cache between the check and the sum.
  void sum_narrow_rows(int64_t share, const Stop& from, const Stop& to) {
    std::vector<Acc> sums(size_t(b_.a.k));
    int64_t entry = from.entry;
    const auto sum_part = [&](int64_t end, Wide* totals) {
      check(entry, end);
      sum_chunks(entry, end, totals, sums.data());
      entry = end;
    };
    if (from.row < to.row) sum_part(tp::max(entry, b_.pointer(from.row + 1)), ended(share));
    for (int64_t row = from.row + 1, stop; row < to.row; row = stop) {
      stop = tp::min(row + rows_per_step, to.row);
      const int64_t end = tp::max(entry, b_.pointer(stop));
      check(entry, end);
#ifdef TP_WITH_AVX2
      if constexpr (is_floating<T> && std::is_same<T, Acc>::value) {
        if (end - entry <= chunk_length) {
          dense_rows::sum_narrow_rows(b_, row, stop, entry);
          entry = end;
          continue;
        }
      }
#endif
      for (int64_t r = row; r < stop; ++r) {
        const int64_t next = tp::max(entry, b_.pointer(r + 1));
        sum_row(r, entry, next, sums);
        entry = next;
      }
    }
    sum_part(to.entry, open(share));
  }
  Wide sum_run(int64_t begin, int64_t end) const {
#ifdef TP_WITH_AVX2
    if constexpr (is_floating<T>) {
      if (has_avx2()) return row_sums::sum_run(b_, begin, end);
    }
#endif
    check(begin, end);
    return dot_run(b_.values, b_.col_idx, b_.x, begin, end, [](int64_t i) { return i; });
  }
  // Sums rows first to last - 1, whose entries begin at `entry`, a few rows at a time, so that entries stay in the
  // cache between the check and the sum.
  void sum_rows(int64_t first, int64_t last, int64_t entry) const {
#ifdef TP_WITH_AVX2
    if constexpr (is_floating<T>) {
      if (has_avx2()) return row_sums::sum_rows(b_, first, last);
    }
#endif
    for (int64_t row = first, stop; row < last; row = stop) {
      stop = tp::min(row + rows_per_step, last);
      const int64_t next = tp::max(entry, b_.pointer(stop));
      check(entry, next);
      tp::sum_rows(b_, row, stop, entry, next);
      entry = next;
    }
  }

  void check(int64_t begin, int64_t end) const {
    if (b_.a.perm != nullptr) check_indices(b_.perm, begin, end, b_.a.entries, b_.a.op, "plan_perm");
    check_indices(b_.col_idx, begin, end, b_.a.cols, b_.a.op, "col_idx");
  }
  // Sums a row that lies entirely in one share; `sums` has room for its k sums.
  void sum_row(int64_t row, int64_t begin, int64_t end, std::vector<Acc>& sums) const {
    if (end - begin > chunk_length) {
      std::vector<Wide> totals(sums.size());
      sum_chunks(begin, end, totals.data(), sums.data());
      store(row, totals.data());
      return;
    }
    if constexpr (std::is_same<T, Acc>::value) {
      if (b_.alone()) return sum_chunk(begin, end, b_.y + row * b_.a.k);
    }
    sum_chunk(begin, end, sums.data());
#ifdef TP_WITH_AVX2
    if constexpr (is_floating<T>) {
      if (b_.alone() && has_avx2()) return dense_rows::convert(sums.data(), b_.a.k, b_.y + row * b_.a.k);
    }
#endif
    store(row, sums.data());
  }
  void sum_chunks(int64_t begin, int64_t end, Wide* totals, Acc* sums) const {
    const int64_t k = b_.a.k;
    std::fill(totals, totals + k, Wide(0));
    for (int64_t stop; begin < end; begin = stop) {
      stop = tp::min(end, begin + chunk_length);
      sum_chunk(begin, stop, sums);
      for (int64_t c = 0; c < k; ++c) totals[c] += Wide(sums[c]);
    }
  }
  // The sums of one chunk at most.
  void sum_chunk(int64_t begin, int64_t end, Acc* sums) const {
    const int64_t k = b_.a.k;
    const I* const perm = b_.a.perm != nullptr ? b_.perm : nullptr;
    const auto at = [=](int64_t i) { return perm != nullptr ? int64_t(perm[i]) : i; };
    if (k == 1) {
      sums[0] = Acc(dot_run(b_.values, b_.col_idx, b_.x, begin, end, at));
      return;
    }
#ifdef TP_WITH_AVX2
    if constexpr (is_floating<T>) {
      if (has_avx2()) return dense_rows::sum(b_, begin, end, sums);
    }
#endif
    for (int64_t first = 0; first < k; first += columns_per_strip) {
      const int64_t n = tp::min(columns_per_strip, k - first);
      std::fill(sums + first, sums + first + n, Acc(0));
      for (int64_t i = begin; i < end; ++i) {
        add_scaled(sums + first, Acc(b_.values[at(i)]), b_.x + int64_t(b_.col_idx[i]) * k + first, n);
      }
    }
  }
  template <class Sum>
  void store(int64_t row, const Sum* sums) const {
    for (int64_t c = 0; c < b_.a.k; ++c) b_.store(row, c, Acc(sums[c]));
  }

  void join() {
    const int64_t k = b_.a.k;
    Wide one(0);
    std::vector<Wide> many(size_t(k == 1 ? 0 : k), Wide(0));
    Wide* running = k == 1 ? &one : many.data();
    int64_t first = 0;
    for (int64_t i = 0; i < count_; ++i) {
      const int64_t last = starts_[i + 1].row;
      const Wide *before = first < last ? ended(i) : open(i), *after = open(i);
      for (int64_t c = 0; c < k; ++c) running[c] += before[c];
      if (first < last) {
        store(first, running);
        std::copy(after, after + k, running);
      }
      first = last;
    }
  }

  Context& context_;
  Bound b_;
  int64_t items_, size_, count_;
  Stop starts_[most_shares + 1];
  Wide* partial_;
};

}  // namespace

void spmv_csr::threaded(const Args& args, Context& context) {
  with_rows<Csr>(args, context,
                 [&](const auto& matrix) { CsrShares<std::decay_t<decltype(matrix)>>(matrix, context).run(); });
}

}  // namespace tp
