// One thread per entry: it finds the row of its entry, by bisection if only row pointers are given, and computes the
// dot product.
#include "sparse/sampled.h"

namespace tp {
namespace {

using namespace sparse;

template <class S>
struct PerEntry {
  static constexpr int threads = 256;
  S sample;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using T = typename S::T;
    const auto s = sample.bind(block);
    block.phase("sample", [&](int t) {
      const int64_t entry = block.index().x * threads + t;
      if (entry < s.a.entries) s.out[entry] = T(s.sample(entry, s.row(entry)));
    });
  }
};

}  // namespace

void sampled_product::thread_per_entry(const Args& args, Context& context) {
  with_sample(args, context, [&](const auto& sample) {
    using Kernel = PerEntry<std::decay_t<decltype(sample)>>;
    simt::launch(context, "thread_per_entry", {ceil_div(args.entries, int64_t(Kernel::threads))}, Kernel::threads, 0,
                 Kernel{sample});
  });
}

}  // namespace tp
