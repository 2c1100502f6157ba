// One thread per element. It finds the segment of its row by bisection of the offsets, and combines the element into
// the segment's accumulator by an atomic. The work is balanced whatever the lengths, but the atomics of a long segment
// serialize at one address, and floats are added in the order in which threads arrive.
//
// There are three launches: identities, atomics, results. If `out` can hold accumulators, they are stored there, and
// the last launch is not needed.
//
// If offsets decrease, which only CUDA allows, segments overlap and a row may belong to several. The first launch
// detects this; the second launch then uses one lane per output, which goes through its segment.
#include "segmented/elements.h"

namespace tp::segment_reduce {
namespace {

using namespace segmented;
constexpr int threads = 256;

template <class E>
struct Identities {
  E e;
  typename E::Acc* accumulators;
  int* overlap;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = e.bind(block);
    const auto acc = block.global("accumulators", accumulators, e.segments * e.width);
    const auto segments_overlap = block.global("overlap", overlap, 1);
    block.phase("identities", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      if (i >= e.segments * e.width) return;
      acc[i] = E::Monoid::identity();
      const int64_t segment = i / e.width;
      if (i % e.width == 0 && x.offsets.begin(segment + 1) < x.offsets.begin(segment)) {
        segments_overlap.template atomic<Max<int>>(0, 1);
      }
    });
  }
};

template <class E>
struct Combine {
  using M = typename E::Monoid;
  E e;
  typename M::Acc* accumulators;
  int* overlap;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = e.bind(block);
    const auto acc = block.global("accumulators", accumulators, e.segments * e.width);
    const auto segments_overlap = block.global("overlap", overlap, 1);
    block.phase("combine", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      const int overlapping = segments_overlap[0];
      if (overlapping != 0) {
        for (int64_t out = i; out < e.segments * e.width; out += block.grid().x * threads) {
          const int64_t segment = out / e.width, end = x.offsets.end(segment);
          typename M::Acc sum = M::identity();
          for (int64_t row = x.offsets.begin(segment); row < end; ++row) {
            sum = M::combine(sum, x.load(row, out % e.width));
          }
          acc[out] = sum;
        }
        return;
      }
      if (i >= e.n * e.width) return;
      const int64_t row = i / e.width, column = i % e.width, segment = x.offsets.find(row);
      if (!x.offsets.exists(segment)) return;
      acc.template atomic<M>(segment * e.width + column, x.load(row, column));
    });
  }
};

template <class E>
struct Results {
  E e;
  typename E::Acc* accumulators;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Acc = typename E::Acc;
    const auto x = e.bind(block);
    const auto acc = block.global("accumulators", accumulators, e.segments * e.width);
    block.phase("results", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      if (i >= e.segments * e.width) return;
      const Acc value = acc[i];
      x.store(i / e.width, i % e.width, value);
    });
  }
};

template <class E>
struct Expand {
  E e;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = e.bind(block);
    block.phase("expand", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      if (i >= e.n * e.width) return;
      const int64_t row = i / e.width, column = i % e.width;
      x.store(row, column, x.value(x.offsets.find(row), column));
    });
  }
};

}  // namespace

void atomic(const Args& args, Context& context) {
  const auto launch = [&](int64_t lanes, const auto& kernel) {
    simt::launch(context, "atomic", {ceil_div(lanes, int64_t(threads))}, threads, 0, kernel);
  };
  const auto reduce = [&](auto e) {
    using E = decltype(e);
    using Acc = typename E::Acc;
    const int64_t outputs = e.segments * e.width;
    Acc* accumulators;
    if constexpr (E::in_place) {
      accumulators = e.out;
    } else {
      accumulators = context.workspace<Acc>(outputs);
    }
    int* overlap = context.workspace<int>(1);
    context.clear(overlap, int64_t(sizeof(int)));
    launch(outputs, Identities<E>{e, accumulators, overlap});
    launch(e.n * e.width, Combine<E>{e, accumulators, overlap});
    if (!E::in_place) launch(outputs, Results<E>{e, accumulators});
  };
  with_wide_step(args, context, reduce, [&](auto e) { launch(e.n * e.width, Expand<decltype(e)>{e}); });
}

}  // namespace tp::segment_reduce
