// All threads share the rows of maps. The inner loops run along a row (channels last: along the channels of a pixel),
// over a few taps of the window at a time, so they vectorize. Sums and comparisons have the order of the sequential
// rung, so the results are the same bits.
#include <algorithm>

#include "pooling/threaded_backward.h"

namespace tp::pooling {
namespace host {
namespace {

// Whether the outputs themselves can hold what has been found so far. Short rows of a map are not worth it.
template <class T>
bool in_place(const Args& a) {
  return std::is_same_v<T, acc_t<T>> && a.in.inner != 1;
}

template <class T, class I, class Index>
void maximum_line(const Args& a, const Line& line, acc_t<T>* best, acc_t<T>* space, I* index, T* y, Index* indices) {
  using A = acc_t<T>;
  const T* x = as<T>(a.x);
  const I width = I(a.in.w), top = I(first_tap(a.h, line.oh)) * width;
  if (in_place<T>(a)) best = reinterpret_cast<A*>(y);
  // Channels last, the first taps are those of all outputs, so nothing is held before them. Every window has a tap.
  bool first = a.in.inner != 1;
  if (!first) {
    for (int64_t k = 0; k < line.width; ++k) {
      best[k] = Max<A>::identity();
      index[k] = top + I(first_tap(a.w, k));  // the index if all values are -inf
    }
  }
  const I pixel_step = a.in.inner == 1 ? I(a.w.stride) : I(0);
  const int64_t inner = a.in.inner;
  const auto use = [=, &first](auto taps, int64_t begin, int64_t count, int64_t from, int64_t step, int64_t ih,
                               int64_t iw) {
    const I pixel = I(ih) * width + I(iw);
    A* to = best + begin;
    I* index_to = index + begin;
    const auto* values = readable(x + from, (taps - 1) * inner + (count - 1) * step + 1, space);
    const bool is_first = first;
    first = false;
    with_step(step, [=](auto by) {
      with_first(is_first, [=](auto starts) {
        TP_INDEPENDENT
        for (int64_t k = 0; k < count; ++k) {
          A value = A(values[k * by]);
          I tap(0);
          for (int t = 1; t < taps; ++t) {
            const A other = A(values[t * inner + k * by]);
            const bool greater = replaces(other, value);
            value = chosen(greater, other, value);
            tap = chosen(greater, I(t), tap);
          }
          const I at = pixel + tap + I(k) * pixel_step;
          const bool greater = starts || replaces(value, to[k]);
          to[k] = starts ? value : chosen(greater, value, to[k]);
          index_to[k] = starts ? at : chosen(greater, at, index_to[k]);
        }
      });
    });
  };
  for_taps<std::is_same_v<T, double> ? 1 : most_taps>(a, line, use);  // GCC does not vectorize several of double
  if (!in_place<T>(a)) convert(line.width, best, y);
  convert(line.width, index, indices);
}

template <class T, class I, class Index>
void maximum_lines(const Args& a, Index* indices, Context& context) {
  for_lines(context, a.out, a.h.kernel * a.w.kernel, [&a, indices](int64_t begin, int64_t end) {
    const int64_t width = a.out.inner == 1 ? a.out.w : a.out.inner;
    const auto best = array<acc_t<T>>(width), space = array<acc_t<T>>(tp::max(a.in.w, most_taps * a.in.inner));
    const auto index = array<I>(width);
    on_vectors([&a, indices, begin, end, width, values = best.get(), wide = space.get(), wide_index = index.get()] {
      for (int64_t i = begin; i < end; ++i) {
        maximum_line<T, I>(a, line_of(a.out, i), values, wide, wide_index, as<T>(a.y) + i * width, indices + i * width);
      }
    });
  });
}

// The means of a row of a map, if all windows are 2 x 2 pixels inside it: one loop takes all four.
template <class T>
void average_of_halves(const Args& a, const Line& line, acc_t<T>* mean) {
  using A = acc_t<T>;
  const T *top = as<T>(a.x) + (line.outer * a.in.h + 2 * line.oh) * a.in.w, *bottom = top + a.in.w;
  TP_INDEPENDENT
  for (int64_t k = 0; k < line.width; ++k) {
    mean[k] = (A(0) + A(top[2 * k]) + A(top[2 * k + 1]) + A(bottom[2 * k]) + A(bottom[2 * k + 1])) / 4;
  }
}

template <class T>
void average_line(const Args& a, const Line& line, acc_t<T>* sum, acc_t<T>* space, T* y) {
  using A = acc_t<T>;
  const T *x = as<T>(a.x), *bias = as<T>(a.bias);
  if (in_place<T>(a)) sum = reinterpret_cast<A*>(y);
  const bool by_halves = a.in.inner == 1 && halves(a.h) && halves(a.w) && !std::is_same_v<T, half>;
  bool first = a.in.inner != 1;
  if (!first) std::fill_n(sum, line.width, A(0));
  const int64_t inner = a.in.inner;
  const auto add = [=, &first](auto taps, int64_t begin, int64_t count, int64_t from, int64_t step, int64_t, int64_t) {
    A* to = sum + begin;
    const auto* values = readable(x + from, (taps - 1) * inner + (count - 1) * step + 1, space);
    const bool is_first = first;
    first = false;
    with_step(step, [=](auto by) {
      with_first(is_first, [=](auto starts) {
        TP_INDEPENDENT
        for (int64_t k = 0; k < count; ++k) {
          A total = starts ? A(0) : to[k];
          for (int t = 0; t < taps; ++t) total += A(values[t * inner + k * by]);
          to[k] = total;
        }
      });
    });
  };
  if (by_halves) {
    average_of_halves<T>(a, line, sum);
  } else {
    for_taps<most_taps>(a, line, add);
  }
  const int64_t rows = counted(a.h, line.oh, a.count_include_pad);
  if (a.in.inner == 1) {
    for (int64_t k = 0; k < line.width && !by_halves; ++k) sum[k] /= A(rows * counted(a.w, k, a.count_include_pad));
    const A offset = bias ? A(bias[line.outer % a.maps]) : A(0);
    if (bias) {
      for (int64_t k = 0; k < line.width; ++k) sum[k] += offset;
    }
  } else {
    const A count(rows * counted(a.w, line.ow, a.count_include_pad));
    for (int64_t k = 0; k < line.width; ++k) sum[k] = bias ? sum[k] / count + A(bias[k]) : sum[k] / count;
  }
  with_activation(a.activation, [=](auto f) {
    TP_INDEPENDENT
    for (int64_t k = 0; k < line.width; ++k) sum[k] = activate<f.value>(sum[k]);
  });
  if (!in_place<T>(a)) convert(line.width, sum, y);
}

template <class T>
void average_lines(const Args& a, Context& context) {
  for_lines(context, a.out, a.h.kernel * a.w.kernel, [&a](int64_t begin, int64_t end) {
    const int64_t width = a.out.inner == 1 ? a.out.w : a.out.inner;
    const auto sums = array<acc_t<T>>(width), space = array<acc_t<T>>(tp::max(a.in.w, most_taps * a.in.inner));
    on_vectors([&a, begin, end, width, sum = sums.get(), wide = space.get()] {
      for (int64_t i = begin; i < end; ++i) average_line<T>(a, line_of(a.out, i), sum, wide, as<T>(a.y) + i * width);
    });
  });
}

template <class T>
void maxima(const Args& a, Context& context) {
  const bool short_maps = a.in.h * a.in.w < int64_t(1) << 31;
  if (a.step == Step::maximum) {
    return with_indices(a, [&](auto* indices) {
      short_maps ? maximum_lines<T, int32_t>(a, indices, context) : maximum_lines<T, int64_t>(a, indices, context);
    });
  }
  if constexpr (is_floating<T>) {
    if (a.step == Step::maximum_backward) {
      return with_indices(a, [&](const auto* indices) { maximum_backward<T>(a, indices, context); });
    }
    with_axes(a, [&](const auto& h, const auto& w) { maximum<T>(a, Threaded{context}, h, w); });
  }
}

}  // namespace
}  // namespace host

void threaded(const Args& args, Context& context) {
  if (args.step == Step::average || args.step == Step::average_backward) {
    return dispatch(FloatTypes{}, args.dtype, "avg_pool2d", [&](auto type) {
      using T = typename decltype(type)::type;
      args.step == Step::average ? host::average_lines<T>(args, context) : host::average_backward<T>(args, context);
    });
  }
  dispatch(AllTypes{}, args.dtype, "max_pool2d",
           [&](auto type) { host::maxima<typename decltype(type)::type>(args, context); });
}

}  // namespace tp::pooling
