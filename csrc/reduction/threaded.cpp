// The production reduction of the CPU: fixed chunks on all threads.
//
// Each [n, inner] slab is read as panels (panel.h). Where rows are narrow, several of them make a panel row of about
// `narrow` lanes, which are folded to `inner` at the end; where they are wide, they are cut into strips. A strip is cut
// into chunks along n, and the chunks' totals are combined in order. The cut depends on the shape alone, so the bits do
// not depend on the number of threads. Sums, products and exponentials of floats combine in double: no chain of float32
// roundings grows with n.
#include <algorithm>

#include "reduction/panel.h"

namespace tp::reduction {
namespace {

constexpr int64_t chunk = 1 << 15;  // elements
constexpr int64_t narrow = 64;      // lanes
constexpr int64_t few = 8;          // elements of a row that are not worth a panel

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

template <class E>
class Threaded {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;

 public:
  Threaded(const E& e, Context& context)
      : e_(e),
        context_(context),
        slabs_(e.rows / e.inner),
        fold_(tp::max(int64_t(1), tp::min(e.n, narrow / e.inner))),
        lanes_(tp::min(fold_ * e.inner, max_lanes)),
        strips_(ceil_div(fold_ * e.inner, lanes_)),
        rows_(e.n / fold_),
        chunk_rows_(chunk / lanes_),
        chunks_(ceil_div(rows_, chunk_rows_)) {}

  void run() {
    if (e_.n * e_.inner <= few || e_.n == 0) return run_short();
    totals_ = chunks_ == 1 ? nullptr : context_.workspace<Acc>(slabs_ * chunks_ * e_.inner);
    const int64_t units = slabs_ * strips_ * chunks_, size = tp::min(e_.n * e_.inner, chunk);
    context_.parallel_for(units, ceil_div(int64_t(1 << 13), size), [&](int64_t begin, int64_t end) {
      Acc acc[max_lanes];
      for (int64_t i = begin; i < end; ++i)
        reduce_chunk(i / chunks_ / strips_, i / chunks_ % strips_, i % chunks_, acc);
    });
    if (chunks_ == 1) return;
    context_.parallel_for(e_.rows, ceil_div(int64_t(4096), chunks_), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Acc* total = totals_ + row / e_.inner * chunks_ * e_.inner + row % e_.inner;
        Acc sum = total[0];
        for (int64_t c = 1; c < chunks_; ++c) sum = M::combine(sum, total[c * e_.inner]);
        e_.out[row] = e_.result(sum);
      }
    });
  }

 private:
  void run_short() {
    const auto x = e_.bind(simt::Pointers{});
    context_.parallel_for(e_.rows, 2048, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        Acc sum = M::identity();
        for (int64_t k = 0; k < e_.n; ++k) sum = M::combine(sum, x.load(row, k));
        x.store(row, sum);
      }
    });
  }

  void reduce_chunk(int64_t slab, int64_t strip, int64_t c, Acc* acc) {
    const int64_t first = c * chunk_rows_, column = strip * lanes_, pitch = fold_ * e_.inner;
    const int64_t rows = tp::min(chunk_rows_, rows_ - first), lanes = tp::min(lanes_, pitch - column);
    const int64_t tail = c == chunks_ - 1 ? (e_.n - rows_ * fold_) * e_.inner : 0;  // not where there are strips
    const auto* x = e_.in + slab * e_.n * e_.inner + first * pitch + column;
    reduce_panel<M>(Panel<typename E::Input>{x, rows, pitch, lanes, tail}, e_.mirrored, acc);
    if constexpr (M::id == OpId::argmax) {
      for (int64_t l = 0; l < lanes; ++l) acc[l].index = (first + acc[l].index) * fold_ + l / e_.inner;
    }
    for (int64_t fold = fold_; fold > 1;) {
      const int64_t kept = (fold + 1) / 2, other = kept * e_.inner, pairs = (fold - kept) * e_.inner;
      for (int64_t l = 0; l < pairs; ++l) acc[l] = M::combine(acc[l], acc[l + other]);
      fold = kept;
    }
    const int64_t columns = fold_ > 1 ? e_.inner : lanes;
    if (chunks_ > 1) {
      std::copy(acc, acc + columns, totals_ + (slab * chunks_ + c) * e_.inner + column);
    } else {
      for (int64_t l = 0; l < columns; ++l) e_.out[slab * e_.inner + column + l] = e_.result(acc[l]);
    }
  }

  const E& e_;
  Context& context_;
  // A panel row is `fold_` rows of the slab; `rows_` such rows, in chunks of `chunk_rows_`.
  int64_t slabs_, fold_, lanes_, strips_, rows_, chunk_rows_, chunks_;
  Acc* totals_ = nullptr;
};

}  // namespace

void threaded(const Args& args, Context& context) {
  with_elements<wide_t>(
      args, [&](const auto& elements) { Threaded<std::decay_t<decltype(elements)>>(elements, context).run(); });
}

}  // namespace tp::reduction
