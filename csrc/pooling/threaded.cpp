// Rows of maps divided among all threads. The inner loops run along a row (channels last, along the channels of a
// pixel), one tap of the window after another, so that they run on vectors; sums and comparisons are those of the
// oracle in the same order, and so are the results.
#include "block/on_vectors.h"
#include "pooling/gather.h"

namespace tp::pooling {
namespace {

constexpr int64_t grain = 1 << 14;  // operations that are worth a thread

// f(step), as a constant where loops over memory gain by it.
template <class F>
void with_step(int64_t step, F f) {
  if (step == 1) return f(std::integral_constant<int64_t, 1>{});
  if (step == 2) return f(std::integral_constant<int64_t, 2>{});
  f(step);
}

// The windows o whose tap k lies inside the map: begin <= o < end.
struct Span {
  int64_t begin, end;
};
inline Span inside(const Axis& axis, int64_t k) {
  const int64_t offset = k * axis.dilation - axis.padding, last = axis.size - 1 - offset;
  const int64_t begin = offset >= 0 ? 0 : ceil_div(-offset, axis.stride);
  return {begin, last < 0 ? begin : tp::min(axis.outputs, last / axis.stride + 1)};
}
inline bool lies_inside(const Axis& axis, int64_t o, int64_t k) {
  const int64_t i = o * axis.stride - axis.padding + k * axis.dilation;
  return i >= 0 && i < axis.size;
}
inline int64_t first_tap(const Axis& axis, int64_t o) { return window(axis, o).begin; }

template <class A>
inline bool replaces(A value, A held) {  // of equal values the earlier stays, and so does the first NaN
  if constexpr (std::is_floating_point<A>::value) return !(value <= held) & (held == held);
  return value > held;
}

// What the loops work on: all outputs of a row of a map or, channels last, all channels of one output pixel.
struct Line {
  int64_t outer, oh, ow, width;  // a row begins at ow = 0
};
inline int64_t lines_per_row(const Maps& maps) { return maps.inner == 1 ? 1 : maps.w; }
inline Line line_of(const Maps& maps, int64_t i) {
  const int64_t per_row = lines_per_row(maps), row = i / per_row;
  return {row / maps.h, row % maps.h, maps.inner == 1 ? 0 : i % per_row, maps.inner == 1 ? maps.w : maps.inner};
}

// f(first, count, from, step, tap_h, tap_w) for the taps of a line's windows in row-major order: outputs first to
// first + count - 1 of the line read x[from], x[from + step], ...; tap_w is the column that the first of them reads.
template <class F>
inline void for_taps(const Args& a, const Line& line, F f) {
  for (int64_t i = 0; i < a.h.kernel; ++i) {
    if (!lies_inside(a.h, line.oh, i)) continue;
    const int64_t ih = line.oh * a.h.stride - a.h.padding + i * a.h.dilation;
    const int64_t row = (line.outer * a.in.h + ih) * a.in.w;
    for (int64_t j = 0; j < a.w.kernel; ++j) {
      const int64_t offset = j * a.w.dilation - a.w.padding;
      if (a.in.inner == 1) {
        const Span span = inside(a.w, j);
        const int64_t iw = span.begin * a.w.stride + offset;
        if (span.begin < span.end) f(span.begin, span.end - span.begin, row + iw, a.w.stride, ih, iw);
      } else if (lies_inside(a.w, line.ow, j)) {
        const int64_t iw = line.ow * a.w.stride + offset;
        f(int64_t(0), line.width, (row + iw) * a.in.inner, int64_t(1), ih, iw);
      }
    }
  }
}

template <class Body>
void for_lines(Context& context, const Maps& maps, int64_t cost, Body body) {
  const int64_t lines = maps.outer * maps.h * lines_per_row(maps);
  const int64_t width = maps.inner == 1 ? maps.w : maps.inner;
  context.parallel_for(lines, tp::max(grain / tp::max(width * cost, int64_t(1)), int64_t(1)), body);
}

// ---- forward

template <class T, class I, class Index>
void maximum_line(const Args& a, const Line& line, acc_t<T>* best, I* index, T* y, Index* indices) {
  using A = acc_t<T>;
  const T* x = as<T>(a.x);
  const I width = I(a.in.w), top = I(first_tap(a.h, line.oh)) * width;
  for (int64_t k = 0; k < line.width; ++k) {
    best[k] = Max<A>::identity();
    index[k] = top + I(first_tap(a.w, a.in.inner == 1 ? k : line.ow));  // so that -inf everywhere has a place
  }
  const I pixel_step = a.in.inner == 1 ? I(a.w.stride) : I(0);
  for_taps(a, line, [=](int64_t first, int64_t count, int64_t from, int64_t step, int64_t ih, int64_t iw) {
    const I pixel = I(ih) * width + I(iw);
    A* to = best + first;
    I* places = index + first;
    with_step(step, [=](auto by) {
      TP_INDEPENDENT
      for (int64_t k = 0; k < count; ++k) {
        const A value = A(x[from + k * by]), held = to[k];
        const bool greater = replaces(value, held);
        to[k] = greater ? value : held;
        places[k] = greater ? pixel + I(k) * pixel_step : places[k];
      }
    });
  });
  TP_INDEPENDENT
  for (int64_t k = 0; k < line.width; ++k) y[k] = T(best[k]), indices[k] = Index(index[k]);
}

template <class T, class I, class Index>
void maximum_lines(const Args& a, Index* indices, Context& context) {
  for_lines(context, a.out, a.h.kernel * a.w.kernel, [&a, indices](int64_t begin, int64_t end) {
    const int64_t width = a.out.inner == 1 ? a.out.w : a.out.inner;
    const auto best = array<acc_t<T>>(width);
    const auto index = array<I>(width);
    on_vectors([&a, indices, begin, end, width, values = best.get(), places = index.get()] {
      for (int64_t i = begin; i < end; ++i) {
        maximum_line<T, I>(a, line_of(a.out, i), values, places, as<T>(a.y) + i * width, indices + i * width);
      }
    });
  });
}

template <class T>
void average_line(const Args& a, const Line& line, acc_t<T>* sum, T* y) {
  using A = acc_t<T>;
  const T *x = as<T>(a.x), *bias = as<T>(a.bias);
  for (int64_t k = 0; k < line.width; ++k) sum[k] = 0;
  for_taps(a, line, [=](int64_t first, int64_t count, int64_t from, int64_t step, int64_t, int64_t) {
    A* to = sum + first;
    with_step(step, [=](auto by) {
      TP_INDEPENDENT
      for (int64_t k = 0; k < count; ++k) to[k] += A(x[from + k * by]);
    });
  });
  const int64_t rows = counted(a.h, line.oh, a.count_include_pad);
  if (a.in.inner == 1) {
    for (int64_t k = 0; k < line.width; ++k) sum[k] /= A(rows * counted(a.w, k, a.count_include_pad));
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
    for (int64_t k = 0; k < line.width; ++k) y[k] = T(activate<f.value>(sum[k]));
  });
}

template <class T>
void average_lines(const Args& a, Context& context) {
  for_lines(context, a.out, a.h.kernel * a.w.kernel, [&a](int64_t begin, int64_t end) {
    const int64_t width = a.out.inner == 1 ? a.out.w : a.out.inner;
    const auto sums = array<acc_t<T>>(width);
    on_vectors([&a, begin, end, width, sum = sums.get()] {
      for (int64_t i = begin; i < end; ++i) average_line<T>(a, line_of(a.out, i), sum, as<T>(a.y) + i * width);
    });
  });
}

// ---- backward

// Maximum, one outer map at a time: every window adds its gradient to the pixel of its maximum, in the order of the
// windows, which for each pixel is the order of the sequential rung.
//
// First a loop that runs on vectors finds where the gradients of a row of windows go: an index outside its window is of
// no pixel, and its gradient is replaced by 0, added to the first pixel. A row has `width` entries, the channels of a
// window side by side. Places are int32: vectors hold twice as many.
template <class T>
struct Scatter {
  using A = acc_t<T>;
  int64_t width, pixels;
  int32_t *left, *channel, *target;  // [width]; of an entry: its window's first column, its channel, where it goes
  A* value;                          // [width]

