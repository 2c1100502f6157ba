// The histogram by atomic additions: one thread per element, and all threads add to one array of counters in global
// memory. The result does not depend on the order. The fullest bin limits the speed, because additions to one counter
// are serialized.
#include "histogram/extent.h"

namespace tp::histogram {
namespace {

constexpr int threads = 256;

template <class Problem>
struct CountEach {
  Problem problem;
  const Extent* extent;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = block.global("x", problem.in, problem.n);
    const auto counts = block.global("counts", problem.counts, problem.bins);
    const auto bins = find_bins(problem, extent, block);
    for (int64_t first = block.index().x * threads; first < problem.n; first += block.grid().x * threads) {
      block.phase("count", [&](int t) {
        if (first + t >= problem.n) return;
        const typename Problem::Element value = x[first + t];
        int64_t bin;
        if (bins.locate(value, bin)) counts.template atomic<Sum<int64_t>>(bin, 1);
      });
    }
  }
};

}  // namespace

void atomic(const Args& args, Context& context) {
  with_problem(args, [&](const auto& problem) {
    const Extent* extent = find_extent(problem, "atomic", context);
    context.clear(problem.counts, problem.bins * int64_t(sizeof(int64_t)));
    const int64_t blocks = tp::min(ceil_div(problem.n, int64_t(threads)), max_grid);
    simt::launch(context, "atomic", {blocks}, threads, 0, CountEach<std::decay_t<decltype(problem)>>{problem, extent});
  });
}

}  // namespace tp::histogram
