// The sequential histogram: one element after another. Every other rung is tested against it, so it is written for
// clarity only.
#include <algorithm>

#include "histogram/bins.h"

namespace tp::histogram {

void sequential(const Args& args, Context&) {
  with_problem(args, [](const auto& problem) {
    Extent extent;
    if (problem.needs_extent) {
      for (int64_t i = 0; i < problem.n; ++i) extent.include(problem.in[i]);
    }
    const auto bins = problem.bins_over(extent);
    std::fill(problem.counts, problem.counts + problem.bins, 0);
    for (int64_t i = 0; i < problem.n; ++i) {
      int64_t bin;
      if (bins.locate(problem.in[i], bin)) ++problem.counts[bin];
    }
  });
}

}  // namespace tp::histogram
