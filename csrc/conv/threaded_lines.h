// fprop and dgrad without strides in NCHW, for filters of any size: the lanes of a vector hold neighbouring pixels, so
// results are stored as they are computed, and a single map fills a vector.
//
// A task computes a box of target pixels of one image. It copies the source elements that the box reads, with their
// padding, row after row: in this line, pixel i of the target reads element i + off of the source, where `off` depends
// only on the tap. Where one row of the target ends and the next one begins, the line has a few pixels that do not
// exist; they are computed like the others and dropped. An image with filters of 1 x 1 counts as a single row.
#pragma once
#include "block/on_vectors.h"
#include "conv/gather.h"
#include "conv/threaded.h"

namespace tp::conv {

// One axis of the copy: output o of a box finds its tap k at o + offset(k).
struct LineAxis {
  GatherAxis axis;
  int64_t first, span;  // the first source of output 0, and how much further its last one is

  LineAxis(const Axis& a, Pass pass)
      : axis(gather_axis(a, pass, 0)),
        first(min(axis.source(0, 0), axis.source(0, axis.taps - 1))),
        span(max(axis.source(0, 0), axis.source(0, axis.taps - 1)) - first) {}
  int64_t offset(int64_t tap) const { return axis.source(0, tap) - first; }
};

// Copies a box of an image that begins at `row` and `col`; what is outside of the image, and the end of each row up to
// the pitch, becomes zero.
template <class T, class A>
void copy_box(const T* image, int64_t rows, int64_t cols, int64_t row, int64_t col, int64_t height, int64_t width,
              int64_t pitch, A* to) {
  const int64_t begin = min(max(-col, int64_t(0)), width), end = max(begin, min(width, cols - col));
  for (int64_t r = row; r < row + height; ++r, to += pitch) {
    if (r < 0 || r >= rows) {
      std::fill(to, to + pitch, A(0));
      continue;
    }
    const T* from = image + r * cols + col;
    std::fill(to, to + begin, A(0));
    TP_INDEPENDENT
    for (int64_t j = begin; j < end; ++j) to[j] = A(from[j]);
    std::fill(to + end, to + pitch, A(0));
  }
}

// The share of the work of whole tiles that is done for n rows or columns, not for padding.
inline double share_of_tiles(int64_t n, int64_t tile) { return double(n) / double(ceil_div(n, tile) * tile); }

template <class T>
class Lines {
  using A = acc_t<T>;

 public:
  Lines(const Elements<T>& e, Pass pass, Context& context)
      : g_(e, pass),
        context_(context),
        rows_(e.rows, pass),
        cols_(e.cols, pass),
        kernel_(shifted_for<A>(g_.maps)),
        tiling_(g_.n * g_.groups, rows_.axis.outputs, cols_.axis.outputs, pixels_per_box()) {
    Tile& box = tiling_.size;
    box.images = 1;
    if (box.width < cols_.axis.outputs) box.width = ceil_div(box.width, kernel_.lanes) * kernel_.lanes;
    taps_ = rows_.axis.taps * cols_.axis.taps;
    pitch_ = box.width + cols_.span;
    plane_ = (box.height + rows_.span) * pitch_;
    length_ = ceil_div(pixels(box), kernel_.lanes) * kernel_.lanes;
  }

  // Whether this takes less time than products whose lanes hold maps. In dgrad, those leave out all products beyond the
  // edges.
  bool pays() const {
    const Tile& box = tiling_.size;
    const double copied = double(box.height + rows_.span) * double(pitch_);
    if (copied > double(taps_ * box.height * box.width)) return false;  // taps are further apart than boxes are large
    const double inside =
        g_.pass == Pass::fprop ? 1 : double(g_.rows.out * g_.cols.out) / double(g_.rows.in * g_.cols.in);
    const double here =
        kernel_.rate * share_of_tiles(g_.maps, kernel_.tile) * double(box.height * box.width) / double(length_);
    const auto other = accumulate_for<A>(g_.maps);
    return here * min(inside, 1.0) > 0.85 * other.rate * share_of_tiles(g_.maps, other.lanes);
  }

  void run() {
    constexpr int64_t bytes = 1 << 16;  // of the copy, which should stay in the L2 cache beside the sums
    const int64_t chunk = min(g_.depth, max(int64_t(1), bytes / (plane_ * int64_t(sizeof(A)))));
    const A* filters = pack_filters();
    A* starts = context_.workspace<A>(g_.groups * g_.maps);
    for (int64_t m = 0; m < g_.groups * g_.maps; ++m) starts[m] = g_.bias ? A(g_.bias[m]) : A(0);
    int64_t *from = context_.workspace<int64_t>(g_.maps), *off = context_.workspace<int64_t>(chunk * taps_),
            *to_sums = context_.workspace<int64_t>(g_.maps), *to_target = context_.workspace<int64_t>(g_.maps);
    for (int64_t m = 0; m < g_.maps; ++m) {
      from[m] = m * g_.depth * taps_;
      to_sums[m] = m * length_;
      to_target[m] = m * g_.target_strides.channel;
    }
    for (int64_t k = 0; k < chunk * taps_; ++k) {
      const int64_t p = k % taps_ / cols_.axis.taps, q = k % cols_.axis.taps;
      off[k] = k / taps_ * plane_ + rows_.offset(p) * pitch_ + cols_.offset(q);
    }
    // The last vectors of a line read past the end of the copy, for pixels that do not exist.
    const int64_t size = lines(g_.maps * length_ + chunk * plane_ + kernel_.lanes), tasks = tiling_.count();
    A* scratch = context_.workspace<A>(min(tasks, int64_t(context_.device.threads)) * size);
    run_tasks(context_, tasks, [&](int64_t i, int64_t slot) {
      const Tile t = tiling_[i];
      A *sums = scratch + slot * size, *copy = sums + g_.maps * length_;
      const int64_t first_map = t.image % g_.groups * g_.maps;
      const A* weights = filters + first_map * g_.depth * taps_;
      A* out = sums;
      const int64_t* to = to_sums;
      if constexpr (std::is_same<T, A>::value) {
        if (t.height == 1 && t.width % kernel_.lanes == 0) {  // the line is part of a row, and ends with a whole vector
          out = g_.target + g_.target_strides.at(0, t.image * g_.maps, t.h, t.w);
          to = to_target;
        }
      }
      for (int64_t c = 0; c < g_.depth; c += chunk) {
        const int64_t count = min(chunk, g_.depth - c);
        on_vectors([=, this] { read(t, c, count, copy); });
        for (int64_t pixel = 0; pixel < pixels(t); pixel += kernel_.lanes) {
          kernel_.run(g_.maps, weights + c * taps_, from, count * taps_, off, copy + pixel,
                      c == 0 ? starts + first_map : nullptr, out + pixel, to);
        }
      }
      if (out == sums) on_vectors([=, this] { write(t, sums); });
    });
  }

