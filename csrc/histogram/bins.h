// Which bin an element is in, by the same rule on every rung and device.
//
// Edge i of uniform bins is min + i * (max - min) / bins, with each operation rounded to float64; an element is in the
// last bin whose edge is not greater. To find that bin, (x - min) * (bins / (max - min)) is computed, minus and plus a
// bound on all errors: usually both give the same bin, and otherwise the edges decide.
#pragma once
#include <cmath>
#include <type_traits>

#include "histogram/histogram.h"

namespace tp::histogram {

// The least and the greatest of the finite elements; min > max if there are none.
struct Extent {
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();

  TP_HD void include(const Extent& other) {
    min = tp::min(min, other.min);
    max = tp::max(max, other.max);
  }
  template <class T>
  TP_HD void include(T value) {
    const double x = double(acc_t<T>(value));
    if (x - x == 0) include(Extent{x, x});
  }
};

// The bin of an element is its own value.
template <class T>
class Identity {
 public:
  TP_HD Identity(double, double, int64_t bins) : bins_(Index(tp::min(uint64_t(bins), most))) {}

  // Whether `value` is in a bin, and in which one.
  TP_HD bool locate(T value, int64_t& bin) const {
    const auto number = Index(acc_t<T>(value));
    bin = int64_t(number);
    return number < bins_;
  }

 private:
  using Index = typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type;
  static constexpr uint64_t most = uint64_t(1) << (8 * sizeof(Index) - 1);  // values; negative ones become greater
  Index bins_;
};

template <class T>
class Uniform {
 public:
  // As in torch.histc, an empty range is extended by 1 on both sides.
  TP_HD Uniform(double low, double high, int64_t bins) : bins_(bins) {
    if (low == high) low -= 1, high += 1;
    first_ = A(low), last_ = A(high);
    if (double(first_) < low) first_ = std::nextafter(first_, limits::infinity());
    if (double(last_) > high) last_ = std::nextafter(last_, -limits::infinity());
    const double most = tp::max(tp::max(std::abs(low), std::abs(high)), double(limits::min()));
    scale_ = most > 0x1p900 ? 0x1p-100 : 1;  // so that the products of search() do not overflow
    min_ = low * scale_;
    width_ = high * scale_ - min_;
    // x * density - low * density, the position of x in bins, and the position of an edge are sums of terms up to most
    // * density. Their roundings, at most 13 half epsilons of it, are less than `slack`.
    const double density = double(bins) / (high - low), slack = 8 * double(limits::epsilon()) * most * density;
    density_ = A(density);
    least_ = A(-low * density - slack);
    most_ = A(-low * density + slack);
    plain_ = slack < double(bins) && most < far && density < far && bins < int64_t(1) << (limits::digits - 1);
  }

  // Whether `value` is in a bin, and in which one.
  TP_HD bool locate(T value, int64_t& bin) const {
    const A x = A(acc_t<T>(value));
    if (!(x >= first_ && x <= last_)) return false;
    int64_t least = 0, most = bins_ - 1;
    if (plain_) {
      const A low = x * density_ + least_, high = x * density_ + most_;
#ifdef __CUDA_ARCH__
      if constexpr (sizeof(A) == 4) {  // with 2^23 added, the integral part is in the mantissa: faster than conversions
        const float below = __fadd_rd(low, 0x1p23f), above = __fadd_rd(high, 0x1p23f);
        bin = int(detail::float_bits(below) & 0x7fffff);
        if (below == above) return true;
      }
#endif
      least = tp::max(int64_t(low), least);
      most = tp::min(int64_t(high), most);
    }
    bin = least == most ? least : search(double(x), least, most);
    return true;
  }

 private:
  // float if it holds the elements exactly, which is faster and as correct.
  using A = typename std::conditional<is_floating<T> && sizeof(T) <= 4, float, double>::type;
  using limits = std::numeric_limits<A>;
  static constexpr double far = sizeof(A) == 4 ? 0x1p100 : 0x1p900;  // beyond this, A might overflow

  // The last edge from `least` to `most` that is not greater than x; rarely needed.
  TP_HD int64_t search(double x, int64_t least, int64_t most) const {
    while (least < most) {
      const int64_t middle = least + (most - least + 1) / 2;
      if (min_ + double(middle) * width_ / double(bins_) <= x * scale_) {
        least = middle;
      } else {
        most = middle - 1;
      }
    }
    return least;
  }

  A first_, last_, density_, least_, most_;
  bool plain_;
  double min_, width_, scale_;
  int64_t bins_;
};

// What the kernels of a rung take. `Bins` is Identity<T> or Uniform<T>.
template <class T, class Bins_>
struct Problem {
  using Element = T;
  using Bins = Bins_;
  const T* in;
  int64_t* counts;
  int64_t n, bins;
  double min, max;
  bool needs_extent;

  explicit Problem(const Args& x)
      : in(static_cast<const T*>(x.in)),
        counts(x.counts),
        n(x.n),
        bins(x.bins),
        min(x.min),
        max(x.max),
        needs_extent(x.uniform && (min != min || max != max)) {}

  // The bins. An end of the range that was not given comes from `found`.
  TP_HD Bins bins_over(const Extent& found) const {
    return Bins(min != min ? found.min : min, max != max ? found.max : max, bins);
  }
};

// Calls f(Problem<...>) for the dtype and the kind of bins.
template <class F>
void with_problem(const Args& args, F f) {
  dispatch(AllTypes{}, args.dtype, "histogram", [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (!is_floating<T>) {
      if (!args.uniform) return f(Problem<T, Identity<T>>(args));
    }
    f(Problem<T, Uniform<T>>(args));
  });
}

}  // namespace tp::histogram
