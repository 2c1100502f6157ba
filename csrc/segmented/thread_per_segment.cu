// One thread per segment: the simplest kernel, which is fast if all segments are short and of similar length.
//
// Thread i takes column i % width of segment i / width, so if rows are wide, neighbouring threads read neighbouring
// elements. If rows have one element, neighbouring threads read a segment apart. A warp waits for its longest segment.
#include "segmented/elements.h"

namespace tp::segment_reduce {
namespace {

using namespace segmented;
constexpr int threads = 256;

template <class E>
struct Reduce {
  E e;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using M = typename E::Monoid;
    const auto x = e.bind(block);
    block.phase("reduce", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      if (i >= e.segments * e.width) return;
      const int64_t segment = i / e.width, column = i % e.width, end = x.offsets.end(segment);
      auto running = M::identity();
      for (int64_t row = x.offsets.begin(segment); row < end; ++row) running = M::combine(running, x.load(row, column));
      x.store(segment, column, running);
    });
  }
};

// Two more threads per column fill the rows that are in no segment.
template <class E>
struct Expand {
  E e;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = e.bind(block);
    block.phase("expand", [&](int t) {
      const int64_t i = block.index().x * threads + t;
      if (i >= (e.segments + 2) * e.width) return;
      const int64_t segment = i / e.width - 1, column = i % e.width, end = x.offsets.end(segment);
      const auto value = x.value(segment, column);
      for (int64_t row = x.offsets.begin(segment); row < end; ++row) x.store(row, column, value);
    });
  }
};

}  // namespace

void thread_per_segment(const Args& args, Context& context) {
  const auto launch = [&](int64_t lanes, const auto& kernel) {
    simt::launch(context, "thread_per_segment", {ceil_div(lanes, int64_t(threads))}, threads, 0, kernel);
  };
  with_wide_step(
      args, context, [&](auto e) { launch(e.segments * e.width, Reduce<decltype(e)>{e}); },
      [&](auto e) { launch((e.segments + 2) * e.width, Expand<decltype(e)>{e}); });
}

}  // namespace tp::segment_reduce
