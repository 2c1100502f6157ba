// Each thread takes an equal share of the entries; in a CSR matrix, it walks the rows from that of its first entry on.
#include "sparse/threaded.h"

#include "sparse/sampled.h"

namespace tp {
namespace {

using namespace sparse;

// Computes entries begin to end - 1 of a row, or of row -1, whose entries are 0.
struct OneByOne {
  template <class S>
  static void sample_row(const S& s, int64_t row, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) s.out[i] = typename S::T(s.sample(i, row));
  }
};

// Computes entries begin to end - 1.
template <class Rows, class S>
void sample_share(const S& s, int64_t begin, int64_t end) {
  if (s.a.row_idx != nullptr || s.a.ptrs == nullptr) {
    for (int64_t i = begin; i < end; ++i) Rows::sample_row(s, s.row(i), i, i + 1);
    return;
  }
  for (int64_t row = s.row(begin); begin < end; ++row) {
    const int64_t stop = row + 1 < s.a.rows ? tp::min(int64_t(s.ptrs[row + 1]), end) : end;
    Rows::sample_row(s, row, begin, stop);
    begin = tp::max(begin, stop);
  }
}

#ifdef TP_WITH_AVX2
struct InVectors {
  // Entries first to first + count - 1, which are not padding.
  template <int count, class S>
  TP_AVX2_INLINE static void sample_some(const S& s, int64_t row, int64_t first, const int64_t (&columns)[4]) {
    const typename S::T* x[count];
    typename S::Acc sums[count];
    for (int k = 0; k < count; ++k) x[k] = s.x + columns[k] * s.a.k;
    dense_rows::dots(s.gy + row * s.a.k, x, s.a.k, sums);
    for (int k = 0; k < count; ++k) s.out[first + k] = typename S::T(sums[k]);
  }
  template <class S>
  TP_AVX2 static void sample_row(const S& s, int64_t row, int64_t begin, int64_t end) {
    int64_t i = begin;
    if (row < 0) return OneByOne::sample_row(s, row, begin, end);
    while (i < end) {
      int64_t columns[4] = {s.column(i), -1, -1, -1};
      bool four = end - i >= 4 && columns[0] >= 0;
      for (int k = 1; k < 4 && four; ++k) four = (columns[k] = s.column(i + k)) >= 0;
      if (four) {
        sample_some<4>(s, row, i, columns);
        i += 4;
        continue;
      }
      if (columns[0] < 0) {
        s.out[i] = typename S::T(typename S::Acc(0));
      } else {
        sample_some<1>(s, row, i, columns);
      }
      ++i;
    }
  }
};
template <class S>
__attribute__((flatten)) TP_AVX2 void sample_share_in_vectors(const S& s, int64_t begin, int64_t end) {
  sample_share<InVectors>(s, begin, end);
}
#endif

template <class S>
void sample(const S& s, int64_t begin, int64_t end) {
#ifdef TP_WITH_AVX2
  if constexpr (is_floating<typename S::T>) {
    if (s.a.k > 1 && has_avx2()) return sample_share_in_vectors(s, begin, end);
  }
#endif
  sample_share<OneByOne>(s, begin, end);
}

}  // namespace

void sampled_product::threaded(const Args& args, Context& context) {
  with_sample(args, context, [&](const auto& sample_of) {
    const auto s = sample_of.bind(simt::Pointers{});
    const int64_t size = tp::max(int64_t(256), items_per_share / tp::max(int64_t(1), args.k));
    parallel(context, ceil_div(args.entries, size),
             [&](int64_t share) { sample(s, share * size, tp::min(args.entries, (share + 1) * size)); });
  });
}

}  // namespace tp
