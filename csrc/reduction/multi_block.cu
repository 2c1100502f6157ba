// The segmented reduction by many blocks (Figs. 10.12 and 10.13): every block reduces its own segment in shared memory,
// as in Fig. 10.11, and combines its total into the row's result by an atomic operation.
//
// One launch reduces all segments, where the driver of sections.h needs several. Invariant: after the step of a stride,
// the first `stride` elements of input_s together are the combination of the block's segment. There is a barrier
// between the load and the first step, and between steps, because each reads what the previous one wrote. The operator
// must commute.
//
// The figure assumes that n is a multiple of the segment; here an element beyond n is the identity (exercise 10.5), and
// any operator is allowed (exercise 10.4). The output is an accumulator (see atomics.h).
#include "reduction/atomics.h"

namespace tp::reduction {
namespace {

template <class E>
struct SegmentedReductionKernel {
  static constexpr int block_dim = 256, segment_size = 2 * block_dim;
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
        input_s[t] = M::combine(input(i), input(i + block_dim));
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

void multi_block(const Args& args, Context& context) {
  reduce_by_atomics<SegmentedReductionKernel>("multi_block", args, context);
}

}  // namespace tp::reduction
