// The reduction with thread coarsening (Figs. 10.14 and 10.15): `multi_block` with coarse_factor times as many elements
// per block. Each thread first combines 2 * coarse_factor elements on its own, in a register. So the steps with
// barriers and idle threads are needed coarse_factor times less often.
//
// Neighbouring threads load neighbouring elements, `block_dim` apart from tile to tile, so every load is coalesced.
// Everything else, including what differs from the figure, is as in `multi_block`.
#include "reduction/atomics.h"

namespace tp::reduction {
namespace {

template <class E>
struct CoarsenedReductionKernel {
  static constexpr int block_dim = 256, coarse_factor = 8, segment_size = coarse_factor * 2 * block_dim;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  E elements;
  int64_t segments;  // per row
  Acc* accumulators;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = elements.bind(block);
    const auto output = block.global("output", accumulators, elements.rows);
    const auto input_s = block.template shared<Acc>("input_s", block_dim);
    for (int64_t id = block.index().x; id < elements.rows * segments; id += block.grid().x) {
      const int64_t row = id / segments, segment = id % segments * segment_size;
      const auto input = [&](int64_t i) -> Acc { return i < elements.n ? x.load(row, i) : M::identity(); };
      block.phase("load", [&](int t) {
        const int64_t i = segment + t;
        Acc sum = input(i);
        for (int tile = 1; tile < coarse_factor * 2; ++tile) sum = M::combine(sum, input(i + tile * block_dim));
        input_s[t] = sum;
      });
      for (int stride = block_dim / 2; stride >= 1; stride /= 2) {
        block.phase("combine", [&](int t) {
          if (t < stride) input_s[t] = M::combine(input_s[t], input_s[t + stride]);
        });
      }
      block.phase("atomic", [&](int t) {
        if (t == 0) output.template atomic<M>(row, input_s[0]);
      });
    }
  }
};

}  // namespace

void coarsened(const Args& args, Context& context) {
  reduce_by_atomics<CoarsenedReductionKernel>("coarsened", args, context);
}

}  // namespace tp::reduction
