// The sequential scan (Fig. 11.1): one running value per row. Every other rung is tested against this one, so it is
// written for clarity only.
#include "scan/elements.h"

namespace tp::scan {

void sequential(const Args& args, Context&) {
  with_elements(args, [](auto elements) {
    using M = typename decltype(elements)::Monoid;
    const auto x = elements.bind(simt::Pointers{});
    for (int64_t row = 0; row < elements.rows; ++row) {
      auto running = M::identity();
      for (int64_t k = 0; k < elements.n; ++k) {
        running = append<M>(running, x.load(row, k));
        x.store(row, k, running);
      }
    }
  });
}

}  // namespace tp::scan