 private:
  // The length of a box's line: the last row is followed by none.
  int64_t pixels(const Tile& t) const { return (t.height - 1) * pitch_ + t.width; }

  // The sums of all maps of a box should stay in the L2 cache, and threads should have work. This depends only on the
  // shape, because pays() depends on it and decides the order of sums.
  int64_t pixels_per_box() const {
    constexpr int64_t sums = 1 << 15, boxes = 64, most = 1 << 10, least = 1 << 6;
    const int64_t fair = ceil_div(g_.n * g_.groups * rows_.axis.outputs * cols_.axis.outputs, boxes);
    return max(least, min(most, min(sums / max(g_.maps, int64_t(1)), fair)));
  }

  // [group, map, channel, p, q], the taps in the order in which sources are read.
  const A* pack_filters() const {
    const int64_t depth = g_.depth * taps_;
    if (g_.pass == Pass::fprop) return widened(g_.weight, g_.groups * g_.maps * depth, context_);
    A* filters = context_.workspace<A>(g_.groups * g_.maps * depth);
    run_tasks(context_, g_.groups * g_.maps, [&](int64_t i, int64_t) {
      for (int64_t c = 0; c < g_.depth; ++c) {
        const T* from = g_.weight + g_.weight_at(i / g_.maps, i % g_.maps, c, 0, 0);
        for (int64_t tap = 0; tap < taps_; ++tap) filters[i * depth + c * taps_ + tap] = A(from[tap]);
      }
    });
    return filters;
  }

  // Copies what a box reads of `count` channels.
  void read(const Tile& t, int64_t first_channel, int64_t count, A* copy) const {
    for (int64_t c = 0; c < count; ++c) {
      const T* image = g_.source + g_.source_strides.at(0, t.image * g_.depth + first_channel + c, 0, 0);
      copy_box(image, rows_.axis.sources, cols_.axis.sources, rows_.first + t.h, cols_.first + t.w,
               t.height + rows_.span, t.width + cols_.span, pitch_, copy + c * plane_);
    }
  }

  void write(const Tile& t, const A* sums) const {
    for (int64_t m = 0; m < g_.maps; ++m) {
      for (int64_t r = 0; r < t.height; ++r) {
        const A* from = sums + m * length_ + r * pitch_;
        T* to = g_.target + g_.target_strides.at(0, t.image * g_.maps + m, t.h + r, t.w);
        TP_INDEPENDENT
        for (int64_t w = 0; w < t.width; ++w) to[w] = T(from[w]);
      }
    }
  }

  const Gather<T> g_;
  Context& context_;
  const LineAxis rows_, cols_;
  const Accumulate<A> kernel_;
  Tiling tiling_;                          // of the images of every group
  int64_t taps_, pitch_, plane_, length_;  // pitch: of rows; plane: of channels of the copy; length: of maps of sums
};

template <class T>
bool all_finite(const T* x, int64_t n) {
  int bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= int(!is_finite(acc_t<T>(x[i])));
  return !bad;
}

// Whether the pass has lines: it must be in NCHW and without strides. `as_lines` becomes its problem, in which an image
// is a single row if the filters have one tap.
inline bool has_lines(const Args& args, Args& as_lines) {
  as_lines = args;
  if (args.rows.kernel * args.cols.kernel == 1 && args.rows.pad == 0 && args.cols.pad == 0) {
    as_lines.cols.in = as_lines.cols.out = args.rows.in * args.cols.in;
    as_lines.rows.in = as_lines.rows.out = 1;
  }
  return args.layout == Layout::nchw && args.rows.stride == 1 && args.cols.stride == 1;
}

// Computes fprop or dgrad, or returns false if another way is better.
template <class T>
bool lines_of_pixels(const Args& args, Context& context) {
  Args a;
  if (args.pass == Pass::wgrad || !has_lines(args, a)) return false;
  const Elements<T> e(a);
  // In dgrad there are no products beyond the edges, and zeros may stand for them only if all weights are finite.
  if (a.pass == Pass::dgrad && e.taps() > 1 && !all_finite(e.weight, e.weights())) return false;
  Lines<T> lines(e, a.pass, context);
  if (!lines.pays()) return false;
  lines.run();
  return true;
}

}  // namespace tp::conv
