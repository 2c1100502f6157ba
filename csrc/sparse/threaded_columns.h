// Rows stored column by column, on threads. A slot is a row in storage order. A thread takes a run of slots and
// multiplies, for each j in turn, the j-th entries of all of them. These are contiguous, so the loop over slots
// vectorizes. Padding is multiplied by x[0] as well, and its product is discarded.
#pragma once
#include "sparse/threaded.h"

namespace tp::sparse {

template <class Format, class B>
class SlotRun {
  using T = typename B::Value;
  using Acc = typename B::Acc;
  using Wide = wide_t<T>;
  static constexpr int64_t most_slots = 512;

 public:
  // The number of slots per run, so that a strip of their sums fits in the cache.
  static int64_t slots(int64_t k) { return k == 1 ? most_slots : most_slots / 16; }

  // `count` slots from `first` on, all in one section.
  SlotRun(const B& b, int64_t first, int64_t count) : b_(b), first_(first), count_(count) { find_lengths(); }

  // Calls store(slot, c, sum) for all slots and columns of Y.
  template <class Store>
  void multiply(Store store) {
    if (b_.a.k == 1) {
      multiply_vector(store);
    } else {
      for (int64_t c = 0; c < b_.a.k; c += columns_per_strip)
        multiply_strip(c, tp::min(columns_per_strip, b_.a.k - c), store);
    }
  }

 private:
  void find_lengths() {
    const auto walk = Format::walk(b_, first_);
    for (int64_t i = 0; i < count_; ++i) {
      if constexpr (Format::padded) {
        lengths_[i] = int32_t(Format::walk(b_, first_ + i).count);
      } else {  // later diagonals are never longer
        int64_t n = i == 0 ? walk.count : lengths_[i - 1];
        while (n > 0 && b_.pointer(n) - b_.pointer(n - 1) <= first_ + i) --n;
        lengths_[i] = int32_t(n);
      }
    }
    longest_ = count_ > 0 ? *std::max_element(lengths_, lengths_ + count_) : 0;
  }

  // Calls f(j, entry j of the first slot, the number of slots to process).
  template <class F>
  void each_entry(F f) {
    const auto walk = Format::walk(b_, first_);
    int64_t active = count_;
    for (int32_t j = 0; j < longest_; ++j) {
      while (active > 0 && lengths_[active - 1] <= j) --active;
      const int64_t base = walk.at(b_, j);
      if (active > 0) usable(base + active - 1, b_.a.entries, b_.a.op, "ptrs", j);
      f(j, base, active);
    }
  }

  template <class Store>
  void multiply_vector(Store store) {
    using I = typename B::Position;
    using U = typename std::make_unsigned<I>::type;
    const U cols = U(tp::min(b_.a.cols, int64_t(std::numeric_limits<I>::max())));
    const T nothing(0);
    const T* const x = cols > 0 ? b_.x : &nothing;
    Acc sums[most_slots] = {};
    Wide totals[most_slots] = {};
    each_entry([&](int32_t j, int64_t base, int64_t active) {
      const I* const columns = b_.col_idx + base;
      const T* const values = b_.values + base;
      bool bad = false;
      for (int64_t i = 0; i < active; ++i) {
        const I column = columns[i];
        const bool entry = j < lengths_[i], good = entry && U(column) < cols;
        bad |= entry && !good;
        const Acc product = Acc(values[i]) * Acc(x[good ? column : 0]);
        sums[i] += good ? product : Acc(0);
      }
      if (bad) check(j, base, active);
      if (j % chunk_length == chunk_length - 1) fold(sums, totals, count_);
    });
    fold(sums, totals, count_);
    for (int64_t i = 0; i < count_; ++i) store(first_ + i, 0, Acc(totals[i]));
  }

  template <class Store>
  void multiply_strip(int64_t c, int64_t n, Store store) {
    constexpr int64_t size = most_slots / 16 * columns_per_strip;
    Acc sums[size] = {};
    Wide totals[size] = {};
    each_entry([&](int32_t j, int64_t base, int64_t active) {
      check(j, base, active);
      for (int64_t i = 0; i < active; ++i) {
        const int64_t column = b_.col_idx[base + i];
        if (j >= lengths_[i] || column < 0) continue;
        add_scaled(sums + i * columns_per_strip, Acc(b_.values[base + i]), b_.x + column * b_.a.k + c, n);
      }
      if (j % chunk_length == chunk_length - 1) fold(sums, totals, count_ * columns_per_strip);
    });
    fold(sums, totals, count_ * columns_per_strip);
    for (int64_t i = 0; i < count_; ++i) {
      for (int64_t j = 0; j < n; ++j) store(first_ + i, c + j, Acc(totals[i * columns_per_strip + j]));
    }
  }

  static void fold(Acc* sums, Wide* totals, int64_t n) {
    for (int64_t i = 0; i < n; ++i) totals[i] += Wide(sums[i]);
    std::fill(sums, sums + n, Acc(0));
  }

  void check(int32_t j, int64_t base, int64_t active) const {
    for (int64_t i = 0; i < active; ++i) {
      if (j < lengths_[i]) b_.template column_usable<Format::padded>(b_.col_idx[base + i], base + i);
    }
  }

  const B& b_;
  const int64_t first_, count_;
  int32_t lengths_[most_slots], longest_;
};

// Calls store(b, slot, c, sum) for all slots and columns of Y.
template <class Format, class B, class Store>
void multiply_slots(const B& b, Context& context, Store store) {
  const int64_t rows = b.a.rows;
  int64_t section = tp::max(int64_t(1), rows);
  if constexpr (Format::sectioned) section = b.a.section_rows;
  const int64_t size = tp::min(SlotRun<Format, B>::slots(b.a.k), section), runs = ceil_div(section, size);
  const int64_t all = ceil_div(rows, section) * runs, together = ceil_div(int64_t(64), size);
  parallel(context, ceil_div(all, together), [&](int64_t piece) {
    for (int64_t run = piece * together; run < tp::min(all, (piece + 1) * together); ++run) {
      const int64_t start = run / runs * section, first = start + run % runs * size;
      const int64_t count = tp::min(size, tp::min(rows, start + section) - first);
      if (count <= 0) continue;
      SlotRun<Format, B>(b, first, count).multiply([&](int64_t slot, int64_t c, typename B::Acc sum) {
        store(slot, c, sum);
      });
    }
  });
}

template <class Format>
void multiply_columns_on_threads(const typename Format::Args& args, Context& context) {
  with_rows<Format>(args, context, [&](const auto& matrix) {
    const auto b = matrix.bind(simt::Pointers{});
    multiply_slots<Format>(b, context,
                           [&](int64_t slot, int64_t c, auto sum) { b.store(row_at<Format>(b, slot), c, sum); });
  });
}

}  // namespace tp::sparse
