// The tiled convolution (§16.3): the threads of a block together first load the inputs that they read into shared
// memory, each input once. The text after Fig. 16.15 describes this kernel without printing it: "input tiles" with
// their halo and the filter are loaded channel by channel, with a barrier before and after their use.
//
// A block computes a tile of 16 x 16 pixels of one map, one per thread. For every channel it loads the part of the
// image that the tile reads, and the filter, into shared memory; each thread then adds up its products from there. So
// each value of the image is read from global memory once per tile instead of once per tap.
//
// With the book's stride and dilation of 1 the tile is dense: neighbouring pixels share their inputs. With a large
// stride or dilation, no pixel reads most of the elements in between, so an axis of the tile is stored tap by tap if
// that takes less room. Filters larger than 8 x 8 are loaded in parts, and if the input still does not fit, the tile is
// smaller.
//
// dgrad is the same kernel over the pixels of dx, phase by phase (gather.h); beyond the edges of dy it adds no
// products. wgrad has one block per filter: it loads tiles of dy and the elements of x that they meet; a thread has one
// tap and a share of the pixels.
#include "conv/gather.h"
#include "core/op.h"

namespace tp::conv {
namespace {

constexpr int tile_width = 16, threads = tile_width * tile_width, most_taps = 8;
constexpr int64_t shared_limit = 44 * 1024;

// How one axis of a tile is stored: output o finds its tap k, of `count` loaded ones, at index(o, k, count).
struct StagedAxis {
  int outputs, taps, extent;
  bool dense, backward;
  int step, tap;

  StagedAxis(const Axis& axis, Pass pass, int outputs, int64_t kernel) : outputs(outputs) {
    taps = int(min(kernel, int64_t(most_taps)));
    backward = pass == Pass::dgrad;
    const int64_t divisor = backward ? common_divisor(axis.dilation, axis.stride) : 1;
    const int64_t steps = backward ? 1 : axis.stride, apart = axis.dilation / divisor;
    const int64_t whole = (outputs - 1) * steps + (taps - 1) * apart + 1;
    dense = whole <= outputs * taps;
    extent = dense ? int(whole) : outputs * taps;
    step = dense ? int(steps) : taps;
    tap = dense ? int(apart) : 1;
  }
  TP_HD int index(int o, int k, int count) const { return o * step + (dense && backward ? count - 1 - k : k) * tap; }
  // The source element at index `at` of a tile whose first output is o and whose first tap is k.
  TP_HD int64_t source(const GatherAxis& axis, int64_t o, int64_t k, int count, int at) const {
    if (dense) return axis.source(o, backward ? k + count - 1 : k) + at;
    return axis.source(o + at / taps, k + min(at % taps, count - 1));
  }
};

// The largest tile whose image fits in shared memory.
template <class T>
int fitting_width(const Axis& rows, const Axis& cols, Pass pass) {
  int width = tile_width;
  const auto bytes = [&] {
    const StagedAxis r(rows, pass, width, rows.kernel), c(cols, pass, width, cols.kernel);
    return (int64_t(r.extent) * c.extent + most_taps * most_taps) * int64_t(sizeof(T));
  };
  while (width > 1 && bytes() > shared_limit) width /= 2;
  return width;
}

template <class T>
struct Tiles {
  using A = acc_t<T>;
  Gather<T> g;
  int width;  // of a tile
  StagedAxis rows, cols;
  int64_t row_phases, col_phases, tiles_down, tiles_across;

  Tiles(const Gather<T>& g, int width)
      : g(g),
        width(width),
        rows(g.rows, g.pass, width, g.rows.kernel),
        cols(g.cols, g.pass, width, g.cols.kernel),
        row_phases(phases(g.rows, g.pass)),
        col_phases(phases(g.cols, g.pass)),
        tiles_down(ceil_div(phase_outputs(g.rows, g.pass), int64_t(width))),
        tiles_across(ceil_div(phase_outputs(g.cols, g.pass), int64_t(width))) {}

