// The segmented reduction of many blocks (Figs. 10.12 to 10.15): each block reduces its own segment in shared memory
// and combines the total into the row's accumulator by an atomic. One launch does all sections, where the driver of
// sections.h takes several; in return the order of the blocks, and so the rounding of floats, differs from run to run,
// and a GPU's atomic addition of float32 takes subnormals for zeros.
//
// A lane first combines 2 * `coarse` elements, `threads` apart, on its own: with `coarse` 1 that is Fig. 10.13, beyond
// it Fig. 10.15. The figures add straight into the output; here it is an accumulator in a workspace, which a first
// launch sets to the identity and a last one turns into the result (rounded to a half type, divided to a mean, made an
// index). Elements beyond n are the identity (exercise 10.5), and the operator is any (exercise 10.4).
#pragma once
#include "core/simt.h"
#include "reduction/halving.h"
#include "reduction/sections.h"

namespace tp::reduction {

constexpr int atomic_threads = 256;

template <class E, int coarse>
struct CombineSegments {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  static constexpr int threads = atomic_threads, segment = 2 * threads * coarse;
  E elements;
  int64_t segments;
  Acc* sums;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = elements.bind(block);
    const auto sum = block.global("sums", sums, elements.rows);
    const auto s = block.template shared<Acc>("s", threads);
    for (int64_t id = block.index().x; id < elements.rows * segments; id += block.grid().x) {
      const int64_t row = id / segments, first = id % segments * segment;
      block.phase("load", [&](int t) {
        Acc own = M::identity();
        for (int64_t k = first + t; k < tp::min(first + segment, elements.n); k += threads) {
          own = M::combine(own, x.load(row, k));
        }
        s[t] = own;
      });
      reduce_by_halves<M>(block, s, threads / 2);
      block.phase("atomic", [&](int t) {
        if (t == 0) sum.template atomic<M>(row, s[0]);
      });
    }
  }
};

// Before the blocks combine: every sum is the identity. After: every sum is a result.
template <class E, bool after>
struct EachSum {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  E elements;
  Acc* sums;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = elements.bind(block);
    const auto sum = block.global("sums", sums, elements.rows);
    const int64_t step = block.grid().x * atomic_threads;
    for (int64_t first = block.index().x * atomic_threads; first < elements.rows; first += step) {
      block.phase(after ? "result" : "identity", [&](int t) {
        if (first + t >= elements.rows) return;
        if constexpr (after) {
          x.store(first + t, sum[first + t]);
        } else {
          sum[first + t] = M::identity();
        }
      });
    }
  }
};

template <int coarse>
void reduce_by_atomics(const char* name, const Args& args, Context& context) {
  with_elements(args, [&](const auto& elements) {
    using E = std::decay_t<decltype(elements)>;
    using Kernel = CombineSegments<E, coarse>;
    using Acc = typename E::Acc;
    Acc* sums = context.workspace<Acc>(elements.rows);
    const int64_t segments = ceil_div(elements.n, int64_t(Kernel::segment));
    const int64_t rows_grid = tp::min(ceil_div(elements.rows, int64_t(atomic_threads)), max_grid);
    simt::launch(context, name, {rows_grid}, atomic_threads, 0, EachSum<E, false>{elements, sums});
    simt::launch(context, name, {tp::min(elements.rows * segments, max_grid)}, atomic_threads,
                 atomic_threads * int64_t(sizeof(Acc)), Kernel{elements, segments, sums});
    simt::launch(context, name, {rows_grid}, atomic_threads, 0, EachSum<E, true>{elements, sums});
  });
}

}  // namespace tp::reduction
