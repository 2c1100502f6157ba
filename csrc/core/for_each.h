// Launches that need no cooperation between lanes: one element per lane, in a single phase.
#pragma once
#include "core/simt.h"

namespace tp::simt {

constexpr int for_each_threads = 256;

// Calls f(i) for 0 <= i < n, one lane per i; blocks stride over the elements.
template <class Block, class F>
TP_HD void for_each(Block& block, const char* phase, int64_t n, F f) {
  const int64_t threads = block.threads();
  for (int64_t first = block.index().x * threads; first < n; first += block.grid().x * threads) {
    block.phase(phase, [&](int t) {
      if (first + t < n) f(first + t);
    });
  }
}

// to[i] = from[i], converted.
template <class From, class To>
struct Convert {
  const From* from;
  To* to;
  int64_t n;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = block.global("from", from, n);
    const auto out = block.global("to", to, n);
    for_each(block, "convert", n, [&](int64_t i) { out[i] = To(From(in[i])); });
  }
};

// Launches a kernel that calls for_each on n elements.
template <class Kernel>
void launch_for_each(Context& context, const char* name, int64_t n, const Kernel& kernel, int64_t shared_bytes = 0) {
  const int64_t blocks = tp::min(ceil_div(n, int64_t(for_each_threads)), max_grid);
  launch(context, name, {blocks}, for_each_threads, shared_bytes, kernel);
}

}  // namespace tp::simt