  TP_HD int64_t blocks() const { return g.n * g.groups * g.maps * row_phases * col_phases * tiles_down * tiles_across; }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    auto image_s = block.template shared<T>("image", rows.extent * cols.extent);
    auto filter_s = block.template shared<T>("filter", most_taps * most_taps);
    auto sum = block.template per_lane<A>("sum");
    for (int64_t i = block.index().x; i < blocks(); i += block.grid().x) {
      int64_t across = i, down = divide(across, tiles_across), col_phase = divide(down, tiles_down),
              row_phase = divide(col_phase, col_phases), map = divide(row_phase, row_phases),
              image = divide(map, g.groups * g.maps);
      tile(block, image_s, filter_s, sum, gather_axis(g.rows, g.pass, row_phase),
           gather_axis(g.cols, g.pass, col_phase), image, map, down * width, across * width);
    }
  }

  // The tile of one map whose first pixel is (h, w).
  template <class Block, class Shared, class PerLane>
  TP_HD void tile(Block& block, Shared& image_s, Shared& filter_s, PerLane& sum, const GatherAxis& r,
                  const GatherAxis& c, int64_t image, int64_t map, int64_t h, int64_t w) const {
    const auto source = block.global("source", g.source, g.n * g.groups * g.depth * r.sources * c.sources);
    const auto weight = block.global("weight", g.weight, g.groups * g.group_stride);
    const auto target = block.global("target", g.target, g.n * g.groups * g.maps * targets(g.rows) * targets(g.cols));
    const auto bias = block.global("bias", g.bias, g.bias ? g.groups * g.maps : 0);
    const int64_t group = map / g.maps;
    block.phase("begin", [&](int t) { sum[t] = 0; });
    for (int64_t channel = 0; channel < g.depth; ++channel) {
      for (int64_t p = 0; p < r.taps; p += rows.taps) {
        for (int64_t q = 0; q < c.taps; q += cols.taps) {
          const int down = int(min(r.taps - p, int64_t(rows.taps))), across = int(min(c.taps - q, int64_t(cols.taps)));
          block.phase("stage", [&](int t) {
            for (int i = t; i < rows.extent * cols.extent; i += threads) {
              const int64_t row = rows.source(r, h, p, down, i / cols.extent),
                            col = cols.source(c, w, q, across, i % cols.extent);
              T value(0.0f);
              if (r.inside(row) && c.inside(col)) {
                value = source[g.source_strides.at(image, group * g.depth + channel, row, col)];
              }
              image_s[i] = value;
            }
            if (t < down * across) {
              const int64_t tap_row = r.tap(p + t / across), tap_col = c.tap(q + t % across);
              const T value = weight[g.weight_at(group, map % g.maps, channel, tap_row, tap_col)];
              filter_s[t] = value;
            }
          });
          block.phase("add", [&](int t) {
            const int row = t / tile_width, col = t % tile_width;
            if (row >= width || col >= width) return;
            for (int a = 0; a < down; ++a) {
              if (g.pass == Pass::dgrad && !r.inside(r.source(h + row, p + a))) continue;
              for (int b = 0; b < across; ++b) {
                if (g.pass == Pass::dgrad && !c.inside(c.source(w + col, q + b))) continue;
                const T value = image_s[rows.index(row, a, down) * cols.extent + cols.index(col, b, across)];
                const T factor = filter_s[a * across + b];
                sum[t] += A(value) * A(factor);
              }
            }
          });
        }
      }
    }
    block.phase("write", [&](int t) {
      const int row = t / tile_width, col = t % tile_width;
      if (row >= width || col >= width || h + row >= r.outputs || w + col >= c.outputs) return;
      A total = sum[t];
      if (g.bias) {
        const T shift = bias[map];
        total += A(shift);
      }
      target[g.target_strides.at(image, map, r.target(h + row), c.target(w + col))] = T(total);
    });
  }

  TP_HD int64_t targets(const Axis& a) const { return g.pass == Pass::dgrad ? a.in : a.out; }

  void launch(Context& context) const {
    const int64_t bytes = (int64_t(rows.extent) * cols.extent + most_taps * most_taps) * int64_t(sizeof(T));
    simt::launch(context, "tiled", {min(blocks(), max_grid)}, threads, bytes, *this);
  }
};

// wgrad: one block per filter and part of its taps.
template <class T>
struct Filters {
  using A = acc_t<T>;
  Elements<T> e;
  int width;
  StagedAxis rows, cols;
  int64_t parts_down, parts_across;

