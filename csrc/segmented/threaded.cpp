// The production rungs of the CPU: equal shares of rows and segment ends for all threads (segmented/shares.h).
//
// A share reduces or scans its segments. Its parts of the first segment that ends in it, and of the segment that is
// left open, are combined afterwards with those of other shares, in order. Wide rows are divided into strips of
// columns. Sums and products of floats accumulate in double, so the rounding error does not grow with n.
#include <algorithm>
#include <cstring>
#include <vector>

#include "segmented/combine.h"
#include "segmented/scan_elements.h"
#include "segmented/shares.h"

namespace tp::segmented {
namespace {

constexpr int64_t elements_per_share = 1 << 14, columns_per_strip = 256;

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

template <class O>
Shares<O> shares_of(const O& offsets, int64_t width) {
  return {offsets, tp::max(elements_per_share / tp::min(width, columns_per_strip), int64_t(64))};
}

// Columns first to first + count - 1 of all rows.
struct Strip {
  int64_t index, first, count;
  Strip(int64_t index, int64_t width)
      : index(index), first(index * columns_per_strip), count(tp::min(width - first, columns_per_strip)) {}
};

constexpr int lanes = 8;

// Combines x[0] to x[n - 1]; lane j takes every element whose index is j modulo `lanes`. The last few elements are read
// together with the elements after them, of which `readable` exist: most runs are short, and a loop of unpredictable
// length costs more than reading a few more elements.
template <class M, class T>
typename M::Acc combine_lanes(const T* x, int64_t n, int64_t readable) {
  using Acc = typename M::Acc;
  Acc running[lanes];
  if (readable < ceil_div(tp::max(n, int64_t(1)), int64_t(lanes)) * lanes) {
    running[0] = M::identity();
    for (int64_t i = 0; i < n; ++i) running[0] = combine<M>(running[0], Acc(x[i]));
    return running[0];
  }
  const int first = int(tp::min(n, int64_t(lanes)));
  for (int j = 0; j < lanes; ++j) {
    const Acc value = Acc(x[j]);
    running[j] = j < first ? value : M::identity();
  }
  int64_t i = lanes;
  for (; i + lanes <= n; i += lanes) {
    for (int j = 0; j < lanes; ++j) running[j] = combine<M>(running[j], Acc(x[i + j]));
  }
  if (i < n) {
    const int rest = int(n - i);
    for (int j = 0; j < lanes; ++j) {
      const Acc value = Acc(x[i + j]);
      running[j] = combine<M>(running[j], j < rest ? value : M::identity());
    }
  }
  for (int stride = lanes / 2; stride > 0; stride /= 2) {
    for (int j = 0; j < stride; ++j) running[j] = combine<M>(running[j], running[j + stride]);
  }
  return running[0];
}

// As combine_lanes, for any length. Floats are added in float32 within a chunk, and the chunks in double.
template <class M, class T>
typename M::Acc combine_run(const T* x, int64_t n, int64_t readable) {
  using Acc = typename M::Acc;
  if constexpr (M::id == OpId::sum && is_floating<T>) {
    constexpr int64_t chunk = 64 * lanes;
    Acc sum = Acc(combine_lanes<Sum<acc_t<T>>>(x, tp::min(n, chunk), readable));
    for (int64_t i = chunk; i < n; i += chunk)
      sum += Acc(combine_lanes<Sum<acc_t<T>>>(x + i, tp::min(n - i, chunk), readable - i));
    return sum;
  } else {
    return combine_lanes<M>(x, n, readable);
  }
}

// Returns exp(x - most). For the greatest value itself it returns 1, even if that is infinite.
template <class A>
A distance_exponential(A x, A most) {
  const A y = block::exponential(x - most);
  return x == most ? A(1) : y;
}

// Finds the extremum of rows begin to end - 1 in the same way, and then the first row that has it.
template <class M, class T>
typename M::Acc find_in_run(const T* x, int64_t begin, int64_t end, int64_t n) {
  using A = decltype(M::Acc::value);
  using Extremum = std::conditional_t<M::id == OpId::argmax, Max<A>, Min<A>>;
  if (begin == end) return M::identity();
  const A most = combine_run<Extremum>(x + begin, end - begin, n - begin);
  int64_t row = begin;
  while (!(A(x[row]) == most || (most != most && A(x[row]) != A(x[row])))) ++row;
  return {most, row};
}

// The maximum of a run, and the sum of the exponentials of the distances from it, which is computed as other sums are.
template <class M, class T>
typename M::Acc exponentiate_run(const T* x, int64_t n, int64_t readable) {
  using A = acc_t<T>;
  using Wide = decltype(M::Acc::sum);
  if (n == 0) return M::identity();
  const A most = combine_run<Max<A>>(x, n, readable);
  constexpr int64_t chunk = 64 * lanes;
  Wide sum = 0;
  for (int64_t i = 0; i < n; i += chunk) {
    const int64_t end = tp::min(i + chunk, n);
    A part[lanes] = {};
    int64_t k = i;
    for (; k + lanes <= end; k += lanes) {
      for (int j = 0; j < lanes; ++j) part[j] += distance_exponential(A(x[k + j]), most);
    }
    for (int j = 0; k < end; ++k, ++j) part[j] += distance_exponential(A(x[k]), most);
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) part[j] += part[j + half];
    }
    sum += Wide(part[0]);
  }
  return {Wide(most), sum};
}

