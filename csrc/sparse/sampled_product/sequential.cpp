// One entry after another (sparse/sampled.h).
#include "sparse/sampled.h"

namespace tp {

void sampled_product::sequential(const Args& args, Context& context) {
  sparse::with_sample(args, context, [](const auto& sample) {
    using T = typename std::decay_t<decltype(sample)>::T;
    const auto s = sample.bind(simt::Pointers{});
    for (int64_t i = 0; i < s.a.entries; ++i) s.out[i] = T(s.sample(i, s.row(i)));
  });
}

}  // namespace tp