  Filters(const Elements<T>& e, int width)
      : e(e),
        width(width),
        rows(e.rows, Pass::fprop, width, e.rows.kernel),
        cols(e.cols, Pass::fprop, width, e.cols.kernel),
        parts_down(ceil_div(e.rows.kernel, int64_t(rows.taps))),
        parts_across(ceil_div(e.cols.kernel, int64_t(cols.taps))) {}

  TP_HD int64_t blocks() const { return e.m * e.channels * parts_down * parts_across; }
  TP_HD int staged() const { return rows.extent * cols.extent + width * width; }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    auto x_s = block.template shared<T>("x", rows.extent * cols.extent);
    auto dy_s = block.template shared<T>("dy", width * width);
    auto sums = block.template shared<A>("sums", threads);
    auto sum = block.template per_lane<A>("sum");
    for (int64_t i = block.index().x; i < blocks(); i += block.grid().x) {
      int64_t across = i, down = divide(across, parts_across), channel = divide(down, parts_down),
              map = divide(channel, e.channels);
      filter(block, x_s, dy_s, sums, sum, map, channel, down * rows.taps, across * cols.taps);
    }
  }

  // Loads the taps from (p, q) on of the filter from `channel` of the group to `map`.
  template <class Block, class Shared, class Sums, class PerLane>
  TP_HD void filter(Block& block, Shared& x_s, Shared& dy_s, Sums& sums, PerLane& sum, int64_t map, int64_t channel,
                    int64_t p, int64_t q) const {
    const auto conv = e.bind(block);
    const GatherAxis r = gather_axis(e.rows, Pass::fprop, 0), c = gather_axis(e.cols, Pass::fprop, 0);
    const int down = int(min(r.taps - p, int64_t(rows.taps))), across = int(min(c.taps - q, int64_t(cols.taps)));
    const int taps = down * across, shares = threads / taps;
    block.phase("begin", [&](int t) { sum[t] = 0; });
    for (int64_t image = 0; image < e.n; ++image) {
      for (int64_t h = 0; h < e.rows.out; h += width) {
        for (int64_t w = 0; w < e.cols.out; w += width) {
          block.phase("stage", [&](int t) {
            for (int i = t; i < rows.extent * cols.extent; i += threads) {
              x_s[i] =
                  T(conv.padded(image, map / e.maps * e.channels + channel, rows.source(r, h, p, down, i / cols.extent),
                                cols.source(c, w, q, across, i % cols.extent)));
            }
            for (int i = t; i < width * width; i += threads) {
              const int64_t row = h + i / width, col = w + i % width;
              T value(0.0f);
              if (row < e.rows.out && col < e.cols.out) value = conv.y[e.y_at(image, map, row, col)];
              dy_s[i] = value;
            }
          });
          block.phase("add", [&](int t) {
            const int tap = t % taps, a = tap / across, b = tap % across;
            if (t >= shares * taps) return;
            for (int i = t / taps; i < width * width; i += shares) {
              const int row = i / width, col = i % width;
              if (h + row >= e.rows.out || w + col >= e.cols.out) continue;
              const T gradient = dy_s[i];
              const T value = x_s[rows.index(row, a, down) * cols.extent + cols.index(col, b, across)];
              sum[t] += A(gradient) * A(value);
            }
          });
        }
      }
    }
    block.phase("share", [&](int t) { sums[t] = sum[t]; });
    block.phase("write", [&](int t) {
      if (t >= taps) return;
      A total = 0;
      for (int share = 0; share < shares; ++share) {
        const A part = sums[share * taps + t];
        total += part;
      }
      conv.weight[e.weight_at(map, channel, p + t / across, q + t % across)] = T(total);
    });
  }

  void launch(Context& context) const {
    const int64_t bytes =
        ceil_div(int64_t(staged()) * int64_t(sizeof(T)), int64_t(16)) * 16 + threads * int64_t(sizeof(A));
    simt::launch(context, "tiled", {min(blocks(), max_grid)}, threads, bytes, *this);
  }
};

}  // namespace

void tiled(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const Elements<T> e(args);
    const int width = fitting_width<T>(e.rows, e.cols, args.pass);
    if (args.pass == Pass::wgrad) return Filters<T>(e, width).launch(context);
    Tiles<T>(Gather<T>(e, args.pass), width).launch(context);
  });
}

}  // namespace tp::conv