template <class E>
class Reduce {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Bound = decltype(std::declval<E>().bind(simt::Pointers{}));

 public:
  Reduce(const E& e, Context& context)
      : context_(context),
        x_(e.bind(simt::Pointers{})),
        shares_(shares_of(x_.offsets, e.width)),
        strips_(ceil_div(e.width, columns_per_strip)),
        partial_(context.workspace<Acc>(2 * shares_.count() * e.width)) {}

  void run() {
    context_.parallel_for(shares_.count() * strips_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) reduce_share(i / strips_, Strip(i % strips_, x_.e.width));
    });
    context_.parallel_for(strips_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) join(Strip(i, x_.e.width));
    });
  }

 private:
  // The part of share i of the first segment that ends in it (ended), and of the segment that is left open (open).
  Acc* ended(int64_t i, const Strip& strip) { return partial_ + 2 * i * x_.e.width + strip.first; }
  Acc* open(int64_t i, const Strip& strip) { return ended(i, strip) + x_.e.width; }

  void reduce_share(int64_t i, const Strip& strip) {
    if (x_.e.width == 1) {
      each_segment(
          i, strip, [&](int64_t begin, int64_t end, Acc* running) { *running = reduce_run(begin, end); },
          [&](int64_t segment, const Acc* running) { x_.store(segment, 0, *running); });
    } else {
      each_segment(
          i, strip, [&](int64_t begin, int64_t end, Acc* running) { reduce_rows(begin, end, strip, running); },
          [&](int64_t segment, const Acc* running) { store(segment, strip, running); });
    }
  }

  // Calls reduce(begin, end, running) for each segment of share i, and store(segment, running) for those that are
  // entirely inside it.
  template <class Reducer, class Store>
  void each_segment(int64_t i, const Strip& strip, Reducer reduce, Store store) {
    const int64_t first = shares_.first(i), last = shares_.first(i + 1);
    Acc running[columns_per_strip];
    shares_.each(i, [&](int64_t segment, int64_t begin, int64_t end) {
      if (segment == last) return reduce(begin, end, open(i, strip));
      if (segment == first) return reduce(begin, end, ended(i, strip));
      reduce(begin, end, running);
      store(segment, running);
    });
  }

  Acc reduce_run(int64_t begin, int64_t end) const {
    if constexpr (E::finds_index) {
      return find_in_run<M>(x_.in, begin, end, x_.e.n);
    } else if constexpr (M::id == OpId::logsumexp) {
      return exponentiate_run<M>(x_.in + begin, end - begin, x_.e.n - begin);
    } else {
      return combine_run<M>(x_.in + begin, end - begin, x_.e.n - begin);
    }
  }

  void reduce_rows(int64_t begin, int64_t end, const Strip& strip, Acc* running) const {
    if constexpr (M::id == OpId::logsumexp) {  // column by column, so that results have the bits of a single column
      std::vector<typename E::Input> column(size_t(end - begin));
      for (int64_t j = 0; j < strip.count; ++j) {
        for (int64_t row = begin; row < end; ++row)
          column[size_t(row - begin)] = x_.in[row * x_.e.width + strip.first + j];
        running[j] = exponentiate_run<M>(column.data(), end - begin, end - begin);
      }
      return;
    }
    std::fill(running, running + strip.count, M::identity());
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < strip.count; ++j) running[j] = combine<M>(running[j], x_.load(row, strip.first + j));
    }
  }

  void join(const Strip& strip) {
    Acc running[columns_per_strip];
    std::fill(running, running + strip.count, M::identity());
    for (int64_t i = 0, first = 0, last; i < shares_.count(); ++i, first = last) {
      last = shares_.first(i + 1);
      const Acc *ended = this->ended(i, strip), *open = this->open(i, strip);
      if (first < last) {
        for (int64_t j = 0; j < strip.count; ++j) running[j] = M::combine(running[j], ended[j]);
        store(first, strip, running);
        std::copy(open, open + strip.count, running);
      } else {
        for (int64_t j = 0; j < strip.count; ++j) running[j] = M::combine(running[j], open[j]);
      }
    }
  }

  void store(int64_t segment, const Strip& strip, const Acc* result) {
    for (int64_t j = 0; j < strip.count; ++j) x_.store(segment, strip.first + j, result[j]);
  }

  Context& context_;
  Bound x_;
  Shares<decltype(Bound::offsets)> shares_;
  int64_t strips_;
  Acc* partial_;
};

