// Each thread takes an equal share of the entries; in a CSR matrix, it walks the rows from that of its first entry on.
#include "sparse/threaded.h"

#include "sparse/sampled.h"

namespace tp {
namespace {

using namespace sparse;

struct OneByOne {
  template <class S>
  auto operator()(const S& s, int64_t row, int64_t column) const {
    return s.dot(row, column);
  }
};

// Computes entries begin to end - 1.
template <class Dot, class S>
void sample_share(const S& s, int64_t begin, int64_t end) {
  const bool by_pointers = s.a.row_idx == nullptr && s.a.ptrs != nullptr;
  int64_t row = by_pointers ? s.row(begin) : 0;
  for (int64_t i = begin; i < end; ++i) {
    if (by_pointers) {
      while (row + 1 < s.a.rows && int64_t(s.ptrs[row + 1]) <= i) ++row;
    } else {
      row = s.row(i);
    }
    const int64_t column = row < 0 ? -1 : s.column(i);
    s.out[i] = typename S::T(column < 0 ? typename S::Acc(0) : Dot{}(s, row, column));
  }
}

#ifdef TP_WITH_AVX2
struct InVectors {
  template <class S>
  TP_AVX2 auto operator()(const S& s, int64_t row, int64_t column) const {
    return dense_rows::dot(s.gy + row * s.a.k, s.x + column * s.a.k, s.a.k);
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
