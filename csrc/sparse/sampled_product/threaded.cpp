// Equal shares of entries for all threads; of a CSR matrix, each walks on from the row of its first entry.
#include "sparse/threaded.h"

#include "sparse/sampled.h"

namespace tp {

void sampled_product::threaded(const Args& args, Context& context) {
  using namespace sparse;
  with_sample(args, [&](const auto& sample) {
    using T = typename std::decay_t<decltype(sample)>::T;
    const auto s = sample.bind(simt::Pointers{});
    const int64_t size = tp::max(int64_t(256), items_a_share / tp::max(int64_t(1), args.k));
    const bool by_pointers = args.row_idx == nullptr && args.ptrs != nullptr;
    parallel(context, ceil_div(args.entries, size), [&](int64_t share) {
      const int64_t begin = share * size, end = tp::min(args.entries, begin + size);
      int64_t row = by_pointers ? s.row(begin) : 0;
      for (int64_t i = begin; i < end; ++i) {
        if (by_pointers) {
          while (row + 1 < args.rows && int64_t(s.ptrs[row + 1]) <= i) ++row;
        } else {
          row = s.row(i);
        }
        s.out[i] = T(s.sample(i, row));
      }
    });
  });
}

}  // namespace tp
