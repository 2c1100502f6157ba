// All threads share the rows of maps. The inner loops run along a row (channels last: along the channels of a pixel),
// one tap of the window after another, so they vectorize. Sums and comparisons have the order of the sequential rung,
// so the results are the same bits.
#include <memory>

#include "block/convert.h"
#include "pooling/compute.h"

namespace tp::pooling {
namespace {

constexpr int64_t grain = 1 << 14;  // operations that pay for a thread

// An array for one piece of a loop over lines; std::vector<bool> would not be a plain array.
template <class A>
std::unique_ptr<A[]> array(int64_t n) {
  return std::unique_ptr<A[]>(new A[static_cast<size_t>(n)]);
}

// The elements of an array: themselves or, of half, which is converted fast only as an array, `space` with their
// values.
template <class T, class A>
auto readable(const T* from, int64_t n, A* space) {
  if constexpr (std::is_same<T, half>::value) {
    convert(n, from, space);
    return static_cast<const A*>(space);
  } else {
    return from;
  }
}

// Calls f(step), with the step as a constant if loops over memory gain by it.
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

// The outputs of one inner loop: a row of a map or, channels last, the channels of one output pixel.
struct Line {
  int64_t outer, oh, ow, width;  // a row begins at ow = 0
};
inline int64_t lines_per_row(const Maps& maps) { return maps.inner == 1 ? 1 : maps.w; }
inline Line line_of(const Maps& maps, int64_t i) {
  const int64_t per_row = lines_per_row(maps), row = i / per_row;
  return {row / maps.h, row % maps.h, maps.inner == 1 ? 0 : i % per_row, maps.inner == 1 ? maps.w : maps.inner};
}

// Calls f(first, count, from, step, tap_h, tap_w) for the taps of a line's windows in row-major order: outputs first to
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
void maximum_line(const Args& a, const Line& line, acc_t<T>* best, acc_t<T>* space, I* index, T* y, Index* indices) {
  using A = acc_t<T>;
  const T* x = as<T>(a.x);
  const I width = I(a.in.w), top = I(first_tap(a.h, line.oh)) * width;
  for (int64_t k = 0; k < line.width; ++k) {
    best[k] = Max<A>::identity();
    index[k] = top + I(first_tap(a.w, a.in.inner == 1 ? k : line.ow));  // the index if all values are -inf
  }
  const I pixel_step = a.in.inner == 1 ? I(a.w.stride) : I(0);
  for_taps(a, line, [=](int64_t first, int64_t count, int64_t from, int64_t step, int64_t ih, int64_t iw) {
    const I pixel = I(ih) * width + I(iw);
    A* to = best + first;
    I* places = index + first;
    const auto* values = readable(x + from, (count - 1) * step + 1, space);
    with_step(step, [=](auto by) {
      TP_INDEPENDENT
      for (int64_t k = 0; k < count; ++k) {
        const A value = A(values[k * by]), held = to[k];
        const bool greater = replaces(value, held);
        to[k] = greater ? value : held;
        places[k] = greater ? pixel + I(k) * pixel_step : places[k];
      }
    });
  });
  convert(line.width, best, y);
  convert(line.width, index, indices);
}

template <class T, class I, class Index>
void maximum_lines(const Args& a, Index* indices, Context& context) {
  for_lines(context, a.out, a.h.kernel * a.w.kernel, [&a, indices](int64_t begin, int64_t end) {
    const int64_t width = a.out.inner == 1 ? a.out.w : a.out.inner;
    const auto best = array<acc_t<T>>(width), space = array<acc_t<T>>(tp::max(a.in.w, a.in.inner));
    const auto index = array<I>(width);
    on_vectors([&a, indices, begin, end, width, values = best.get(), wide = space.get(), places = index.get()] {
      for (int64_t i = begin; i < end; ++i) {
        maximum_line<T, I>(a, line_of(a.out, i), values, wide, places, as<T>(a.y) + i * width, indices + i * width);
      }
    });
  });
}

template <class T>
void average_line(const Args& a, const Line& line, acc_t<T>* sum, acc_t<T>* space, T* y) {
  using A = acc_t<T>;
  const T *x = as<T>(a.x), *bias = as<T>(a.bias);
  for (int64_t k = 0; k < line.width; ++k) sum[k] = 0;
  for_taps(a, line, [=](int64_t first, int64_t count, int64_t from, int64_t step, int64_t, int64_t) {
    A* to = sum + first;
    const auto* values = readable(x + from, (count - 1) * step + 1, space);
    with_step(step, [=](auto by) {
      TP_INDEPENDENT
      for (int64_t k = 0; k < count; ++k) to[k] += A(values[k * by]);
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
    for (int64_t k = 0; k < line.width; ++k) sum[k] = activate<f.value>(sum[k]);
  });
  convert(line.width, sum, y);
}

template <class T>
void average_lines(const Args& a, Context& context) {
  for_lines(context, a.out, a.h.kernel * a.w.kernel, [&a](int64_t begin, int64_t end) {
    const int64_t width = a.out.inner == 1 ? a.out.w : a.out.inner;
    const auto sums = array<acc_t<T>>(width), space = array<acc_t<T>>(tp::max(a.in.w, a.in.inner));
    on_vectors([&a, begin, end, width, sum = sums.get(), wide = space.get()] {
      for (int64_t i = begin; i < end; ++i) average_line<T>(a, line_of(a.out, i), sum, wide, as<T>(a.y) + i * width);
    });
  });
}

// ---- backward

// Maximum, one outer map at a time: every window adds its gradient to the pixel of its maximum, in the order of the
// windows, which for each pixel is the order of the sequential rung. An index outside its window belongs to no pixel.
//
// A row of windows has `width` entries; the channels of a window are adjacent. The pixels that it reaches are numbered
// from the corner of each window, and a table holds the column of each. Pixels are set to zero shortly before the first
// window adds to them, so that they are still in the cache.
template <class T, class Index>
class Scatter {
  using A = acc_t<T>;
  static constexpr bool direct = std::is_same<T, A>::value;

 public:
  // Tells whether the table fits in a cache.
  static bool fits(const Args& a) { return a.h.reach() <= (1 << 16) / tp::max(a.in.w, int64_t(1)); }

  Scatter(const Args& a, const Index* indices)
      : a_(a),
        indices_(indices),
        line_(a.in.w * a.in.inner),
        width_(a.out.w * a.in.inner),
        whole_{tp::min(ceil_div(a.w.padding, a.w.stride), a.out.w), 0},
        columns_(array<int32_t>(a.h.reach() * a.in.w)),
        sums_(array<A>(direct ? 0 : a.in.h * line_)),
        space_(array<A>(width_)) {
    for (int64_t i = 0; i < a.h.reach() * a.in.w; ++i) columns_[i] = int32_t(i % a.in.w);
    const int64_t last = a.in.w - a.w.reach() + a.w.padding;
    whole_.end = last < 0 ? whole_.begin : tp::max(whole_.begin, tp::min(last / a.w.stride + 1, a.out.w));
  }

  void run(int64_t outer) const {
    T* to = as<T>(a_.grad_x) + outer * a_.in.h * line_;
    A* plane;
    if constexpr (direct) {
      plane = to;
    } else {
      plane = sums_.get();
    }
    int64_t cleared = 0;
    for (int64_t oh = 0; oh < a_.out.h; ++oh) {
      const int64_t top = oh * a_.h.stride - a_.h.padding, end = tp::min(top + a_.h.reach(), a_.in.h);
      cleared = clear(plane, cleared, end);
      add_row(outer * a_.out.h + oh, tp::max(top, int64_t(0)), end, plane);
    }
    clear(plane, cleared, a_.in.h);
    if constexpr (!direct) convert(a_.in.h * line_, plane, to);
  }

 private:
  int64_t clear(A* plane, int64_t begin, int64_t end) const {
    for (int64_t p = begin * line_; p < end * line_; ++p) plane[p] = 0;
    return tp::max(begin, end);
  }

  // Adds row `row` of all windows, which reach lines top to end - 1.
  void add_row(int64_t row, int64_t top, int64_t end, A* plane) const {
    a_.in.inner == 1 ? add_row(row, top, end, plane, std::integral_constant<int64_t, 1>{})
                     : add_row(row, top, end, plane, a_.in.inner);
  }
  template <class Inner>
  void add_row(int64_t row, int64_t top, int64_t end, A* plane, Inner inner) const {
    const auto* grad = readable(as<T>(a_.grad) + row * width_, width_, space_.get());
    const Index* taken = indices_ + row * width_;
    const int64_t first = top * a_.in.w, pixels = (end - top) * a_.in.w;
    // Windows begin..end - 1 with `length` columns inside the map, of which the first begins at column `left`. No
    // window lies outside the map, so `room` is positive.
    const auto add = [&](int64_t begin, int64_t end, int64_t left, int32_t length) {
      for (int64_t ow = begin, e = begin * inner; ow < end; ++ow, left += a_.w.stride) {
        const uint64_t corner = uint64_t(first + left), room = uint64_t(pixels - left);
        for (int64_t c = 0; c < inner; ++c, ++e) {
          const uint64_t pixel = uint64_t(taken[e]) - corner;
          if (pixel < room && columns_[pixel] < length) plane[int64_t(taken[e]) * inner + c] += A(grad[e]);
        }
      }
    };
    const auto add_clipped = [&](int64_t begin, int64_t end) {
      for (int64_t ow = begin; ow < end; ++ow) {
        const int64_t left = ow * a_.w.stride - a_.w.padding, from = tp::max(left, int64_t(0));
        add(ow, ow + 1, from, int32_t(tp::min(left + a_.w.reach(), a_.in.w) - from));
      }
    };
    add_clipped(0, whole_.begin);
    add(whole_.begin, whole_.end, whole_.begin * a_.w.stride - a_.w.padding, int32_t(a_.w.reach()));
    add_clipped(whole_.end, a_.out.w);
  }

  const Args& a_;
  const Index* const indices_;
  const int64_t line_, width_;
  Span whole_;  // the windows with all their columns inside the map
  const std::unique_ptr<int32_t[]> columns_;
  const std::unique_ptr<A[]> sums_, space_;
};

template <class T, class Index>
void maximum_backward_maps(const Args& a, const Index* indices, Context& context) {
  const int64_t pixels = a.in.h * a.in.w * a.in.inner;
  context.parallel_for(a.in.outer, tp::max(grain / tp::max(pixels, int64_t(1)), int64_t(1)),
                       [&a, indices](int64_t begin, int64_t end) {
                         const Scatter<T, Index> scatter(a, indices);
                         on_vectors([&scatter, begin, end] {
                           for (int64_t outer = begin; outer < end; ++outer) scatter.run(outer);
                         });
                       });
}

// sums = the gradients that a pixel's channels get from the windows whose maximum is that pixel (channels last).
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

// Average: every window of `grad` gives the same share to each of its pixels. For a row of the map, the shares of the
// windows over it are first added up column by column, and then distributed to the pixels.
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
        const auto* from = readable(grad + (row + ow) * p.width, p.width, shares);
        const A count(count_h * counted(a.w, ow, a.count_include_pad));
        TP_INDEPENDENT
        for (int64_t k = 0; k < p.width; ++k) sum[k] += A(from[k]) / count;
      }
      continue;
    }
    const auto* from = readable(grad + row, a.out.w, shares);
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
  convert(p.width, sum, to);
}

template <class T, class In>
void average_backward_lines(const Args& a, const In* grad, Context& context) {
  using A = acc_t<In>;
  const int64_t cost = 2 * ceil_div(a.h.kernel, a.h.stride) * ceil_div(a.w.kernel, a.w.stride);
  for_lines(context, a.in, cost, [&a, grad](int64_t begin, int64_t end) {
    const int64_t width = a.in.inner == 1 ? a.in.w : a.in.inner;
    const auto share_space = array<A>(tp::max(a.out.w, a.in.inner)), sum_space = array<A>(width);
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
  // Subsampling: first back through the activation; the rest of the chain rule, and of the sums, is in the
  // accumulator's type.
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
  if (a.in.outer >= context.device.threads && Scatter<T, Index>::fits(a))
    return maximum_backward_maps<T>(a, indices, context);
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
