// Which bin an element falls in: the same on every rung and device.
//
// Edge i of uniform bins is min + i * (max - min) / bins, each operation rounded to float64, and an element falls in
// the last bin whose edge is not above it. To find that bin, (x - min) * (bins / (max - min)) is computed, less and
// plus a bound on all errors: hardly ever does that leave a choice, and then the edges decide.
#pragma once
#include <cmath>
#include <type_traits>

#include "histogram/histogram.h"

namespace tp::histogram {

// The least and the greatest of the finite elements; min > max where there are none.
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

// The bin is the element's own number.
template <class T>
class Identity {
 public:
  TP_HD Identity(double, double, int64_t bins) : bins_(Index(tp::min(uint64_t(bins), most))) {}

  // Whether `value` falls in a bin, and in which.
  TP_HD bool locate(T value, int64_t& bin) const {
    const auto number = Index(acc_t<T>(value));
    bin = int64_t(number);
    return number < bins_;
  }

 private:
  using Index = typename std::conditional<sizeof(T) == 8, uint64_t, uint32_t>::type;
  static constexpr uint64_t most = uint64_t(1) << (8 * sizeof(Index) - 1);  // numbers; negative ones come after them
  Index bins_;
};

template <class T>
class Uniform {
 public:
  // As torch.histc has it, a range of one point reaches 1 to either side.
  TP_HD Uniform(double low, double high, int64_t bins) : bins_(bins) {
    if (low == high) low -= 1, high += 1;
    first_ = A(low), last_ = A(high);
    if (double(first_) < low) first_ = std::nextafter(first_, limits::infinity());
    if (double(last_) > high) last_ = std::nextafter(last_, -limits::infinity());
    const double most = tp::max(tp::max(std::abs(low), std::abs(high)), double(limits::min()));
    scale_ = most > 0x1p900 ? 0x1p-100 : 1;  // lest the products of search() overflow
    min_ = low * scale_;
    width_ = high * scale_ - min_;
    // x * density - low * density, the place of x in bins, and the place of an edge are sums of terms up to
    // most * density. Their roundings, 13 half epsilons of it at most, are less than `slack`.
    const double density = double(bins) / (high - low), slack = 8 * double(limits::epsilon()) * most * density;
    density_ = A(density);
    least_ = A(-low * density - slack);
    most_ = A(-low * density + slack);
    plain_ = slack < double(bins) && most < far && density < far && bins < int64_t(1) << (limits::digits - 1);
  }

  // Whether `value` falls in a bin, and in which.
  TP_HD bool locate(T value, int64_t& bin) const {
    const A x = A(acc_t<T>(value));
    if (!(x >= first_ && x <= last_)) return false;
    int64_t least = 0, most = bins_ - 1;
    if (plain_) {
      const A low = x * density_ + least_, high = x * density_ + most_;
#ifdef __CUDA_ARCH__
      if constexpr (sizeof(A) == 4) {  // with 2^23 added, the integral part is the mantissa: quicker than conversions
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
  // In float where that holds the elements: it is quicker, and as right.
  using A = typename std::conditional<is_floating<T> && sizeof(T) <= 4, float, double>::type;
  using limits = std::numeric_limits<A>;
  static constexpr double far = sizeof(A) == 4 ? 0x1p100 : 0x1p900;  // beyond, A might overflow

  // The last edge from `least` to `most` that is not above x; seldom needed.
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

// What the kernels of a rung are told. `Bins` is Identity<T> or Uniform<T>.
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

  // Where an end of the range is absent, `found` has it.
  TP_HD Bins bins_over(const Extent& found) const {
    return Bins(min != min ? found.min : min, max != max ? found.max : max, bins);
  }
};

// f(Problem<...>) for the dtype and the kind of bins.
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
