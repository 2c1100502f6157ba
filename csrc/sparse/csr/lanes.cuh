// Groups of lanes that together sum the entries of a row. If Y has one column, the lanes take neighbouring entries;
// otherwise each takes `width` neighbouring columns of Y.
#pragma once
#include "block/load_store.cuh"
#include "block/warp.cuh"
#include "sparse/csr/layout.h"

namespace tp::sparse {

using block::warp_size;

// Loads data that is read only once, without displacing x from the caches.
template <class E, int width>
TP_DEVICE block::Vector<E, width> read_once(const block::Vector<E, width>* p) {
  constexpr int bytes = int(sizeof(E)) * width;
  using Word = std::conditional_t<bytes == 16, uint4, std::conditional_t<bytes == 8, uint2, unsigned>>;
  static_assert(sizeof(Word) == bytes, "a vector must be one access");
  const Word word = __ldcs(reinterpret_cast<const Word*>(p));
  block::Vector<E, width> v;
  memcpy(&v, &word, sizeof(v));
  return v;
}

// Up to `size` entries of a row, `step` apart, from entry `at` on and before `end`. All of them are loaded together,
// before x is read. `planned` says that the matrix has a perm. column[j] is -1 if entry j does not exist, or if its
// column is outside the matrix.
template <class B, int size, bool planned>
struct EntryBatch {
  using T = typename B::Value;
  using I = typename B::Position;
  using U = typename std::make_unsigned<I>::type;
  using Acc = typename B::Acc;
  I column[size];
  T value[size];

  TP_DEVICE EntryBatch(const B& b, int64_t at, int64_t end, int step) {
    const int left = int(tp::min(tp::max(end - at, int64_t(0)), int64_t(1 << 30)));
    const I* const columns = b.col_idx + at;
    const T* const values = b.values + at;
    if constexpr (planned) {
      const I* const perm = b.perm + at;
      I entry[size];
#pragma unroll
      for (int j = 0; j < size; ++j) entry[j] = j * step < left ? perm[j * step] : I(-1);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const bool is_entry = inside(entry[j], b.a.entries);
        value[j] = is_entry ? b.values[entry[j]] : T(0);
        column[j] = is_entry ? *(b.a.perm_indexes ? b.col_idx + entry[j] : columns + j * step) : I(-1);
      }
    } else {
#pragma unroll
      for (int j = 0; j < size; ++j) {
        column[j] = j * step < left ? columns[j * step] : I(-1);
        value[j] = j * step < left ? values[j * step] : T(0);
      }
    }
    const U cols = U(tp::min(b.a.cols, int64_t(std::numeric_limits<I>::max())));
#pragma unroll
    for (int j = 0; j < size; ++j) column[j] = U(column[j]) < cols ? column[j] : I(-1);
  }
  TP_DEVICE bool exists(int j) const { return column[j] >= 0; }
  // Multiplies each entry by its element of x, for k = 1.
  TP_DEVICE void multiply(const B& b, Acc (&product)[size]) const {
    T x[size];
#pragma unroll
    for (int j = 0; j < size; ++j) x[j] = exists(j) ? b.x[column[j]] : T(0);
#pragma unroll
    for (int j = 0; j < size; ++j) product[j] = exists(j) ? Acc(value[j]) * Acc(x[j]) : Acc(0);
  }
};

// Calls f(true) or f(false) as a compile-time constant that says whether the matrix has a perm.
template <class F>
void with_plan(const CsrArgs& args, F f) {
  if (args.perm != nullptr) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

// The sum of entries begin, begin + step, ... before `end`, each times its element of x.
template <bool planned, class B>
TP_DEVICE typename B::Acc sum_entries(const B& b, int64_t begin, int64_t end, int step) {
  using Acc = typename B::Acc;
  constexpr int size = 4;
  Acc sum(0);
  for (; begin < end; begin += size * step) {
    Acc product[size];
    EntryBatch<B, size, planned>(b, begin, end, step).multiply(b, product);
    sum += (product[0] + product[1]) + (product[2] + product[3]);
  }
  return sum;
}

// The sum over a group of `lanes` lanes, a power of 2. Every lane of the group gets it.
template <class Acc>
TP_DEVICE Acc sum_lanes(Acc sum, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum += block::detail::by_words(sum, [=](unsigned w) { return __shfl_xor_sync(~0u, w, distance); });
  }
  return sum;
}

// How k columns are distributed over lanes: a group of `lanes` lanes, a power of 2, takes `width` columns per lane,
// which is one strip of columns. There are `strips` of them.
template <int width_>
struct Columns {
  static constexpr int width = width_;
  int lanes;
  int64_t strips;

  explicit Columns(int64_t k) : lanes(1) {
    while (lanes < warp_size && lanes * width < k) lanes *= 2;
    strips = ceil_div(k, int64_t(lanes) * width);
  }
};

// Whether rows of k elements, the first at a multiple of 16 bytes, all begin at such a multiple.
template <class T>
bool fills_vectors(int64_t k) {
  return k % int64_t(16 / sizeof(T)) == 0;
}

inline bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Calls f(Columns<width>). If all rows of x are aligned to 16 bytes, `width` is the number of elements that fill 16
// bytes, otherwise 1.
template <class M, class F>
void with_columns(const M& matrix, const void* x, F f) {
  using T = typename M::T;
  if (fills_vectors<T>(matrix.a.k) && is_aligned(x)) {
    f(Columns<int(16 / sizeof(T))>(matrix.a.k));
  } else {
    f(Columns<1>(matrix.a.k));
  }
}

// The sums of `width` neighbouring columns of a row.
template <class B, int width>
struct RowSums {
  using T = typename B::Value;
  using Acc = typename B::Acc;
  Acc sum[width];

  TP_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] = Acc(0);
  }
  // Adds entries begin to end - 1 for columns c to c + width - 1 of X; c + width <= k.
  template <bool planned>
  TP_DEVICE void add(const B& b, int64_t begin, int64_t end, int64_t c) {
    using V = block::Vector<T, width>;
    constexpr int size = 4;
    for (; begin < end; begin += size) {
      const EntryBatch<B, size, planned> batch(b, begin, end, 1);
      V x[size];
#pragma unroll
      for (int j = 0; j < size; ++j) {
        if (batch.exists(j)) x[j] = *reinterpret_cast<const V*>(b.x + int64_t(batch.column[j]) * b.a.k + c);
      }
#pragma unroll
      for (int j = 0; j < size; ++j) {
        if (!batch.exists(j)) continue;
#pragma unroll
        for (int i = 0; i < width; ++i) sum[i] += Acc(batch.value[j]) * Acc(x[j].v[i]);
      }
    }
  }
};

}  // namespace tp::sparse
