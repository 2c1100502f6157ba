// The production histogram of the CPU: each share of the elements has its own copy of the counters.
//
// If there are few bins, a copy consists of `tables` tables that adjacent elements use in turn: in a single table,
// equal adjacent elements would make each addition wait for the previous one. If there are many bins, the number of
// shares is limited so that clearing and adding up their counters does not cost more than it saves; a single one counts
// in the result.
#include <algorithm>

#include "histogram/bins.h"

namespace tp::histogram {
namespace {

constexpr int64_t grain = 1 << 15, few_bins = 4096;

template <class Problem>
class Threaded {
 public:
  Threaded(const Problem& problem, Context& context)
      : p_(problem),
        context_(context),
        tables_(problem.bins <= few_bins ? 4 : 1),
        shares_(tp::max(int64_t(1),
                        tp::min(int64_t(context.device.threads), problem.n / tp::max(grain, tables_ * problem.bins)))),
        counts_(shares_ * tables_ == 1 ? problem.counts
                                       : context.workspace<int64_t>(shares_ * tables_ * problem.bins)) {}

  void run() {
    const auto bins = p_.bins_over(p_.needs_extent ? extent() : Extent{});
    each_share([&](int64_t share, int64_t begin, int64_t end) {
      int64_t* table[4];
      for (int k = 0; k < 4; ++k) table[k] = counts_ + (share * tables_ + k % tables_) * p_.bins;
      std::fill(table[0], table[0] + tables_ * p_.bins, 0);
      const auto count = [&](int64_t i, int k) {
        int64_t bin;
        if (bins.locate(p_.in[i], bin)) ++table[k][bin];
      };
      int64_t i = begin;
      for (; i + 4 <= end; i += 4) {
        for (int k = 0; k < 4; ++k) count(i + k, k);
      }
      for (; i < end; ++i) count(i, 0);
    });
    if (counts_ == p_.counts) return;
    context_.parallel_for(p_.bins, grain, [&](int64_t begin, int64_t end) {
      for (int64_t bin = begin; bin < end; ++bin) {
        int64_t sum = 0;
        for (int64_t copy = 0; copy < shares_ * tables_; ++copy) sum += counts_[copy * p_.bins + bin];
        p_.counts[bin] = sum;
      }
    });
  }

 private:
  Extent extent() {
    Extent* found = context_.workspace<Extent>(shares_);
    each_share([&](int64_t share, int64_t begin, int64_t end) {
      Extent mine;
      for (int64_t i = begin; i < end; ++i) mine.include(p_.in[i]);
      found[share] = mine;
    });
    Extent all;
    for (int64_t share = 0; share < shares_; ++share) all.include(found[share]);
    return all;
  }

  // Calls f(share, begin, end) for every share.
  template <class F>
  void each_share(F f) {
    context_.parallel_for(shares_, 1, [&](int64_t first, int64_t last) {
      for (int64_t share = first; share < last; ++share) {
        f(share, p_.n * share / shares_, p_.n * (share + 1) / shares_);
      }
    });
  }

  const Problem& p_;
  Context& context_;
  int64_t tables_, shares_;
  int64_t* counts_;
};

}  // namespace

void threaded(const Args& args, Context& context) {
  with_problem(args, [&](const auto& problem) { Threaded<std::decay_t<decltype(problem)>>(problem, context).run(); });
}

}  // namespace tp::histogram