template <class E>
void expand(const E& e, Context& context) {
  const auto x = e.bind(simt::Pointers{});
  const auto shares = shares_of(x.offsets, e.width);
  context.parallel_for(shares.count(), 1, [&](int64_t begin, int64_t end) {
    std::vector<typename E::Value> values(E::copies ? 0 : size_t(e.width));
    const auto fill = [&](int64_t segment, int64_t row, int64_t stop) {
      if (row == stop) return;
      if constexpr (!E::copies) {
        for (int64_t j = 0; j < e.width; ++j) values[size_t(j)] = x.value(segment, j);
        for (; row < stop; ++row) {
          for (int64_t j = 0; j < e.width; ++j) x.store(row, j, values[size_t(j)]);
        }
      } else {
        if (e.width == 1) return std::fill(e.out + row, e.out + stop, e.in[segment]);
        for (; row < stop; ++row) {
          std::memcpy(e.out + row * e.width, e.in + segment * e.width, size_t(e.width) * sizeof(*e.out));
        }
      }
    };
    for (int64_t i = begin; i < end; ++i) shares.each(i, fill);
  });
}

template <class E>
class ScanShares {
  using M = typename E::Monoid;
  using Base = typename E::Base;
  using Acc = typename M::Acc;
  using Bound = decltype(std::declval<E>().bind(simt::Pointers{}));

 public:
  ScanShares(const E& e, Context& context)
      : context_(context),
        x_(e.bind(simt::Pointers{})),
        shares_(shares_of(x_.offsets, e.width)),
        strips_(ceil_div(e.width, columns_per_strip)),
        totals_(context.workspace<Acc>(shares_.count() * e.width)) {}

  void run() { return x_.e.width == 1 ? run<1>() : run<columns_per_strip>(); }

