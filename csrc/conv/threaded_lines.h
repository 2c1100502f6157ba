// fprop and dgrad for filters of any size: the lanes of a vector hold neighbouring pixels, so results in NCHW are
// stored as they are computed, and a single map fills a vector. In channels_last, a task transposes what it reads and
// writes, which pays if there are few maps.
//
// A task computes a box of target pixels of one image. It copies the source elements that the box reads, with their
// padding, row after row: in this line, pixel i of the target reads element i + off of the source, where `off` depends
// only on the tap. Where one row of the target ends and the next one begins, the line has a few pixels that do not
// exist; they are computed like the others and dropped. An image with filters of 1 x 1 counts as a single row.
//
// With stride s, a tap reads every s-th row and column. So the copy has a line for each remainder of rows and columns
// modulo s. In dgrad, each phase of the target (gather.h) is computed by itself.
#pragma once
#include "block/on_vectors.h"
#include "conv/gather.h"
#include "conv/threaded.h"

namespace tp::conv {

// One axis of the copy: output o of a box finds its tap k in the line of remainder(k), at o + shift(k).
struct LineAxis {
  GatherAxis axis;
  int64_t first, span, lines;  // the first source of output 0; the greatest shift; the number of remainders

  LineAxis(const Axis& a, Pass pass, int64_t phase = 0)
      : axis(gather_axis(a, pass, phase)), first(0), span(0), lines(1) {
    if (axis.taps == 0) return;
    const int64_t begin = axis.source(0, 0), end = axis.source(0, axis.taps - 1);
    first = min(begin, end);
    span = (max(begin, end) - first) / axis.source_step;
    lines = min(max(begin, end) - first + 1, axis.source_step);
  }
  int64_t shift(int64_t tap) const { return (axis.source(0, tap) - first) / axis.source_step; }
  int64_t remainder(int64_t tap) const { return (axis.source(0, tap) - first) % axis.source_step; }
  // The source that shift 0 reads for output o.
  int64_t begin(int64_t o) const { return first + o * axis.source_step; }
};

// Which of the elements col, col + step, ... of a row of `cols` elements are inside, out of `width`.
struct InsideRow {
  int64_t begin, end;

  InsideRow(int64_t cols, int64_t col, int64_t step, int64_t width)
      : begin(col < 0 ? min(ceil_div(-col, step), width) : 0),
        end(col < cols ? max(begin, min(width, ceil_div(cols - col, step))) : begin) {}
};

// to[j] = from[col + j * step] for j < width; what is outside of the row's `cols` elements, and the rest up to the
// pitch, becomes zero.
template <class T, class A>
void copy_row(const T* from, int64_t cols, int64_t col, int64_t step, int64_t width, int64_t pitch, A* to) {
  const auto [begin, end] = InsideRow(cols, col, step, width);
  const T* x = from + col;
  std::fill(to, to + begin, A(0));
  if (step == 1) {
    TP_INDEPENDENT
    for (int64_t j = begin; j < end; ++j) to[j] = A(x[j]);
  } else if (step == 2) {
    TP_INDEPENDENT
    for (int64_t j = begin; j < end; ++j) to[j] = A(x[2 * j]);
  } else {
    for (int64_t j = begin; j < end; ++j) to[j] = A(x[j * step]);
  }
  std::fill(to + end, to + pitch, A(0));
}

// The shape of the copy of one channel.
struct CopyShape {
  const LineAxis &rows, &cols;
  int64_t pitch, line;  // of rows; of the lines for the remainders

