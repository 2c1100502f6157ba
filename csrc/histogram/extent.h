// Finds the extent of the elements on the device if the range is not given: each block reduces its part, then one block
// reduces the results of all blocks. The host does not read the extent, so it does not wait.
#pragma once
#include "core/simt.h"
#include "histogram/bins.h"

namespace tp::histogram {

constexpr int64_t most_blocks = 1056;  // 8 per multiprocessor of an H200, and several per multiprocessor of any GPU

// Reduces elements, or extents, to one extent per block.
template <class T>
struct FindExtent {
  static constexpr int threads = 256;
  const T* in;
  int64_t n;
  Extent* out;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = block.global("x", in, n);
    const auto y = block.global("extents", out, block.grid().x);
    auto s = block.template shared<Extent>("s", threads);
    block.phase("stride", [&](int t) {
      Extent mine;
      for (int64_t i = block.index().x * threads + t; i < n; i += block.grid().x * threads) {
        const T value = x[i];
        mine.include(value);
      }
      s[t] = mine;
    });
    for (int stride = threads / 2; stride > 0; stride /= 2) {
      block.phase("reduce", [&](int t) {
        if (t >= stride) return;
        Extent mine = s[t];
        const Extent other = s[t + stride];
        mine.include(other);
        s[t] = mine;
      });
    }
    block.phase("store", [&](int t) {
      if (t != 0) return;
      const Extent all = s[0];
      y[block.index().x] = all;
    });
  }
};

// Returns the extent in device memory, or null if the range is given.
template <class Problem>
const Extent* find_extent(const Problem& problem, const char* rung, Context& context) {
  if (!problem.needs_extent) return nullptr;
  using First = FindExtent<typename Problem::Element>;
  using Last = FindExtent<Extent>;
  const int64_t blocks = tp::min(tp::max(ceil_div(problem.n, int64_t(16 * First::threads)), int64_t(1)), most_blocks);
  const int64_t shared = First::threads * int64_t(sizeof(Extent));
  Extent* found = context.workspace<Extent>(blocks + 1);
  simt::launch(context, rung, {blocks}, First::threads, shared, First{problem.in, problem.n, found});
  simt::launch(context, rung, {1}, Last::threads, shared, Last{found, blocks, found + blocks});
  return found + blocks;
}

// Returns the problem's bins; called in a kernel.
template <class Problem, class Block>
TP_HD auto find_bins(const Problem& problem, const Extent* extent, Block& block) {
  if (!extent) return problem.bins_over({});
  const auto found = block.global("extent", extent, 1);
  return problem.bins_over(block.uniform("extent", [&] {
    const Extent all = found[0];
    return all;
  }));
}

}  // namespace tp::histogram