 private:
  // `most` is the number of columns per strip: with a single column, the running value stays in a register.
  template <int64_t most>
  void run() {
    each_share(shares_.count() - 1, [&](int64_t i, const Strip& strip) { store_total<most>(i, strip); });
    context_.parallel_for(strips_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        const Strip strip(s, x_.e.width);
        for (int64_t i = 1; i < shares_.count() - 1; ++i) {
          for (int64_t j = 0; j < strip.count; ++j)
            total(i, strip)[j] = M::combine(total(i - 1, strip)[j], total(i, strip)[j]);
        }
      }
    });
    each_share(shares_.count(), [&](int64_t i, const Strip& strip) { scan_share<most>(i, strip); });
  }

  Acc* total(int64_t i, const Strip& strip) { return totals_ + i * x_.e.width + strip.first; }

  template <class F>
  void each_share(int64_t count, F f) {
    context_.parallel_for(count * strips_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i / strips_, Strip(i % strips_, x_.e.width));
    });
  }

  // Stores the total of share i: the rows since its last head, where a head right after its last row counts.
  template <int64_t most>
  void store_total(int64_t i, const Strip& strip) {
    const int64_t first = shares_.first(i), last = shares_.first(i + 1), stop = (i + 1) * shares_.size - last;
    Acc running[most];
    std::fill(running, running + (most == 1 ? 1 : strip.count), Acc{Base::identity(), first < last});
    const int64_t row = first < last ? shares_.border(last) : i * shares_.size - first;
    walk<most>(strip, last, row, stop, running, [](int64_t, int64_t, const Acc&, const Acc&) {});
    std::copy(running, running + (most == 1 ? 1 : strip.count), total(i, strip));
  }

  template <int64_t most>
  void scan_share(int64_t i, const Strip& strip) {
    Acc running[most];
    const int64_t count = most == 1 ? 1 : strip.count;
    if (i == 0) {
      std::fill(running, running + count, M::identity());
    } else {
      std::copy(total(i - 1, strip), total(i - 1, strip) + count, running);
    }
    shares_.each(i, [&](int64_t segment, int64_t begin, int64_t end) {
      if (begin == shares_.border(segment)) std::fill(running, running + count, M::identity());
      if (x_.e.exclusive) {
        walk<most>(strip, segment, begin, end, running,
                   [&](int64_t j, int64_t k, const Acc& before, const Acc&) { x_.store(strip.first + j, k, before); });
      } else {
        walk<most>(strip, segment, begin, end, running, [&](int64_t j, int64_t k, const Acc&, const Acc& through) {
          x_.store(strip.first + j, k, through);
        });
      }
    });
  }

  // Combines rows begin to end - 1 of a segment into `running`, and calls f(j, k, before, through) for column j of row
  // k.
  template <int64_t most, class F>
  void walk(const Strip& strip, int64_t segment, int64_t begin, int64_t end, Acc* running, F f) const {
    const int64_t head = Base::id == OpId::affine ? shares_.border(segment) : -1;  // the others start with the identity
    if (most == 1) {
      Acc before = running[0];
      for (int64_t k = begin; k < end; ++k) {
        const Acc through = append<M>(before, x_.operand(0, k, Base::id == OpId::affine && k == head));
        f(0, k, before, through);
        before = through;
      }
      running[0] = before;
      return;
    }
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t j = 0; j < strip.count; ++j) {
        const Acc before = running[j], through = append<M>(before, x_.operand(strip.first + j, k, k == head));
        f(j, k, before, through);
        running[j] = through;
      }
    }
  }

  Context& context_;
  Bound x_;
  Shares<decltype(Bound::offsets)> shares_;
  int64_t strips_;
  Acc* totals_;
};

}  // namespace
}  // namespace tp::segmented

namespace tp {

using namespace segmented;

void segment_reduce::threaded(const Args& args, Context& context) {
  with_step<wide_t>(
      args, context, [&](const auto& e) { Reduce<std::decay_t<decltype(e)>>(e, context).run(); },
      [&](const auto& e) { expand(e, context); });
}

void segment_scan::threaded(const Args& args, Context& context) {
  with_scan<wide_t>(args, [&](const auto& e) { ScanShares<std::decay_t<decltype(e)>>(e, context).run(); });
}

}  // namespace tp
