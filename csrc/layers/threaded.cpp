// All threads share chunks of outputs, and vectorized loops compute each chunk.
//
// Chunks of sums have a fixed length, and a tree adds up their sums, so any number of threads gives the same bits.
#include <vector>

#include "block/convert.h"
#include "block/exponential.h"
#include "layers/compute.h"
#include "layers/perceptron.h"

namespace tp {
namespace layers {
namespace {

using block::exponential;

constexpr int64_t grain = 1 << 14;  // elements that pay for a thread
constexpr int64_t block = 512;      // elements that are converted together

// ---- functions of single elements

// out[i] = f(in[i]...), computed in the accumulator's type.
template <class T, class F, class... In>
void map(Context& context, int64_t n, T* out, F f, const In*... in) {
  context.parallel_for(n, grain, [=](int64_t begin, int64_t end) {
    on_vectors([=] {
      if constexpr (std::is_same<T, half>::value) {
        for (int64_t first = begin; first < end; first += block) {
          const int64_t count = tp::min(block, end - first);
          const auto compute = [&](auto... values) {
            store(count, out + first, [=](int64_t i) { return f(values[i]...); });
          };
          compute(Widened<In, block>(in + first, count).values...);
        }
      } else {
        TP_INDEPENDENT
        for (int64_t i = begin; i < end; ++i) out[i] = T(f(acc_t<In>(in[i])...));
      }
    });
  });
}

constexpr int64_t sum_chunk = 4096;
constexpr int sum_lanes = 32;

// term(0) + ... + term(n - 1): each lane sums its own terms, then a tree combines the lanes.
template <class A, class Term>
A sum_of_lanes(int64_t n, Term term) {
  A lanes[sum_lanes] = {};
  int64_t i = 0;
  for (; i + sum_lanes <= n; i += sum_lanes) {
    for (int l = 0; l < sum_lanes; ++l) lanes[l] += term(i + l);
  }
  constexpr int part = sum_lanes / 4;
  for (; i + part <= n; i += part) {
    for (int l = 0; l < part; ++l) lanes[l] += term(i + l);
  }
  for (int l = 0; i + l < n; ++l) lanes[l] += term(i + l);
  for (int half = sum_lanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// The greatest element of x; NaN is ignored.
template <class A>
A greatest_of_lanes(int64_t n, const A* x) {
  A lanes[sum_lanes];
  for (int l = 0; l < sum_lanes; ++l) lanes[l] = Max<A>::identity();
  int64_t i = 0;
  for (; i + sum_lanes <= n; i += sum_lanes) {
    for (int l = 0; l < sum_lanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  for (; i < n; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  for (int l = 1; l < sum_lanes; ++l) lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
  return lanes[0];
}

struct Itself {  // a lambda would have another type in every recursion of sum()
  template <class A>
  A operator()(A x) const {
    return x;
  }
};

// *out = (f(in[0]...) + ... + f(in[n - 1]...)) / divisor
template <class T, class A, class F, class... In>
void sum(Context& context, int64_t n, T* out, A divisor, F f, const In*... in) {
  const int64_t chunks = tp::max(ceil_div(n, sum_chunk), int64_t(1));
  A* sums = context.workspace<A>(chunks);
  context.parallel_for(chunks, grain / sum_chunk, [=](int64_t begin, int64_t end) {
    on_vectors([=] {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t first = c * sum_chunk;
        sums[c] = sum_of_lanes<A>(tp::min(sum_chunk, n - first),
                                  [=](int64_t i) { return A(f(acc_t<In>(in[first + i])...)); });
      }
    });
  });
  if (chunks == 1) {
    *out = T(sums[0] / divisor);
  } else {
    sum(context, chunks, out, divisor, Itself{}, static_cast<const A*>(sums));
  }
}

template <class T>
void compute_activation(const Args& a, Context& context) {
  using A = acc_t<T>;
  const int64_t n = a.rows * a.columns;
  with_activation(a.activation, [&](auto constant) {
    constexpr Activation f = constant.value;
    if (a.step == Step::activation) {
      return map(context, n, as<T>(a.out), [](A x) { return activate<f>(x); }, as<T>(a.x));
    }
    map(context, n, as<T>(a.out), [](A grad, A y) { return activate_backward<f>(grad, y); }, as<T>(a.grad), as<T>(a.y));
  });
}

// 1 with the sign of d, or d itself if it is 0 or NaN. It selects bits without a branch, so loops over it vectorize.
inline float sign_of(float d) {
  const uint32_t bits = detail::float_bits(d), magnitude = bits & 0x7fffffffu;
  const bool is_itself = (magnitude == 0) | (magnitude > 0x7f800000u);
  return detail::bits_float(detail::select(is_itself, bits, (bits & 0x80000000u) | 0x3f800000u));
}
inline double sign_of(double d) { return activate<Activation::sign>(d); }

template <bool squared, class T>
void compute_error(const Args& a, Context& context) {
  using A = acc_t<T>;
  const int64_t n = a.rows * a.columns;
  const T *y = as<T>(a.x), *t = as<T>(a.y), *grad = as<T>(a.grad);
  T* out = as<T>(a.out);
  const A count(a.reduction == Reduction::mean ? n : 1);
  const auto slope = [](A d) { return squared ? d : sign_of(d); };
  if (a.step == Step::squared_error || a.step == Step::absolute_error) {
    const auto loss = [](A value, A wanted) {
      const A d = value - wanted;
      return squared ? d * d / 2 : std::fabs(d);
    };
    if (a.reduction == Reduction::none) return map(context, n, out, loss, y, t);
    return sum(context, n, out, count, loss, y, t);
  }
  if (a.reduction == Reduction::none) {
    return map(context, n, out, [=](A v, A w, A g) { return g * slope(v - w); }, y, t, grad);
  }
  if (n == 0) return;
  const A each = A(grad[0]) / count;
  map(context, n, out, [=](A v, A w) { return each * slope(v - w); }, y, t);
}

// ---- cross-entropy

// Takes several rows of logits at a time. Short rows become columns of a buffer, so that a vector holds one class of
// many rows.
template <class T>
struct Logits {
  using A = acc_t<T>;
  static constexpr int64_t short_row = 64;
  static constexpr int side = 16;
  const T* x;
  const int64_t* target;
  int64_t rows, classes;

  bool is_short() const { return classes <= short_row; }
  int64_t buffer_size() const { return is_short() ? classes * side : classes; }

  bool valid(int64_t row) const { return target[row] >= 0 && target[row] < classes; }
  A loss(int64_t row, A most, A sum) const {
    if (!valid(row)) return std::numeric_limits<A>::quiet_NaN();
    return std::log(sum) - (A(x[row * classes + target[row]]) - most);
  }

  // buffer = exp(row - its maximum). The maximum ignores NaN, but the sum does not; and if the maximum is infinite, the
  // sum is NaN.
  void softmax(int64_t row, A* buffer, A& most, A& sum) const {
    const T* from = x + row * classes;
    convert(classes, from, buffer);
    const A greatest = greatest_of_lanes(classes, buffer);
    TP_INDEPENDENT
    for (int64_t k = 0; k < classes; ++k) buffer[k] = exponential(buffer[k] - greatest);
    most = greatest;
    sum = sum_of_lanes<A>(classes, [=](int64_t k) { return buffer[k]; });
  }

  // Does the same for `side` rows from `row` on. If fewer rows are left, the last one is repeated.
  void softmax_of_rows(int64_t row, A* buffer, A* most, A* sum) const {
    const T* from[side];
    for (int l = 0; l < side; ++l) from[l] = x + tp::min(row + l, rows - 1) * classes;
    for (int l = 0; l < side; ++l) most[l] = Max<A>::identity(), sum[l] = 0;
    for (int64_t c = 0; c < classes; ++c) {
      A* column = buffer + c * side;
      for (int l = 0; l < side; ++l) column[l] = A(from[l][c]);
      for (int l = 0; l < side; ++l) most[l] = column[l] > most[l] ? column[l] : most[l];
    }
    for (int64_t c = 0; c < classes; ++c) {
      A* column = buffer + c * side;
      TP_INDEPENDENT
      for (int l = 0; l < side; ++l) {
        column[l] = exponential(column[l] - most[l]);
        sum[l] += column[l];
      }
    }
  }

  // Calls f(row, most, sum, buffer, step) for rows begin to end - 1; exp(x[row, c] - most) is at buffer[c * step].
  template <class F>
  void for_rows(int64_t begin, int64_t end, A* buffer, F f) const {
    if (!is_short()) {
      for (int64_t row = begin; row < end; ++row) {
        A most, sum;
        softmax(row, buffer, most, sum);
        f(row, most, sum, static_cast<const A*>(buffer), std::integral_constant<int, 1>{});
      }
      return;
    }
    for (int64_t row = begin; row < end; row += side) {
      A most[side], sum[side];
      softmax_of_rows(row, buffer, most, sum);
      for (int l = 0; l < side && row + l < end; ++l) {
        f(row + l, most[l], sum[l], static_cast<const A*>(buffer + l), std::integral_constant<int, side>{});
      }
    }
  }

  // Calls f for all rows, on all threads.
  template <class F>
  void for_all(Context& context, F f) const {
    const int64_t cost = 4 * tp::max(classes, int64_t(1));
    context.parallel_for(rows, tp::max(grain / cost, int64_t(side)), [=, *this](int64_t begin, int64_t end) {
      std::vector<A> space(static_cast<size_t>(buffer_size()));
      A* buffer = space.data();
      on_vectors([=, *this] { for_rows(begin, end, buffer, f); });
    });
  }
};

template <class T>
void cross_entropy_gradient(const Args& a, const Logits<T>& logits, Context& context) {
  using A = acc_t<T>;
  if (logits.rows == 0) return;
  const int64_t classes = logits.classes;
  const bool each = a.reduction == Reduction::none;
  const T* grad = as<T>(a.grad);
  T* out = as<T>(a.out);
  const A shared = each ? A(0) : A(grad[0]) / A(a.reduction == Reduction::mean ? logits.rows : 1);
  logits.for_all(context, [=](int64_t row, A, A sum, const A* exponentials, auto step) {
    T* to = out + row * classes;
    if (!logits.valid(row)) {
      for (int64_t c = 0; c < classes; ++c) to[c] = T(0);
      return;
    }
    const A g = each ? A(grad[row]) : shared, one = A(1) / sum;
    store(classes, to, [=](int64_t c) { return exponentials[c * step] * one * g; });
    const int64_t label = logits.target[row];
    to[label] = T((exponentials[label * step] * one - 1) * g);
  });
}

template <class T>
void compute_cross_entropy(const Args& a, Context& context) {
  using A = acc_t<T>;
  const Logits<T> logits{as<T>(a.x), a.target, a.rows, a.columns};
  if (a.step == Step::cross_entropy_backward) return cross_entropy_gradient(a, logits, context);
  T* out = as<T>(a.out);
  if (a.reduction == Reduction::none) {
    return logits.for_all(
        context, [=](int64_t row, A most, A sum, const A*, auto) { out[row] = T(logits.loss(row, most, sum)); });
  }
  A* each = context.workspace<A>(a.rows);
  logits.for_all(context, [=](int64_t row, A most, A sum, const A*, auto) { each[row] = logits.loss(row, most, sum); });
  const A divisor(a.reduction == Reduction::mean ? a.rows : 1);
  sum(context, a.rows, out, divisor, Itself{}, static_cast<const A*>(each));
}

// ---- Gaussian outputs

// As Gaussian in layers/rbf.h: y[n, c] = exp(-|x[n] - centre[c]|^2 / (2 sigma^2)), times grad if there is one. The
// lanes of a vector are different points, so a centre's coordinate is the same for all lanes, and no sum crosses lanes.
template <class T, class Out>
struct Gaussians {
  using A = acc_t<T>;
  typedef A Vector __attribute__((vector_size(32), aligned(sizeof(A)), may_alias));
  static constexpr int lanes = 32 / int(sizeof(A)), side = 2 * lanes;
  static constexpr int64_t some = 32;  // terms of a sum that are added up separately
  const T *x, *centres, *grad;
  Out* out;
  int64_t rows, classes, features;
  BySigma<A> by_sigma;

  // Computes points first to first + side - 1. `points` has room for their coordinates.
  void compute(int64_t first, A* points) const {
    const int64_t count = tp::min(int64_t(side), rows - first);
    for (int64_t l = 0; l < side; ++l) {
      const T* point = x + (first + tp::min(l, count - 1)) * features;
      for (int64_t d = 0; d < features; ++d) points[d * side + l] = A(point[d]);
    }
    for (int64_t c = 0; c < classes; ++c) {
      Vector low{}, high{};
      for (int64_t d = 0; d < features; d += some) add(points, centres + c * features, d, low, high);
      A y[side];
      *reinterpret_cast<Vector*>(y) = low, *reinterpret_cast<Vector*>(y + lanes) = high;
      for (int l = 0; l < side; ++l) y[l] = exponential(-y[l] / (2 * by_sigma.square));
      for (int64_t l = 0; l < count; ++l) {
        const int64_t i = (first + l) * classes + c;
        out[i] = Out(grad ? A(grad[i]) * y[l] : y[l]);
      }
    }
  }

  // Adds the terms of features first to first + some - 1.
  void add(const A* points, const T* centre, int64_t first, Vector& low, Vector& high) const {
    Vector low_part{}, high_part{};
    const int64_t end = tp::min(first + some, features);
    const auto* point = reinterpret_cast<const Vector*>(points + first * side);
    for (int64_t d = first; d < end; ++d, point += 2) {
      const A middle = A(centre[d]);
      const Vector a = (point[0] - middle) * by_sigma.half * by_sigma.rest;
      const Vector b = (point[1] - middle) * by_sigma.half * by_sigma.rest;
      low_part += a * a;
      high_part += b * b;
    }
    low += low_part;
    high += high_part;
  }

  void compute_all(Context& context) const {
    const int64_t cost = side * tp::max(classes * features, int64_t(1));
    context.parallel_for(ceil_div(rows, int64_t(side)), tp::max(grain / cost, int64_t(1)),
                         [=, *this](int64_t begin, int64_t end) {
                           std::vector<A> space(static_cast<size_t>(side * features));
                           on_vectors([=, *this, points = space.data()] {
                             for (int64_t i = begin; i < end; ++i) compute(i * side, points);
                           });
                         });
  }
};

// The gradients of one side, n points, from their pairs with `others`.
template <class T>
struct Pulls {
  using A = acc_t<T>;
  const A* pull;
  int64_t i_stride, j_stride;
  const T *self, *other;
  int64_t n, others, features;
  BySigma<A> by_sigma;
  T* out;

  // As Pull in layers/rbf.h, for all coordinates of point i. `part` holds the sum of up to 256 terms, and `total` the
  // sum of such parts.
  void compute(int64_t i, A* part, A* total) const {
    const T* mine = self + i * features;
    for (int64_t d = 0; d < features; ++d) total[d] = 0;
    for (int64_t first = 0; first < others; first += 256) {
      for (int64_t d = 0; d < features; ++d) part[d] = 0;
      for (int64_t j = first; j < tp::min(others, first + 256); ++j) {
        const A weight = pull[i * i_stride + j * j_stride];
        if (weight == 0) continue;  // a weight of 0 adds nothing, even if the distance is infinite
        const T* theirs = other + j * features;
        TP_INDEPENDENT
        for (int64_t d = 0; d < features; ++d) part[d] += weight * by_sigma.scaled(A(theirs[d]) - A(mine[d]));
      }
      for (int64_t d = 0; d < features; ++d) total[d] += part[d];
    }
    for (int64_t d = 0; d < features; ++d) out[i * features + d] = T(by_sigma.scaled(total[d]) / by_sigma.square);
  }

  void compute_all(Context& context) const {
    const int64_t cost = tp::max(others * features, int64_t(1));
    context.parallel_for(n, tp::max(grain / cost, int64_t(1)), [=, *this](int64_t begin, int64_t end) {
      std::vector<A> space(static_cast<size_t>(2 * features));
      on_vectors([=, *this, part = space.data(), total = space.data() + features] {
        for (int64_t i = begin; i < end; ++i) compute(i, part, total);
      });
    });
  }
};

template <class T>
void compute_rbf(const Args& a, Context& context) {
  using A = acc_t<T>;
  const BySigma<A> by_sigma(a.sigma);
  const int64_t n = a.rows, classes = a.columns, features = a.features;
  const T *x = as<T>(a.x), *centres = as<T>(a.y);
  if (a.step == Step::rbf) {
    return Gaussians<T, T>{x, centres, nullptr, as<T>(a.out), n, classes, features, by_sigma}.compute_all(context);
  }
  A* pull = context.workspace<A>(n * classes);
  Gaussians<T, A>{x, centres, as<T>(a.grad), pull, n, classes, features, by_sigma}.compute_all(context);
  Pulls<T>{pull, classes, 1, x, centres, n, classes, features, by_sigma, as<T>(a.out)}.compute_all(context);
  Pulls<T>{pull, 1, classes, centres, x, classes, n, features, by_sigma, as<T>(a.out_y)}.compute_all(context);
}

}  // namespace

void activations::threaded(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "activation",
           [&](auto type) { compute_activation<typename decltype(type)::type>(args, context); });
}

void losses::threaded(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "loss", [&](auto type) {
    using T = typename decltype(type)::type;
    switch (args.step) {
      case Step::cross_entropy:
      case Step::cross_entropy_backward:
        return compute_cross_entropy<T>(args, context);
      case Step::squared_error:
      case Step::squared_error_backward:
        return compute_error<true, T>(args, context);
      default:
        return compute_error<false, T>(args, context);
    }
  });
}

void gaussians::threaded(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "rbf",
           [&](auto type) { compute_rbf<typename decltype(type)::type>(args, context); });
}

}  // namespace layers

void linear::threaded(const Args& args, Context& context) { compute(args, Threaded{context}); }

}  // namespace tp
