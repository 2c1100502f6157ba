// Sums rounded once, as the kernels of group_reduce compute them, but one value after another. tests/test_groups.py
// calls it. `rows` is the number of values for which the words must have room.
#include "segmented/exact_sum.h"

#include <vector>

namespace {

template <class T>
float sum(const float* x, int64_t n, int64_t rows) {
  using Bins = tp::segmented::Bins<T>;
  const int width = Bins::width_for(rows);
  tp::segmented::Extent extent{};
  for (int64_t i = 0; i < n; ++i) Bins::extend(extent, T(x[i]));
  const Bins bins(width, extent);
  tp::require(bins.words() <= Bins::most_words(width), "too many words");
  std::vector<int64_t> words(size_t(bins.words()));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t operand = bins.operand(T(x[i]));
    if (operand == 0) continue;
    int64_t& word = words.at(size_t(bins.word_of(T(x[i]))));
    tp::require(!__builtin_add_overflow(word, operand, &word), "a word overflows");
  }
  return float(bins.sum([&](int i) { return words.at(size_t(i)); }));
}

}  // namespace

// The dtypes of x and the result: 0 float32, 1 float16, 2 bfloat16.
extern "C" float exact_sum(const float* x, int64_t n, int64_t rows, int dtype) {
  return dtype == 0 ? sum<float>(x, n, rows) : dtype == 1 ? sum<tp::half>(x, n, rows) : sum<tp::bfloat16>(x, n, rows);
}
