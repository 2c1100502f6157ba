// All threads share chunks of outputs, and vectorized loops compute each chunk.
//
// Chunks of sums have a fixed length, and a tree adds up their sums, so any number of threads gives the same bits.
#include <algorithm>
#include <vector>

#include "block/convert.h"
#include "block/exponential.h"
#include "block/transpose.h"
#include "layers/compute.h"
#include "layers/perceptron.h"
#include "layers/threaded_rbf.h"

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

// *out = (f(in[0]...) + ... + f(in[n - 1]...)) / divisor.
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
  static constexpr int64_t short_row = 128;
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

  // Does the same for `count` short rows from `row` on, at most `side`: the exponentials of row l are at
  // buffer[c * side + l].
  void softmax_of_rows(int64_t row, int count, A* buffer, A* most, A* sum) const {
    const auto turn = [=, this](T* to) {
      if (count < side) std::fill_n(to, classes * side, T(0));
      transpose<32>(count, classes, x + row * classes, classes, to, side);
    };
    if constexpr (std::is_same<T, A>::value) {
      turn(buffer);
    } else {
      T turned[short_row * side];
      turn(turned);
      convert(classes * side, turned, buffer);
    }
    for (int l = 0; l < side; ++l) most[l] = Max<A>::identity(), sum[l] = 0;
    for (int64_t c = 0; c < classes; ++c) {
      const A* column = buffer + c * side;
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

  // Stores the columns of the buffer as rows.
  void store_rows(int64_t row, int count, const A* buffer, T* out) const {
    T* to = out + row * classes;
    if constexpr (std::is_same<T, A>::value) {
      transpose<32>(classes, count, buffer, side, to, classes);
    } else {
      T narrow[short_row * side];
      convert(classes * side, buffer, narrow);
      transpose<32>(classes, count, narrow, side, to, classes);
    }
  }

  // On all threads, calls of_row(row, most, sum, buffer) for each long row, or of_rows(row, count, most, sum, buffer)
  // for up to `side` short ones.
  template <class OfRow, class OfRows>
  void for_all(Context& context, OfRow of_row, OfRows of_rows) const {
    const int64_t cost = 4 * tp::max(classes, int64_t(1));
    context.parallel_for(rows, tp::max(grain / cost, int64_t(side)), [=, *this](int64_t begin, int64_t end) {
      std::vector<A> space(static_cast<size_t>(buffer_size()));
      A* buffer = space.data();
      on_widest_vectors([=, *this](auto) {
        if (is_short()) {
          for (int64_t row = begin; row < end; row += side) {
            const int count = int(tp::min(end - row, int64_t(side)));
            A most[side], sum[side];
            softmax_of_rows(row, count, buffer, most, sum);
            of_rows(row, count, most, sum, buffer);
          }
        } else {
          for (int64_t row = begin; row < end; ++row) {
            A most, sum;
            softmax(row, buffer, most, sum);
            of_row(row, most, sum, static_cast<const A*>(buffer));
          }
        }
      });
    });
  }

  // Stores the loss of each row.
  void store_losses(Context& context, A* losses) const {
    for_all(
        context, [=, *this](int64_t row, A most, A sum, const A*) { losses[row] = loss(row, most, sum); },
        [=, *this](int64_t row, int count, const A* most, const A* sum, A*) {
          for (int l = 0; l < count; ++l) losses[row + l] = loss(row + l, most[l], sum[l]);
        });
  }
};

template <class T>
void cross_entropy_gradient(const Args& a, const Logits<T>& logits, Context& context) {
  using A = acc_t<T>;
  using Rows = Logits<T>;
  if (logits.rows == 0) return;
  const int64_t classes = logits.classes;
  const bool each = a.reduction == Reduction::none;
  const T* grad = as<T>(a.grad);
  T* out = as<T>(a.out);
  const A shared = each ? A(0) : A(grad[0]) / A(a.reduction == Reduction::mean ? logits.rows : 1);
  const auto grad_of = [=](int64_t row) { return each ? A(grad[row]) : shared; };
  // At the label, whose exponential is given; a row without a label has no gradient.
  const auto finish = [=](int64_t row, A exponential, A one, A g) {
    T* to = out + row * classes;
    if (logits.valid(row)) {
      to[logits.target[row]] = T((exponential * one - 1) * g);
    } else {
      std::fill_n(to, classes, T(0));
    }
  };
  logits.for_all(
      context,
      [=](int64_t row, A, A sum, const A* exponentials) {
        const A g = grad_of(row), one = A(1) / sum;
        store(classes, out + row * classes, [=](int64_t c) { return exponentials[c] * one * g; });
        finish(row, logits.valid(row) ? exponentials[logits.target[row]] : A(0), one, g);
      },
      [=](int64_t row, int count, const A*, const A* sum, A* exponentials) {
        A g[Rows::side] = {}, one[Rows::side], at_label[Rows::side];
        for (int l = 0; l < Rows::side; ++l) one[l] = A(1) / sum[l];
        for (int l = 0; l < count; ++l) {
          g[l] = grad_of(row + l);
          at_label[l] = logits.valid(row + l) ? exponentials[logits.target[row + l] * Rows::side + l] : A(0);
        }
        for (int64_t c = 0; c < classes; ++c) {
          A* column = exponentials + c * Rows::side;
          TP_INDEPENDENT
          for (int l = 0; l < Rows::side; ++l) column[l] = column[l] * one[l] * g[l];
        }
        logits.store_rows(row, count, exponentials, out);
        for (int l = 0; l < count; ++l) finish(row + l, at_label[l], one[l], g[l]);
      });
}

template <class T>
void compute_cross_entropy(const Args& a, Context& context) {
  using A = acc_t<T>;
  const Logits<T> logits{as<T>(a.x), a.target, a.rows, a.columns};
  if (a.step == Step::cross_entropy_backward) return cross_entropy_gradient(a, logits, context);
  T* out = as<T>(a.out);
  A* each = context.workspace<A>(a.rows);
  logits.store_losses(context, each);
  if (a.reduction == Reduction::none) return convert(a.rows, each, out);
  const A divisor(a.reduction == Reduction::mean ? a.rows : 1);
  sum(context, a.rows, out, divisor, Itself{}, static_cast<const A*>(each));
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
           [&](auto type) { host::compute_rbf<typename decltype(type)::type>(args, context); });
}

}  // namespace layers

void linear::threaded(const Args& args, Context& context) { compute(args, Threaded{context}); }

}  // namespace tp
