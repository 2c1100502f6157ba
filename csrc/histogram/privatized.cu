// The privatized histogram: every block counts in its own copy in shared memory, where atomic additions are fast and
// only threads of the same block conflict, and then adds each counter of the copy to the result once.
//
// Shared memory holds a window of the bins. With more bins than that, a block reads its elements once per window.
#include "histogram/extent.h"

namespace tp::histogram {
namespace {

constexpr int threads = 256, items = 16;
constexpr int window = 8192;  // bins; the copy takes 32 KB

template <class Problem>
struct CountPrivately {
  Problem problem;
  const Extent* extent;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = block.global("x", problem.in, problem.n);
    const auto counts = block.global("counts", problem.counts, problem.bins);
    auto copy = block.template shared<int>("copy", int(tp::min(problem.bins, int64_t(window))));
    const auto all_bins = find_bins(problem, extent, block);
    for (int64_t first = block.index().y * window; first < problem.bins; first += block.grid().y * window) {
      const int bins = int(tp::min(problem.bins - first, int64_t(window)));
      block.phase("clear", [&](int t) {
        for (int i = t; i < bins; i += threads) copy[i] = 0;
      });
      block.phase("count", [&](int t) {
        for (int64_t i = block.index().x * threads + t; i < problem.n; i += block.grid().x * threads) {
          const typename Problem::Element value = x[i];
          int64_t bin;
          if (!all_bins.locate(value, bin)) continue;
          bin -= first;
          if (0 <= bin && bin < bins) copy.template atomic<Sum<int>>(int(bin), 1);
        }
      });
      block.phase("add", [&](int t) {
        for (int i = t; i < bins; i += threads) {
          const int count = copy[i];
          if (count > 0) counts.template atomic<Sum<int64_t>>(first + i, int64_t(count));
        }
      });
    }
  }
};

}  // namespace

void privatized(const Args& args, Context& context) {
  with_problem(args, [&](const auto& problem) {
    const Extent* extent = find_extent(problem, "privatized", context);
    context.clear(problem.counts, problem.bins * int64_t(sizeof(int64_t)));
    const int64_t blocks = tp::min(ceil_div(problem.n, int64_t(threads * items)), most_blocks);
    const int64_t windows = tp::min(ceil_div(problem.bins, int64_t(window)), int64_t(65535));
    const int64_t shared = tp::min(problem.bins, int64_t(window)) * int64_t(sizeof(int));
    simt::launch(context, "privatized", {blocks, windows}, threads, shared,
                 CountPrivately<std::decay_t<decltype(problem)>>{problem, extent});
  });
}

}  // namespace tp::histogram