  int64_t size() const { return rows.lines * cols.lines * line; }
  int64_t offset(int64_t p, int64_t q) const {
    return (rows.remainder(p) * cols.lines + cols.remainder(q)) * line + rows.shift(p) * pitch + cols.shift(q);
  }
  // Copies what a box of an image reads; each line ends with zeros.
  template <class T, class A>
  void read(const T* image, const Tile& box, A* to) const {
    const int64_t height = box.height + rows.span, width = box.width + cols.span, step = rows.axis.source_step;
    for (int64_t i = 0; i < rows.lines * cols.lines; ++i, to += line) {
      const int64_t row = rows.begin(box.h) + i / cols.lines, col = cols.begin(box.w) + i % cols.lines;
      for (int64_t r = 0; r < height; ++r) {
        if (rows.axis.inside(row + r * step)) {
          copy_row(image + (row + r * step) * cols.axis.sources, cols.axis.sources, col, cols.axis.source_step, width,
                   pitch, to + r * pitch);
        } else {
          std::fill(to + r * pitch, to + (r + 1) * pitch, A(0));
        }
      }
      std::fill(to + height * pitch, to + line, A(0));
    }
  }
  // The same for `channels` channels of an image in channels_last, `size()` apart in the copy.
  template <class T, class A>
  void read_channels(const T* image, const Strides& strides, int64_t channels, const Tile& box, A* to) const {
    const int64_t height = box.height + rows.span, width = box.width + cols.span, step = rows.axis.source_step,
                  col_step = cols.axis.source_step;
    const auto clear = [&](int64_t begin, int64_t end) {
      for (int64_t c = 0; c < channels; ++c) std::fill(to + c * size() + begin, to + c * size() + end, A(0));
    };
    for (int64_t i = 0; i < rows.lines * cols.lines; ++i, to += line) {
      const int64_t row = rows.begin(box.h) + i / cols.lines, col = cols.begin(box.w) + i % cols.lines;
      const auto [begin, end] = InsideRow(cols.axis.sources, col, col_step, width);
      for (int64_t r = 0; r < height; ++r) {
        const int64_t at = r * pitch;
        if (!rows.axis.inside(row + r * step)) {
          clear(at, at + pitch);
          continue;
        }
        clear(at, at + begin);
        if (begin < end) {
          transpose(end - begin, channels, image + strides.at(0, 0, row + r * step, col + begin * col_step),
                    col_step * strides.col, to + at + begin, size());
        }
        clear(at + end, at + pitch);
      }
      clear(height * pitch, line);
    }
  }
};

// The share of the work of whole tiles that is done for n rows or columns, not for padding.
inline double share_of_tiles(int64_t n, int64_t tile) { return double(n) / double(ceil_div(n, tile) * tile); }

template <class T>
class Lines {
  using A = acc_t<T>;

 public:
  Lines(const Elements<T>& e, const Args& a, int64_t row_phase, int64_t col_phase, Context& context)
      : g_(e, a.pass),
        is_nchw_(a.layout == Layout::nchw),
        context_(context),
        rows_(e.rows, a.pass, row_phase),
        cols_(e.cols, a.pass, col_phase),
        kernel_(shifted_for<A>(g_.maps)),
        tiling_(g_.n * g_.groups, rows_.axis.outputs, cols_.axis.outputs, pixels_per_box()) {
    Tile& box = tiling_.size;
    box.images = 1;
    if (box.width < cols_.axis.outputs) box.width = ceil_div(box.width, kernel_.lanes) * kernel_.lanes;
    taps_ = rows_.axis.taps * cols_.axis.taps;
    pitch_ = box.width + cols_.span;
    plane_ = shape().size();
    length_ = ceil_div(pixels(box), kernel_.lanes) * kernel_.lanes;
  }

  int64_t taps() const { return taps_; }

