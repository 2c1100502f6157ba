// The production scan of the CPU: fixed chunks on all threads.
//
// A row is cut into chunks, and where the rows are not contiguous, `width` neighbouring rows form a strip whose
// elements k lie side by side. Pass 1 combines each chunk to a total, the totals are scanned, pass 2 scans each chunk
// from what precedes it. A strip of a single chunk needs pass 2 only. The cut depends on the shape alone, so the bits
// do not depend on the number of threads. Sums and products of floats run in double: no chain of roundings grows with
// n.
#include <algorithm>
#include <utility>

#include "scan/elements.h"

namespace tp::scan {
namespace {

constexpr int64_t chunk = 1 << 14, width = 64;

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

template <class Elements>
class Threaded {
  using M = typename Elements::Monoid;
  using Acc = typename M::Acc;
  using Bound = decltype(std::declval<Elements>().bind(simt::Pointers{}));

 public:
  Threaded(const Elements& e, Context& context)
      : context_(context),
        x_(e.bind(simt::Pointers{})),
        lanes_(tp::min(e.inner, width)),
        strips_(e.rows / e.inner * ceil_div(e.inner, width)),
        chunks_(ceil_div(e.n, chunk)) {}

  void run() {
    if (chunks_ == 1)
      return each_chunk(chunks_, [&](int64_t strip, int64_t, Acc* running) { scan_chunk(strip, 0, running); });
    Acc* totals = context_.workspace<Acc>(strips_ * chunks_ * lanes_);
    const auto total = [&](int64_t strip, int64_t c) { return totals + (strip * chunks_ + c) * lanes_; };
    each_chunk(chunks_ - 1, [&](int64_t strip, int64_t c, Acc* running) {
      each_element(strip, c, [&](int64_t lane, int64_t row, int64_t k) {
        running[lane] = M::combine(running[lane], x_.load(row, k));
      });
      std::copy(running, running + lanes_, total(strip, c));
    });
    context_.parallel_for(strips_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t strip = begin; strip < end; ++strip) {
        for (int64_t c = 1; c < chunks_ - 1; ++c) {
          for (int64_t lane = 0; lane < lanes_; ++lane) {
            total(strip, c)[lane] = M::combine(total(strip, c - 1)[lane], total(strip, c)[lane]);
          }
        }
      }
    });
    each_chunk(chunks_, [&](int64_t strip, int64_t c, Acc* running) {
      if (c > 0) std::copy(total(strip, c - 1), total(strip, c - 1) + lanes_, running);
      scan_chunk(strip, c, running);
    });
  }

 private:
  void scan_chunk(int64_t strip, int64_t c, Acc* running) {
    each_element(strip, c, [&](int64_t lane, int64_t row, int64_t k) {
      running[lane] = M::combine(running[lane], x_.load(row, k));
      x_.store(row, k, running[lane]);
    });
  }

  // f(strip, chunk, running), running being one identity a lane.
  template <class F>
  void each_chunk(int64_t chunks, F f) {
    const int64_t grain = ceil_div(int64_t(4096), tp::min(chunk, x_.e.n) * lanes_);
    context_.parallel_for(strips_ * chunks, grain, [&](int64_t begin, int64_t end) {
      Acc running[width];
      for (int64_t i = begin; i < end; ++i) {
        std::fill(running, running + lanes_, M::identity());
        f(i / chunks, i % chunks, running);
      }
    });
  }

  // f(lane, row, k) for the elements of a chunk of a strip, k ascending for every lane.
  template <class F>
  void each_element(int64_t strip, int64_t c, F f) {
    const int64_t inner = x_.e.inner, last = tp::min(x_.e.n, (c + 1) * chunk);
    if (inner == 1) {
      for (int64_t k = c * chunk; k < last; ++k) f(0, strip, k);
      return;
    }
    const int64_t across = ceil_div(inner, width), column = strip % across * width;
    const int64_t row = strip / across * inner + column, lanes = tp::min(width, inner - column);
    for (int64_t k = c * chunk; k < last; ++k) {
      for (int64_t lane = 0; lane < lanes; ++lane) f(lane, row + lane, k);
    }
  }

  Context& context_;
  Bound x_;
  int64_t lanes_, strips_, chunks_;
};

}  // namespace

void threaded(const Args& args, Context& context) {
  with_elements<wide_t>(
      args, [&](const auto& elements) { Threaded<std::decay_t<decltype(elements)>>(elements, context).run(); });
}

}  // namespace tp::scan
