// Sums that many threads add to by atomics: an accumulator for each element of Y, which is y itself if its dtype is
// that of the accumulators. There are three launches: clear, add and finish; finish is skipped if it has nothing to do.
#pragma once
#include "sparse/rows.h"

namespace tp::sparse {

constexpr int scatter_threads = 256;

template <class M>
struct FinishSums {
  M matrix;
  typename M::Acc* sums;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using Acc = typename M::Acc;
    const auto b = matrix.bind(block);
    const auto acc = block.global("sums", sums, b.a.rows * b.a.k);
    block.phase("finish", [&](int t) {
      const int64_t i = block.index().x * scatter_threads + t;
      if (i >= b.a.rows * b.a.k) return;
      const Acc sum = acc[i];
      b.store(i / b.a.k, i % b.a.k, sum);
    });
  }
};

// `add(sums)` must launch the kernel that adds to the accumulators [rows, k], which are 0 before.
template <class M, class Add>
void scatter(const char* rung, const M& matrix, Context& context, Add add) {
  using Acc = typename M::Acc;
  const int64_t outputs = matrix.a.rows * matrix.a.k;
  constexpr bool in_place = std::is_same<Acc, typename M::T>::value;
  Acc* sums = in_place ? static_cast<Acc*>(matrix.a.y) : context.workspace<Acc>(outputs);
  context.clear(sums, outputs * int64_t(sizeof(Acc)));
  add(sums);
  if (in_place && matrix.a.y0 == nullptr && matrix.a.before == nullptr) return;
  simt::launch(context, rung, {ceil_div(outputs, int64_t(scatter_threads))}, scatter_threads, 0,
               FinishSums<M>{matrix, sums});
}

}  // namespace tp::sparse