  // Whether this takes less time than products whose lanes hold maps, which transpose nothing in channels_last. In
  // dgrad, those leave out all products beyond the edges.
  bool pays() const {
    const Tile& box = tiling_.size;
    if (double(plane_) > double(taps_ * box.height * box.width))
      return false;  // taps are further apart than boxes are large
    // In channels_last, every phase transposes the whole source.
    if (!is_nchw_ && rows_.axis.step * cols_.axis.step > 1 && taps_ < 4) return false;
    const double inside = g_.pass == Pass::fprop ? 1
                                                 : double(rows_.axis.sources * cols_.axis.sources) /
                                                       double(rows_.axis.outputs * cols_.axis.outputs);
    const double here =
        kernel_.rate * share_of_tiles(g_.maps, kernel_.tile) * double(box.height * box.width) / double(length_);
    const auto other = accumulate_for<A>(g_.maps);
    return here * min(inside, 1.0) > (is_nchw_ ? 0.85 : 1.7) * other.rate * share_of_tiles(g_.maps, other.lanes);
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
      off[k] = k / taps_ * plane_ + shape().offset(p, q);
    }
    // If there are too few boxes for all threads, a task computes some of the maps.
    constexpr int64_t least_maps = 32;
    const int64_t boxes = tiling_.count(), threads = context_.device.threads,
                  parts = max(int64_t(1), min(ceil_div(tasks_per_thread * threads, boxes), g_.maps / least_maps)),
                  maps = ceil_div(g_.maps, parts);
    // The last vectors of a line read past the end of the copy, for pixels that do not exist.
    const int64_t size = lines(maps * length_ + chunk * plane_ + kernel_.lanes), tasks = boxes * parts;
    A* scratch = context_.workspace<A>(min(tasks, threads) * size);
    run_tasks(context_, tasks, [&](int64_t i, int64_t slot) {
      const Tile t = tiling_[i / parts];
      A *sums = scratch + slot * size, *copy = sums + maps * length_;
      const int64_t part = i % parts * maps, mine = min(maps, g_.maps - part),
                    first_map = t.image % g_.groups * g_.maps + part;
      if (mine <= 0) return;
      const A* weights = filters + first_map * g_.depth * taps_;
      A* out = sums;
      const int64_t* to = to_sums;
      if constexpr (std::is_same<T, A>::value) {
        const bool whole = is_nchw_ && t.height == 1 && t.width % kernel_.lanes == 0 && cols_.axis.step == 1;
        if (whole) {  // the line is part of a row, and ends with a whole vector
          out = g_.target + g_.target_strides.at(0, t.image * g_.maps + part, rows_.axis.target(t.h), t.w);
          to = to_target;
        }
      }
      for (int64_t c = 0; c < g_.depth; c += chunk) {
        const int64_t count = min(chunk, g_.depth - c);
        on_vectors([=, this] { read(t, c, count, copy); });
        for (int64_t pixel = 0; pixel < pixels(t); pixel += kernel_.lanes) {
          kernel_.run(mine, weights + c * taps_, from, count * taps_, off, copy + pixel,
                      c == 0 ? starts + first_map : nullptr, out + pixel, to);
        }
      }
      if (out == sums) on_vectors([=, this] { write(t, part, mine, sums); });
    });
  }

 private:
  CopyShape shape() const { return {rows_, cols_, pitch_, (tiling_.size.height + rows_.span) * pitch_}; }

  // The length of a box's line: the last row is followed by none.
  int64_t pixels(const Tile& t) const { return (t.height - 1) * pitch_ + t.width; }

  // The sums of all maps of a box should stay in the L2 cache, and threads should have work. This depends only on the
  // shape, because pays() depends on it and decides the order of sums.
  int64_t pixels_per_box() const {
    constexpr int64_t sums = 1 << 15, boxes = 64, most = 1 << 10, least = 1 << 6;
    const int64_t fair = ceil_div(g_.n * g_.groups * rows_.axis.outputs * cols_.axis.outputs, boxes);
    return max(least, min(most, min(sums / max(g_.maps, int64_t(1)), fair)));
  }

  // [group, map, channel, p, q], the taps in the order in which sources are read. dgrad exchanges maps and channels: a
  // task packs some neighbouring maps, whose weights share cache lines.
  const A* pack_filters() const {
    const int64_t depth = g_.depth * taps_;
    if (g_.pass == Pass::fprop) return widened(g_.weight, g_.groups * g_.maps * depth, context_);
    if (taps_ == 0) return nullptr;
    A* const filters = context_.workspace<A>(g_.groups * g_.maps * depth);
    int64_t* const off = context_.workspace<int64_t>(taps_);  // of the taps in the weights
    for (int64_t k = 0; k < taps_; ++k) {
      const int64_t p = rows_.axis.tap(k / cols_.axis.taps), q = cols_.axis.tap(k % cols_.axis.taps);
      off[k] = g_.weight_at(0, 0, 0, p, q);
    }
    constexpr int64_t maps = 16;
    const int64_t blocks = ceil_div(g_.maps, maps);
    run_tasks(context_, g_.groups * blocks, [=, this](int64_t i, int64_t) {
      const int64_t group = i / blocks, first = i % blocks * maps, count = min(maps, g_.maps - first);
      const T* const from = g_.weight + g_.weight_at(group, first, 0, 0, 0);
      A* const to = filters + (group * g_.maps + first) * depth;
      if (taps_ == 1 && g_.map_stride == 1) {
        return on_vectors([=, this] { transpose(g_.depth, count, from, g_.depth_stride, to, depth); });
      }
      for (int64_t c = 0; c < g_.depth; ++c) {
        const T* const of_channel = from + c * g_.depth_stride;
        for (int64_t m = 0; m < count; ++m) {
          const T* const weights = of_channel + m * g_.map_stride;
          for (int64_t k = 0; k < taps_; ++k) to[m * depth + c * taps_ + k] = A(weights[off[k]]);
        }
      }
    });
    return filters;
  }

