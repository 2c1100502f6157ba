// The production rungs of the CPU: equal shares of rows and segment ends for all threads (segmented/shares.h).
//
// A share reduces or scans its segments. Its parts of the first segment that ends in it, and of the segment that is
// left open, are combined afterwards with those of other shares, in order. Wide rows are divided into strips of
// columns. Sums, products and moments of floats accumulate in double, so the rounding error does not grow with n.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "segmented/runs.h"
#include "segmented/scan_elements.h"
#include "segmented/shares.h"

namespace tp::segmented {
namespace {

constexpr int64_t elements_per_share = 1 << 14;

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

// The runs of a share of a single column: run i is in segment `segment` + i.
struct Runs {
  int64_t segment;
  std::vector<int64_t> borders;

  template <class O>
  Runs(const Shares<O>& shares, int64_t i) : segment(shares.first(i)) {
    shares.each(i, [&](int64_t, int64_t begin, int64_t end) {
      if (borders.empty()) borders.push_back(begin);
      borders.push_back(end);
    });
  }
  int64_t count() const { return int64_t(borders.size()) - 1; }
};

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

  void reduce_column(int64_t i) {
    const Runs runs(shares_, i);
    const int64_t last = runs.count() - 1;
    const auto results = std::make_unique<Acc[]>(size_t(runs.count()));
    reduce_runs<M>(x_.e.in, x_.e.n, runs.borders.data(), runs.count(), results.get());
    for (int64_t k = 1; k < last; ++k) x_.store(runs.segment + k, 0, results[k]);
    *ended(i, Strip(0, 1)) = results[0];
    *open(i, Strip(0, 1)) = results[last];
  }

  void reduce_share(int64_t i, const Strip& strip) {
    if (x_.e.width == 1) return reduce_column(i);
    const int64_t first = shares_.first(i), last = shares_.first(i + 1);
    Acc running[columns_per_strip];
    shares_.each(i, [&](int64_t segment, int64_t begin, int64_t end) {
      if (segment == last) return reduce_rows(begin, end, strip, open(i, strip));
      if (segment == first) return reduce_rows(begin, end, strip, ended(i, strip));
      reduce_rows(begin, end, strip, running);
      store(segment, strip, running);
    });
  }

  void reduce_rows(int64_t begin, int64_t end, const Strip& strip, Acc* running) const {
    const auto* rows = x_.in + begin * x_.e.width + strip.first;
    const Columns columns{x_.e.width, strip.count};
    if constexpr (M::id == OpId::logsumexp) return exponentiate_rows<M>(rows, end - begin, columns, running);
    if constexpr (M::id == OpId::variance) return moments_of_rows<M>(rows, end - begin, columns, running);
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

template <class T>
void expand(const Expansion<T>& e, Context& context) {
  const auto shares = shares_of(e.bind(simt::Pointers{}).offsets, e.width);
  const auto fill = [&](int64_t segment, int64_t row, int64_t end) {
    if (e.width == 1 && row < end) return std::fill(e.out + row, e.out + end, e.in[segment]);
    for (; row < end; ++row) {
      std::memcpy(e.out + row * e.width, e.in + segment * e.width, size_t(e.width) * sizeof(T));
    }
  };
  context.parallel_for(shares.count(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) shares.each(i, fill);
  });
}

template <class T, class A>
class Normalize {
  using Value = Exponentials<A>;
  using Bound = decltype(std::declval<Softmax<T, A>>().bind(simt::Pointers{}));

 public:
  explicit Normalize(const Softmax<T, A>& e) : x_(e.bind(simt::Pointers{})), shares_(shares_of(x_.offsets, e.width)) {}

  void run(Context& context) const {
    context.parallel_for(shares_.count(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x_.e.width == 1 ? normalize_column(i) : normalize_share(i);
    });
  }

 private:
  void normalize_column(int64_t i) const {
    const Runs runs(shares_, i);
    std::vector<Value> values;
    for (int64_t k = 0; k < runs.count(); ++k) values.push_back(x_.value(runs.segment + k, 0));
    normalize_runs(x_.e.x, runs.borders.data(), runs.count(), values.data(), x_.e.logarithm, x_.e.out);
  }

  void normalize_share(int64_t i) const {
    const int64_t width = x_.e.width;
    shares_.each(i, [&](int64_t segment, int64_t begin, int64_t end) {
      if (!x_.offsets.exists(segment)) return std::fill(x_.e.out + begin * width, x_.e.out + end * width, T(0));
      for (int64_t s = 0; s * columns_per_strip < width && begin < end; ++s) {
        const Strip strip(s, width);
        Value values[columns_per_strip];
        for (int64_t j = 0; j < strip.count; ++j) values[j] = x_.value(segment, strip.first + j);
        const int64_t first = begin * width + strip.first;
        normalize_rows(x_.e.x + first, end - begin, {width, strip.count}, values, x_.e.logarithm, x_.e.out + first);
      }
    });
  }

  Bound x_;
  Shares<decltype(Bound::offsets)> shares_;
};

template <class T, class A>
void expand(const Softmax<T, A>& e, Context& context) {
  Normalize<T, A>(e).run(context);
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