  // Columns and reach so small that a few comparisons find the row of a pixel in its window.
  static bool fits(const Args& a) {
    const int64_t most = int64_t(1) << 28;
    return a.h.reach() <= 4 && a.w.reach() <= a.in.w && a.in.h * a.in.w * a.in.inner < most &&
           (a.out.w + 1) * a.w.stride < most && (a.out.h + 1) * a.h.stride * a.in.w < most;
  }

  void prepare(const Args& a) const {
    for (int64_t e = 0; e < width; ++e) {
      left[e] = int32_t(e / a.in.inner * a.w.stride - a.w.padding);
      channel[e] = int32_t(e % a.in.inner);
    }
  }
  template <class Index>
  void add_row(const Args& a, int64_t oh, const T* grad, const Index* taken, A* plane) const {
    const auto columns = int32_t(a.in.w), inner = int32_t(a.in.inner), reach = int32_t(a.w.reach());
    const int64_t top = oh * a.h.stride - a.h.padding, first = top * a.in.w;
    const auto first_row = int32_t(tp::max(int64_t(0), -top)), end_row = int32_t(tp::min(a.h.reach(), a.in.h - top));
    const int64_t plane_pixels = a.in.h * a.in.w;
    TP_INDEPENDENT
    for (int64_t e = 0; e < width; ++e) {
      const bool inside = uint64_t(taken[e]) < uint64_t(plane_pixels);
      const int32_t pixel = inside ? int32_t(taken[e]) : 0;
      const int32_t distance = pixel - int32_t(first) - left[e];
      const int32_t down =
          int32_t(distance >= columns) + int32_t(distance >= 2 * columns) + int32_t(distance >= 3 * columns);
      const int32_t along = distance - down * columns, column = along + left[e];
      const bool valid = inside & (distance >= 0) & (down >= first_row) & (down < end_row) & (along < reach) &
                         (column >= 0) & (column < columns);
      target[e] = valid ? pixel * inner + channel[e] : 0;
      value[e] = valid ? A(grad[e]) : A(0);
    }
    for (int64_t e = 0; e < width; ++e) plane[target[e]] += value[e];
  }
};

template <class T, class Index>
void maximum_backward_maps(const Args& a, const Index* indices, Context& context) {
  using A = acc_t<T>;
  constexpr bool direct = std::is_same<T, A>::value;
  const int64_t width = a.out.w * a.out.inner, pixels = a.in.h * a.in.w * a.in.inner;
  const auto body = [&a, indices, width, pixels](int64_t begin, int64_t end) {
    const auto places = array<int32_t>(3 * width);
    const auto values = array<A>(width), sums = array<A>(direct ? 0 : pixels);
    const Scatter<T> scatter{width, pixels, places.get(), places.get() + width, places.get() + 2 * width, values.get()};
    on_vectors([&a, indices, scatter, begin, end, space = sums.get()] {
      scatter.prepare(a);
      for (int64_t outer = begin; outer < end; ++outer) {
        T* to = as<T>(a.grad_x) + outer * scatter.pixels;
        A* plane = direct ? reinterpret_cast<A*>(to) : space;
        for (int64_t p = 0; p < scatter.pixels; ++p) plane[p] = 0;
        for (int64_t oh = 0; oh < a.out.h; ++oh) {
          const int64_t row = (outer * a.out.h + oh) * scatter.width;
          scatter.add_row(a, oh, as<T>(a.grad) + row, indices + row, plane);
        }
        if (direct) continue;
        for (int64_t p = 0; p < scatter.pixels; ++p) to[p] = T(plane[p]);
      }
    });
  };
  context.parallel_for(a.in.outer, tp::max(grain / tp::max(pixels, int64_t(1)), int64_t(1)), body);
}

// Where a pixel lies in many windows, or a scatter does not know their rows: pixels gather (pooling/gather.h).
template <class T, class Index>
void maximum_backward_gathering(const Args& a, Context& context) {
  const int64_t pixels = a.in.h * a.in.w * a.in.inner;
  context.parallel_for(a.in.outer, tp::max(grain / tp::max(pixels, int64_t(1)), int64_t(1)),
                       [&a](int64_t begin, int64_t end) {
                         const Gather<T, Index> gather(a);
                         on_vectors([&gather, begin, end] {
                           for (int64_t outer = begin; outer < end; ++outer) gather.run(outer);
                         });
                       });
}

// sums = the gradients that a pixel's channels get from the windows whose maximum they are (channels last).
template <class T, class Index>
void maximum_backward_channels(const Args& a, const Index* indices, const Line& p, acc_t<T>* sum, T* to) {
  const Range rows = windows_over(a.h, p.oh), columns = windows_over(a.w, p.ow);
  const int64_t pixel = p.oh * a.in.w + p.ow;
  for (int64_t c = 0; c < p.width; ++c) sum[c] = 0;
  for (int64_t oh = rows.begin; oh < rows.begin + rows.count; ++oh) {
    for (int64_t ow = columns.begin; ow < columns.begin + columns.count; ++ow) {
      const int64_t first = ((p.outer * a.out.h + oh) * a.out.w + ow) * p.width;
      const T* grad = as<T>(a.grad) + first;
      const Index* taken = indices + first;
      TP_INDEPENDENT
      for (int64_t c = 0; c < p.width; ++c) sum[c] += taken[c] == pixel ? acc_t<T>(grad[c]) : acc_t<T>(0);
    }
  }
  TP_INDEPENDENT
  for (int64_t c = 0; c < p.width; ++c) to[c] = T(sum[c]);
}

// Average: every window of `grad` gives each of its pixels the same share. A row of maps first adds up the shares of
// the windows over it, column by column, and then hands them to the pixels.
template <class In, class T>
void average_backward_line(const Args& a, const In* grad, const Line& p, acc_t<In>* shares, acc_t<In>* sum, T* to) {
  using A = acc_t<In>;
  const Range rows = windows_over(a.h, p.oh);
  const bool across = a.in.inner > 1;
  for (int64_t k = 0; k < p.width; ++k) sum[k] = 0;
  for (int64_t oh = rows.begin; oh < rows.begin + rows.count; ++oh) {
    const int64_t count_h = counted(a.h, oh, a.count_include_pad), row = (p.outer * a.out.h + oh) * a.out.w;
    if (across) {
      const Range columns = windows_over(a.w, p.ow);
      for (int64_t ow = columns.begin; ow < columns.begin + columns.count; ++ow) {
        const In* from = grad + (row + ow) * p.width;
        const A count(count_h * counted(a.w, ow, a.count_include_pad));
        TP_INDEPENDENT
        for (int64_t k = 0; k < p.width; ++k) sum[k] += A(from[k]) / count;
      }
      continue;
    }
    const In* from = grad + row;
    TP_INDEPENDENT
    for (int64_t ow = 0; ow < a.out.w; ++ow)
      shares[ow] = A(from[ow]) / A(count_h * counted(a.w, ow, a.count_include_pad));
    for (int64_t j = 0; j < a.w.kernel; ++j) {
      const Span span = inside(a.w, j);
      A* pixel = sum + span.begin * a.w.stride + j - a.w.padding;
      const A* share = shares + span.begin;
      with_step(a.w.stride, [=](auto by) {
        TP_INDEPENDENT
        for (int64_t k = 0; k < span.end - span.begin; ++k) pixel[k * by] += share[k];
      });
    }
  }
  TP_INDEPENDENT
  for (int64_t k = 0; k < p.width; ++k) to[k] = T(sum[k]);
}

template <class T, class In>
void average_backward_lines(const Args& a, const In* grad, Context& context) {
  using A = acc_t<In>;
  const int64_t cost = 2 * ceil_div(a.h.kernel, a.h.stride) * ceil_div(a.w.kernel, a.w.stride);
  for_lines(context, a.in, cost, [&a, grad](int64_t begin, int64_t end) {
    const int64_t width = a.in.inner == 1 ? a.in.w : a.in.inner;
    const auto share_space = array<A>(a.out.w), sum_space = array<A>(width);
    on_vectors([&a, grad, begin, end, width, shares = share_space.get(), sum = sum_space.get()] {
      for (int64_t i = begin; i < end; ++i) {
        average_backward_line(a, grad, line_of(a.in, i), shares, sum, as<T>(a.grad_x) + i * width);
      }
    });
  });
}

template <class T>
void average_backward(const Args& a, Context& context) {
  using A = acc_t<T>;
  if (a.maps == 0) return average_backward_lines<T>(a, as<T>(a.grad), context);
  // Subsampling: back through the activation first; the rest of the chain, and of the sums, is in the accumulator's
  // type.
  const int64_t n = a.out.size();
  const T *from = as<T>(a.grad), *y = as<T>(a.y);
  A* grad = context.workspace<A>(n);
  with_activation(a.activation, [&](auto constant) {
    context.parallel_for(n, grain, [=](int64_t begin, int64_t end) {
      on_vectors([=] {
        constexpr Activation f = decltype(constant)::value;
        TP_INDEPENDENT
        for (int64_t i = begin; i < end; ++i) grad[i] = activate_backward<f>(A(from[i]), A(y[i]));
      });
    });
  });
  average_backward_lines<T>(a, static_cast<const A*>(grad), context);
  sum_bias_gradient<T>(a, static_cast<const A*>(grad), Threaded{context});
}

template <class T, class Index>
void maximum_backward(const Args& a, const Index* indices, Context& context) {
  const Threaded run{context};
  if (a.in.outer >= context.device.threads) {
    if (Scatter<T>::fits(a) && a.w.stride > 1) return maximum_backward_maps<T>(a, indices, context);
    if (Gather<T, Index>::fits(a)) return maximum_backward_gathering<T, Index>(a, context);
  }
  if (a.in.inner == 1) return with_axes(a, [&](const auto& h, const auto& w) { maximum<T>(a, run, h, w); });
  for_lines(context, a.in, 4 * ceil_div(a.h.reach(), a.h.stride) * ceil_div(a.w.reach(), a.w.stride),
            [&a, indices](int64_t begin, int64_t end) {
              const auto space = array<acc_t<T>>(a.in.inner);
              on_vectors([&a, indices, begin, end, sum = space.get()] {
                for (int64_t i = begin; i < end; ++i) {
                  maximum_backward_channels<T>(a, indices, line_of(a.in, i), sum, as<T>(a.grad_x) + i * a.in.inner);
                }
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

void threaded(const Args& args, Context& context) {
  if (args.step == Step::average || args.step == Step::average_backward) {
    return dispatch(FloatTypes{}, args.dtype, "avg_pool2d", [&](auto type) {
      using T = typename decltype(type)::type;
      args.step == Step::average ? average_lines<T>(args, context) : average_backward<T>(args, context);
    });
  }
  dispatch(AllTypes{}, args.dtype, "max_pool2d",
           [&](auto type) { maxima<typename decltype(type)::type>(args, context); });
}

}  // namespace tp::pooling
