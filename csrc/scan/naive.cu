// The naive parallel scan (§11.2, first paragraphs; Hwu, lecture 4.4): every output is a reduction of its own, so the
// work grows with n^2, and the last lane still takes n steps. No barrier is needed, because the lanes share no results;
// that is also why the scan is slow.
#include "scan/sections.h"

namespace tp::scan {
namespace {

constexpr int threads = 256;

template <class Elements>
struct Naive {
  using M = typename Elements::Monoid;
  Elements elements;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = elements.bind(block);
    const int64_t n = elements.n, count = elements.rows * n;
    for (int64_t first = block.index().x * threads; first < count; first += block.grid().x * threads) {
      block.phase("reduce", [&](int t) {
        if (first + t >= count) return;
        const int64_t row = (first + t) / n, k = (first + t) % n;
        auto sum = M::identity();
        for (int64_t i = 0; i <= k; ++i) sum = append<M>(sum, x.load(row, i));
        x.store(row, k, sum);
      });
    }
  }
};

}  // namespace

void naive(const Args& args, Context& context) {
  with_wide_elements(args, [&](auto elements) {
    const int64_t blocks = ceil_div(elements.rows * elements.n, int64_t(threads));
    simt::launch(context, "naive", {tp::min(blocks, max_grid)}, threads, 0, Naive<decltype(elements)>{elements});
  });
}

}  // namespace tp::scan