  // Copies what a box reads of `count` channels.
  void read(const Tile& t, int64_t first_channel, int64_t count, A* copy) const {
    if (!is_nchw_) {
      const Strides& strides = g_.source_strides;
      const int64_t channel = t.image % g_.groups * g_.depth + first_channel;
      return shape().read_channels(g_.source + strides.at(t.image / g_.groups, channel, 0, 0), strides, count, t, copy);
    }
    for (int64_t c = 0; c < count; ++c) {
      const T* image = g_.source + g_.source_strides.at(0, t.image * g_.depth + first_channel + c, 0, 0);
      shape().read(image, t, copy + c * plane_);
    }
  }

  // Stores `maps` maps, from the given one of the group on.
  void write(const Tile& t, int64_t first, int64_t maps, const A* sums) const {
    if (!is_nchw_) {
      for (int64_t r = 0; r < t.height; ++r) {
        transpose(maps, t.width, sums + r * pitch_, length_,
                  g_.target + g_.target_strides.at(t.image / g_.groups, t.image % g_.groups * g_.maps + first,
                                                   rows_.axis.target(t.h + r), cols_.axis.target(t.w)),
                  cols_.axis.step * g_.target_strides.col);
      }
      return;
    }
    for (int64_t m = 0; m < maps; ++m) {
      for (int64_t r = 0; r < t.height; ++r) {
        const A* from = sums + m * length_ + r * pitch_;
        T* to = g_.target + g_.target_strides.at(0, t.image * g_.maps + first + m, rows_.axis.target(t.h + r),
                                                 cols_.axis.target(t.w));
        if (cols_.axis.step == 1) {
          TP_INDEPENDENT
          for (int64_t w = 0; w < t.width; ++w) to[w] = T(from[w]);
        } else {
          for (int64_t w = 0; w < t.width; ++w) to[w * cols_.axis.step] = T(from[w]);
        }
      }
    }
  }

  const Gather<T> g_;
  const bool is_nchw_;
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

// The same problem, in which an image is a single row if the filters have one tap and no stride.
inline Args as_lines(const Args& args) {
  Args a = args;
  const auto is_single = [](const Axis& a) { return a.kernel == 1 && a.pad == 0 && a.stride == 1; };
  if (is_single(args.rows) && is_single(args.cols)) {
    a.cols.in = a.cols.out = args.rows.in * args.cols.in;
    a.rows.in = a.rows.out = 1;
  }
  return a;
}

// Calls f(lines) for each phase until it returns false; returns whether it never did.
template <class T, class F>
bool for_lines(const Args& args, Context& context, const F& f) {
  const Args a = as_lines(args);
  const Elements<T> e(a);
  const int64_t row_phases = phases(a.rows, a.pass), col_phases = phases(a.cols, a.pass);
  bool all = true;
  for (int64_t i = 0; all && i < row_phases * col_phases; ++i) {
    all = f(Lines<T>(e, a, i / col_phases, i % col_phases, context));
  }
  return all;
}

// Whether fprop or dgrad takes less time by lines than by products.
template <class T>
bool lines_pay(const Args& args, Context& context) {
  return for_lines<T>(args, context, [](const Lines<T>& lines) { return lines.taps() == 0 || lines.pays(); });
}

// Computes fprop or dgrad, where that pays, or returns false if there must be another way.
template <class T>
bool lines_of_pixels(const Args& args, Context& context) {
  // In dgrad there are no products beyond the edges, and zeros may stand for them only if all weights are finite.
  const Elements<T> e(args);
  if (args.pass == Pass::dgrad && e.taps() > 1 && !all_finite(e.weight, e.weights())) return false;
  return for_lines<T>(args, context, [](Lines<T>&& lines) {
    lines.run();
    return true;
  });
}

}  // namespace tp::conv
