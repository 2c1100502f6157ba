// The sequential reduction (Figs. 10.1 and 10.2): one running value per row, which starts with the identity. Every
// other rung is tested against this one, so it is written for clarity only.
#include "reduction/elements.h"

namespace tp::reduction {

void sequential(const Args& args, Context&) {
  with_elements(args, [](auto elements) {
    using M = typename decltype(elements)::Monoid;
    const auto x = elements.bind(simt::Pointers{});
    for (int64_t row = 0; row < elements.rows; ++row) {
      auto running = M::identity();
      for (int64_t k = 0; k < elements.n; ++k) running = M::combine(running, x.load(row, k));
      x.store(row, running);
    }
  });
}

}  // namespace tp::reduction
