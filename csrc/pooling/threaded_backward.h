// The gradients of the threaded rung.
#pragma once
#include <algorithm>

#include "pooling/threaded_lines.h"

namespace tp::pooling::host {

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

// Channels last, for `count` neighbouring pixels of a row: every channel of a pixel gets the sum of what the windows
// over it give. values(p, oh, ow) returns a function of the channel. Sums are where the gradients go if they have their
// type.
template <class A, class T, class Values>
void backward_of_pixels(const Args& a, Line p, int64_t count, Values values, A* sums, T* to) {
  constexpr bool direct = std::is_same_v<T, A>;
  const Range rows = windows_over(a.h, p.oh);
  for (const int64_t end = p.ow + count; p.ow < end; ++p.ow, to += p.width) {
    const Range columns = windows_over(a.w, p.ow);
    A* const sum = direct ? reinterpret_cast<A*>(to) : sums;
    bool first = true;
    for (int64_t oh = rows.begin; oh < rows.begin + rows.count; ++oh) {
      for (int64_t ow = columns.begin; ow < columns.begin + columns.count; ++ow) {
        const auto value = values(p, oh, ow);
        with_first(first, [=](auto starts) {
          TP_INDEPENDENT
          for (int64_t c = 0; c < p.width; ++c) sum[c] = (starts ? A(0) : sum[c]) + value(c);
        });
        first = false;
      }
    }
    if (first) std::fill_n(sum, p.width, A(0));
    if (!direct) convert(p.width, sum, to);
  }
}

// A row of a map, if all windows are 2 x 2 pixels inside it: every pixel belongs to one window at most. value(ow, j) is
// the gradient of column j of window ow in this row.
template <class T, class Value>
void backward_of_halves(const Args& a, const Line& p, Value value, T* to) {
  const int64_t covered = p.oh < 2 * a.out.h ? 2 * a.out.w : 0;
  TP_INDEPENDENT
  for (int64_t ow = 0; ow < covered / 2; ++ow) to[2 * ow] = T(value(ow, 0)), to[2 * ow + 1] = T(value(ow, 1));
  for (int64_t k = covered; k < p.width; ++k) to[k] = T(0);
}

template <class T, class Index>
void maximum_backward_of_halves(const Args& a, const Index* indices, Context& context) {
  using A = acc_t<T>;
  for_lines(context, a.in, 4, [&a, indices](int64_t begin, int64_t end) {
    on_vectors([&a, indices, begin, end] {
      for (int64_t i = begin; i < end; ++i) {
        const Line p = line_of(a.in, i);
        const int64_t row = (p.outer * a.out.h + p.oh / 2) * a.out.w;
        const T* grad = as<T>(a.grad) + row;
        const Index *taken = indices + row, pixel = Index(p.oh * a.in.w);
        const auto value = [=](int64_t ow, int64_t j) {
          return chosen(taken[ow] == pixel + Index(2 * ow + j), A(0) + A(grad[ow]), A(0));
        };
        backward_of_halves(a, p, value, as<T>(a.grad_x) + i * a.in.w);
      }
    });
  });
}

// Average: every window of `grad` gives the same share to each of its pixels. For a row of the map, the shares of the
// windows over it are first added up column by column, and then distributed to the pixels.
template <class In, class T>
void average_backward_line(const Args& a, const In* grad, const Line& p, acc_t<In>* shares, acc_t<In>* sum, T* to) {
  using A = acc_t<In>;
  if (halves(a.h) && halves(a.w) && !std::is_same_v<In, half>) {
    const In* from = grad + (p.outer * a.out.h + p.oh / 2) * a.out.w;
    return backward_of_halves(a, p, [=](int64_t ow, int64_t) { return A(0) + A(from[ow]) / 4; }, to);
  }
  for (int64_t k = 0; k < p.width; ++k) sum[k] = 0;
  const Range rows = windows_over(a.h, p.oh);
  for (int64_t oh = rows.begin; oh < rows.begin + rows.count; ++oh) {
    const int64_t count_h = counted(a.h, oh, a.count_include_pad);
    const auto* from = readable(grad + (p.outer * a.out.h + oh) * a.out.w, a.out.w, shares);
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
      for (int64_t i = begin, count = 1; i < end; i += count) {
        const Line p = line_of(a.in, i);
        T* to = as<T>(a.grad_x) + i * width;
        if (a.in.inner == 1) {
          average_backward_line(a, grad, p, shares, sum, to);
        } else {
          count = tp::min(a.in.w - p.ow, end - i);
          const auto values = [&a, grad, shares](const Line& line, int64_t oh, int64_t ow) {
            const In* from = grad + ((line.outer * a.out.h + oh) * a.out.w + ow) * line.width;
            const A pixels(counted(a.h, oh, a.count_include_pad) * counted(a.w, ow, a.count_include_pad));
            return [pixels, given = readable(from, line.width, shares)](int64_t c) { return A(given[c]) / pixels; };
          };
          backward_of_pixels(a, p, count, values, sum, to);
        }
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
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    if (a.in.inner == 1 && halves(a.h) && halves(a.w)) return maximum_backward_of_halves<T>(a, indices, context);
  }
  const int64_t windows = ceil_div(a.h.reach(), a.h.stride) * ceil_div(a.w.reach(), a.w.stride);  // over a pixel
  constexpr int64_t most_gathered = 9;
  const bool gathers = a.in.inner > 1 && windows <= most_gathered;
  if (!gathers && a.in.outer >= context.device.threads && Scatter<T, Index>::fits(a))
    return maximum_backward_maps<T>(a, indices, context);
  if (a.in.inner == 1) return with_axes(a, [&](const auto& h, const auto& w) { maximum<T>(a, run, h, w); });
  for_lines(context, a.in, 4 * windows, [&a, indices](int64_t begin, int64_t end) {
    const auto grads = array<acc_t<T>>(a.in.inner), sums = array<acc_t<T>>(a.in.inner);
    on_vectors([&a, indices, begin, end, space = grads.get(), sum = sums.get()] {
      for (int64_t i = begin, count; i < end; i += count) {
        const Line p = line_of(a.in, i);
        count = tp::min(a.in.w - p.ow, end - i);
        const auto values = [&a, indices, space](const Line& line, int64_t oh, int64_t ow) {
          const int64_t window = ((line.outer * a.out.h + oh) * a.out.w + ow) * line.width;
          const Index pixel = Index(line.oh * a.in.w + line.ow);
          return [pixel, taken = indices + window, given = readable(as<T>(a.grad) + window, line.width, space)](
                     int64_t c) { return chosen(taken[c] == pixel, acc_t<T>(given[c]), acc_t<T>(0)); };
        };
        backward_of_pixels(a, p, count, values, sum, as<T>(a.grad_x) + i * a.in.inner);
      }
    });
  });
}

}  // namespace tp::pooling::host
