// What the multi-block reductions share (Figs. 10.13 and 10.15): one accumulator per row, and the launches before and
// after the figure's kernel.
//
// The figures add directly to the output. Here blocks combine into accumulators in a workspace: a first launch sets
// them to the identity, and a last launch turns them into results (rounded to a half type, divided for a mean, or
// converted to an index). The order of the blocks, and so the rounding of floats, differs from run to run. A GPU's
// atomic addition of float32 treats subnormal numbers as zeros.
#pragma once
#include "core/simt.h"
#include "reduction/elements.h"

namespace tp::reduction {

constexpr int each_threads = 256;

// Before the blocks combine, every accumulator becomes the identity; afterwards, every accumulator becomes a result.
template <class E, bool after>
struct EachAccumulator {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  E elements;
  Acc* accumulators;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = elements.bind(block);
    const auto output = block.global("output", accumulators, elements.rows);
    const int64_t step = block.grid().x * each_threads;
    for (int64_t first = block.index().x * each_threads; first < elements.rows; first += step) {
      block.phase(after ? "result" : "identity", [&](int t) {
        if (first + t >= elements.rows) return;
        if constexpr (after) {
          x.store(first + t, output[first + t]);
        } else {
          output[first + t] = M::identity();
        }
      });
    }
  }
};

// Runs the kernel between the two, for every dtype and operator. A block reduces segment_size elements of a row.
template <template <class> class Kernel>
void reduce_by_atomics(const char* name, const Args& args, Context& context) {
  with_wide_elements(args, [&](const auto& elements) {
    using E = std::decay_t<decltype(elements)>;
    using K = Kernel<E>;
    using Acc = typename E::Acc;
    Acc* accumulators = context.workspace<Acc>(elements.rows);
    const int64_t segments = ceil_div(elements.n, int64_t(K::segment_size));
    const simt::Dim each_grid{tp::min(ceil_div(elements.rows, int64_t(each_threads)), max_grid)};
    const simt::Dim grid{tp::min(elements.rows * segments, max_grid)};
    simt::launch(context, name, each_grid, each_threads, 0, EachAccumulator<E, false>{elements, accumulators});
    simt::launch(context, name, grid, K::block_dim, K::block_dim * int64_t(sizeof(Acc)),
                 K{elements, segments, accumulators});
    simt::launch(context, name, each_grid, each_threads, 0, EachAccumulator<E, true>{elements, accumulators});
  });
}

}  // namespace tp::reduction
