// The production rung of the CPU. Each pass is computed in the first of these ways that suits its problem: by vectors
// of channels if every group has one channel and one map (threaded_depthwise.h, threaded_depthwise_planes.h), by
// Winograd's algorithm (threaded_winograd.h, threaded_winograd_wgrad.h), by vectors of neighbouring pixels
// (threaded_lines.h, threaded_lines_wgrad.h), and as one matrix product, none of whose matrices is stored
// (accumulate.h). The product serves every problem; it also computes again what another way leaves undone because of
// infinities or NaN. The rest of this comment is about the product.
//
// A weight w[m, c, p, q] and an output pixel (n, h, w) meet at the input element pixel + tap, where `pixel` depends
// only on n, h, w and `tap` only on c, p, q. So the unrolled matrix of Fig. 16.16 is represented by two tables of
// offsets. The passes differ in which table counts rows and which is summed over:
//
//   fprop   sums[pixel, m] += x[pixel + tap] * w[tap, m]            over the taps
//   wgrad   sums[tap, m]   += x[tap + pixel] * dy[pixel, m]         over the pixels
//   dgrad   sums[pixel + tap, c] += dy[pixel + map] * w[map, c]     over the maps, once for each (p, q); or as fprop
//
// The last index runs along the lanes of a vector. One thread processes a tile of pixels, so that its sums stay in the
// cache and the order of each sum depends only on the shape. If the input cannot be read in place, because it is padded
// or of a half type, the thread first copies what the tile reads; if taps are so far apart that most elements between
// them are not read, the copy leaves those out.
#include "conv/threaded.h"

#include "block/convert.h"
#include "conv/accumulate.h"
#include "conv/packed.h"
#include "conv/threaded_depthwise_planes.h"
#include "conv/threaded_lines_wgrad.h"
#include "conv/threaded_winograd_wgrad.h"

namespace tp::conv {
namespace {

// Copies `count` matrices of so many rows and columns, transposed.
template <class T>
T* transposed(const T* from, int64_t count, int64_t rows, int64_t cols, Context& context) {
  const int64_t size = rows * cols;
  T* const to = context.workspace<T>(count * size);
  context.parallel_for(count, max(int64_t(1), 4096 / size), [=](int64_t begin, int64_t end) {
    on_vectors([=] {
      for (int64_t i = begin; i < end; ++i) transpose(rows, cols, from + i * size, cols, to + i * size, rows);
    });
  });
  return to;
}

// The order in which fprop adds up the taps of a pixel, and wgrad computes their sums: channel by channel, or, where
// channels are neighbours in memory, all channels of one tap after another. So a cache line of x serves all that it has
// at once. Otherwise the lines of all taps would have to stay in the L1 cache, whose sets they share if there are many
// channels.
template <class T>
struct TapOrder {
  int64_t channels, taps;
  bool by_tap;

  TapOrder(const Elements<T>& e, const Input<T>& input)
      : channels(e.channels),
        taps(e.taps()),
        by_tap(input.last && taps > 1 && channels > 64 / int64_t(sizeof(acc_t<T>))) {}
  // The index [channel, tap] of the k-th one.
  int64_t operator()(int64_t k) const { return by_tap ? k % channels * taps + k / channels : k; }
};

// `are_turned`: whether the filters, which have one tap, are [group, channel, map].
template <class T>
void fprop(const Elements<T>& e, Context& context, bool are_turned = false) {
  using A = acc_t<T>;
  const auto kernel = accumulate_for<A>(e.maps);
  const int64_t lanes = kernel.lanes, blocks = ceil_div(e.maps, lanes), depth = e.channels * e.taps();
  const Tiling tiling = output_tiles(e, context);
  const Tasks tasks(context, tiling.count(), e.groups, blocks);
  const Input<T> input(e, tiling.size);
  const TapOrder<T> order(e, input);
  const T* weight = e.weight;  // in the order of the sums
  const bool are_by_tap = e.filters == Layout::nhwc;
  if (e.taps() > 1 && order.by_tap != are_by_tap) {
    const int64_t rows = are_by_tap ? e.taps() : e.channels, cols = are_by_tap ? e.channels : e.taps();
    weight = transposed(e.weight, e.m, rows, cols, context);
  }
  A* filters = context.workspace<A>(e.groups * blocks * depth * lanes);
  run_tasks(context, e.groups * blocks, [&](int64_t i, int64_t) {
    const int64_t lane0 = i % blocks * lanes, columns = min(lanes, e.maps - lane0), group = i / blocks * e.maps * depth;
    const T* from = weight + group + lane0 * (are_turned ? 1 : depth);
    A* const to = filters + i * depth * lanes;
    on_vectors([=, maps = e.maps] {
      if (columns < lanes) std::fill(to, to + depth * lanes, A(0));
      if (!are_turned) return transpose(columns, depth, from, depth, to, lanes);
      for (int64_t k = 0; k < depth; ++k) convert(columns, from + k * maps, to + k * lanes);
    });
  });

  A* starts = context.workspace<A>(e.groups * blocks * lanes);
  for (int64_t group = 0; group < e.groups; ++group) {
    pack(starts + group * blocks * lanes, 1, e.bias ? e.maps : 0, blocks * lanes,
         [&](int64_t, int64_t lane) { return A(e.bias[group * e.maps + lane]); });
  }

  const int64_t pixels = tiling.size.pixels(), threads = min(tasks.count(), int64_t(context.device.threads));
  int64_t *channel_taps = context.workspace<int64_t>(depth), *taps = context.workspace<int64_t>(depth);
  int64_t* from = context.workspace<int64_t>(pixels);
  int64_t* to = context.workspace<int64_t>(pixels);
  int64_t* to_y = context.workspace<int64_t>(pixels);
  input.taps(channel_taps);
  for (int64_t k = 0; k < depth; ++k) taps[k] = channel_taps[order(k)];
  input.pixels(tiling.size, from);
  for (int64_t i = 0; i < pixels; ++i) to[i] = i * lanes;
  pixel_offsets(tiling.size, e.y_strides.image, e.y_strides.row, e.y_strides.col, to_y);
  const int64_t sums_size = lines(pixels * lanes), values = input.copy_size + sums_size;
  A* scratch = context.workspace<A>(threads * values);
  int64_t* tables = context.workspace<int64_t>(threads * input.table_size);

  tasks.run(context, [&](int64_t i, int64_t group, int64_t first, int64_t last, int64_t slot) {
    const Tile t = tiling[i];
    A *sums = scratch + slot * values, *copy = sums + sums_size;
    const A* x = input.read(t, group, copy, tables + slot * input.table_size);
    for (int64_t block = first; block < last; ++block) {
      const A* right = filters + (group * blocks + block) * depth * lanes;
      const int64_t map = group * e.maps + block * lanes, columns = min(lanes, e.maps - block * lanes);
      const A* start = starts + (group * blocks + block) * lanes;
      T* y = e.y + map * e.y_strides.channel;
      if constexpr (std::is_same<T, A>::value) {
        if (e.y_strides.channel == 1 && columns == lanes) {  // the lanes are neighbours in y
          accumulate(kernel, t.pixels(), x, from, depth, taps, right, start, y + e.y_at(t.image, 0, t.h, t.w), to_y);
          continue;
        }
      }
      accumulate(kernel, t.pixels(), x, from, depth, taps, right, start, sums, to);
      store(t, sums, columns, lanes, y, tiling, e.y_strides);
    }
  });
}

// Without a stride, dgrad is fprop of dy by the turned filters: maps and channels are exchanged, and taps are in
// reverse order. That keeps sums in registers over all taps, which matters if each adds few products, and needs no
// copies if there is one tap. Where fprop pads dy, it adds zeros times weights, so all weights must be finite. In NCHW
// and with many maps, it takes longer. Returns false, without a result, if it does not serve.
template <class T>
bool dgrad_by_turned_filters(const Elements<T>& e, Context& context) {
  const auto turned_axis = [](const Axis& a) {
    return Axis{a.out, a.in, a.kernel, 1, (a.kernel - 1) * a.dilation - a.pad, a.dilation};
  };
  Elements<T> turned = e;
  turned.rows = turned_axis(e.rows), turned.cols = turned_axis(e.cols);
  constexpr int64_t few_maps = 32;
  const bool has_stride = max(e.rows.stride, e.cols.stride) > 1, is_nhwc = e.x_strides.channel == 1;
  if (has_stride || min(turned.rows.pad, turned.cols.pad) < 0) return false;
  if (!is_nhwc || (e.taps() > 1 && e.maps > few_maps)) return false;
  turned.x = e.y, turned.y = e.x, turned.bias = nullptr;
  turned.filters = Layout::nchw;
  turned.c = e.m, turned.m = e.c, turned.channels = e.maps, turned.maps = e.channels;
  turned.x_strides = e.y_strides, turned.y_strides = e.x_strides;
  if (e.taps() == 1) return fprop(turned, context, true), true;
  const int64_t taps = e.taps(), size = e.maps * taps;  // of the filters of a channel
  const bool by_tap = e.filters == Layout::nhwc;
  const int64_t next_channel = by_tap ? 1 : taps, next_tap = by_tap ? e.channels : 1;
  T* const weight = turned.weight = context.workspace<T>(e.weights());
  std::atomic<bool> finite{true};
  context.parallel_for(e.c, max(int64_t(1), 4096 / size), [&](int64_t begin, int64_t end) {
    bool all = true;
    for (int64_t c = begin; c < end; ++c) {
      const int64_t first = c / e.channels * e.maps;  // map of the group
      for (int64_t m = 0; m < e.maps; ++m) {
        const T* const from = e.weight + (first + m) * e.channels * taps + c % e.channels * next_channel;
        T* const to = weight + c * size + m * taps;
        for (int64_t tap = 0; tap < taps; ++tap) {
          const T value = to[taps - 1 - tap] = from[tap * next_tap];
          all = all && is_finite(acc_t<T>(value));
        }
      }
    }
    if (!all) finite = false;
  });
  if (max(turned.rows.pad, turned.cols.pad) > 0 && !finite) return false;
  fprop(turned, context);
  return true;
}

// Adds to sums[pixel of a tile of dx, lane] the contributions of all output pixels through one tap.
template <class T>
struct Sender {
  using A = acc_t<T>;
  const Elements<T>& e;
  const Accumulate<A>& kernel;
  const int64_t* maps;  // the offsets of the maps in the gradient
  int64_t *from, *to;   // offsets of the contributing outputs, from the first of them, and of their targets
  int64_t rows = -1, cols = -1, count = 0;  // the shape that the tables are for

  void send(const Tile& t, int64_t p, int64_t q, const A* gradient, const A* right, A* sums) {
    const int64_t h = e.rows.first_reader(t.h, p), w = e.cols.first_reader(t.w, q);
    fill_tables(t, e.rows.first_reader(t.h + t.height, p) - h, e.cols.first_reader(t.w + t.width, q) - w);
    if (count == 0) return;
    A* target = sums + ((e.rows.source(h, p) - t.h) * t.width + e.cols.source(w, q) - t.w) * kernel.lanes;
    gradient += h * e.y_strides.row + w * e.y_strides.col;
    accumulate(kernel, count, gradient, from, e.maps, maps, right, static_cast<const A*>(nullptr), target, to);
  }

 private:
  void fill_tables(const Tile& t, int64_t new_rows, int64_t new_cols) {
    if (new_rows == rows && new_cols == cols) return;
    rows = new_rows;
    cols = new_cols;
    count = 0;
    for (int64_t n = 0; n < t.images; ++n) {
      for (int64_t h = 0; h < rows; ++h) {
        const int64_t source = e.y_at(n, 0, h, 0), target = (n * t.height + h * e.rows.stride) * t.width;
        for (int64_t w = 0; w < cols; ++w, ++count) {
          from[count] = source + w * e.y_strides.col;
          to[count] = (target + w * e.cols.stride) * kernel.lanes;
        }
      }
    }
  }
};

template <class T>
void dgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  if (dgrad_by_turned_filters(e, context)) return;
  const auto kernel = accumulate_for<A>(e.channels);
  const int64_t lanes = kernel.lanes, blocks = ceil_div(e.channels, lanes), panel = e.maps * lanes;
  A* filters = context.workspace<A>(e.groups * blocks * e.taps() * panel);
  run_tasks(context, e.groups * blocks, [&](int64_t i, int64_t) {
    const int64_t taps = e.taps(), channel = i % blocks * lanes, columns = min(lanes, e.channels - channel),
                  next = e.channels * taps;
    const bool by_tap = taps == 1 || e.filters == Layout::nhwc;
    const T* const from = e.weight + i / blocks * e.maps * next + channel * (by_tap ? 1 : taps);
    A* const to = filters + i * taps * panel;
    on_vectors([=, maps = e.maps, channels = e.channels] {
      if (columns < lanes) std::fill(to, to + taps * panel, A(0));
      for (int64_t k = 0; k < maps; ++k) {
        const T* const of_map = from + k * next;
        if (!by_tap) {
          transpose(columns, taps, of_map, taps, to + k * lanes, panel);
          continue;
        }
        for (int64_t tap = 0; tap < taps; ++tap) {
          convert(columns, of_map + tap * channels, to + tap * panel + k * lanes);
        }
      }
    });
  });
  const A* gradient = widened(static_cast<const T*>(e.y), e.n * e.m * e.rows.out * e.cols.out, context);

  const Tiling tiling(e.n, e.rows.in, e.cols.in, pixels_for(context, e.n * e.rows.in * e.cols.in));
  const Tasks tasks(context, tiling.count(), e.groups, blocks);
  const int64_t pixels = tiling.size.pixels(), threads = min(tasks.count(), int64_t(context.device.threads));
  const int64_t sums_size = lines(pixels * lanes);
  int64_t* maps = context.workspace<int64_t>(e.maps);
  for (int64_t i = 0; i < e.maps; ++i) maps[i] = i * e.y_strides.channel;
  A* scratch = context.workspace<A>(threads * sums_size);
  int64_t* tables = context.workspace<int64_t>(threads * 2 * pixels);

  tasks.run(context, [&](int64_t i, int64_t group, int64_t first, int64_t last, int64_t slot) {
    const Tile t = tiling[i];
    A* sums = scratch + slot * sums_size;
    Sender<T> sender{e, kernel, maps, tables + slot * 2 * pixels, tables + (slot * 2 + 1) * pixels};
    const A* source = gradient + e.y_at(t.image, group * e.maps, 0, 0);
    for (int64_t block = first; block < last; ++block) {
      const A* right = filters + (group * blocks + block) * e.taps() * panel;
      std::fill(sums, sums + t.pixels() * lanes, A(0));
      for (int64_t tap = 0; tap < e.taps(); ++tap) {
        sender.send(t, tap / e.cols.kernel, tap % e.cols.kernel, source, right + tap * panel, sums);
      }
      const int64_t channel = group * e.channels + block * lanes;
      store(t, sums, min(lanes, e.channels - block * lanes), lanes, e.x + channel * e.x_strides.channel, tiling,
            e.x_strides);
    }
  });
}

template <class T>
void wgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  const auto kernel = accumulate_for<A>(e.maps);
  const int64_t lanes = kernel.lanes, blocks = ceil_div(e.maps, lanes), taps = e.channels * e.taps();
  const Tiling tiling(e.n, e.rows.out, e.cols.out, panel_depth(kernel));
  const int64_t filters = e.groups * blocks,
                chunks = chunks_for(tiling.count(), filters, filters * taps * lanes * int64_t(sizeof(A)));
  // If there are still too few tasks, they compute only some of the taps.
  constexpr int64_t least_taps = 96;
  const int64_t enough = ceil_div(tasks_per_thread * context.device.threads, filters * chunks),
                parts = max(int64_t(1), min(enough, taps / least_taps));
  const Tasks tasks(context, chunks, e.groups, blocks * parts);
  const int64_t threads = min(tasks.count(), int64_t(context.device.threads));
  const Input<T> input(e, tiling.size);
  const int64_t pixels = tiling.size.pixels();
  const TapOrder<T> order(e, input);
  int64_t *channel_taps = context.workspace<int64_t>(taps), *from = context.workspace<int64_t>(taps);
  int64_t* to = context.workspace<int64_t>(taps);
  int64_t* off = context.workspace<int64_t>(pixels);
  input.taps(channel_taps);
  for (int64_t k = 0; k < taps; ++k) from[k] = channel_taps[order(k)], to[k] = order(k) * lanes;
  input.pixels(tiling.size, off);
  const int64_t panel_size = lines(pixels * lanes), values = input.copy_size + panel_size;
  A* scratch = context.workspace<A>(threads * values);
  int64_t* tables = context.workspace<int64_t>(threads * input.table_size);
  A* sums = context.workspace<A>(filters * chunks * taps * lanes);

  tasks.run(context, [&](int64_t chunk, int64_t group, int64_t first, int64_t last, int64_t slot) {
    A *panel = scratch + slot * values, *copy = panel + panel_size;
    const auto sums_of = [&](int64_t block) {
      return sums + ((group * blocks + block) * chunks + chunk) * taps * lanes;
    };
    const auto first_tap = [&](int64_t part) { return part * taps / parts; };
    for (int64_t unit = first; unit < last; ++unit) {
      for (int64_t k = first_tap(unit % parts); k < first_tap(unit % parts + 1); ++k) {
        std::fill_n(sums_of(unit / parts) + to[k], lanes, A(0));
      }
    }
    std::fill(panel, panel + pixels * lanes, A(0));  // zeroes the lanes without a map
    for (int64_t tile = chunk * tiling.count() / chunks; tile < (chunk + 1) * tiling.count() / chunks; ++tile) {
      const Tile t = tiling[tile];
      const A* x = input.read(t, group, copy, tables + slot * input.table_size);
      for (int64_t unit = first; unit < last; ++unit) {
        const int64_t block = unit / parts, map = group * e.maps + block * lanes, tap = first_tap(unit % parts),
                      count = first_tap(unit % parts + 1) - tap;
        load(t, panel, min(lanes, e.maps - block * lanes), lanes, e.y + map * e.y_strides.channel, tiling, e.y_strides);
        kernel.run(count, x, from + tap, t.pixels(), off, panel, nullptr, sums_of(block), to + tap);
      }
    }
  });
  constexpr int64_t taps_per_task = 64;
  const int64_t tap_tasks = ceil_div(taps, taps_per_task);
  run_tasks(context, filters * tap_tasks, [&](int64_t i, int64_t) {
    const int64_t lane0 = i / tap_tasks % blocks * lanes, map = i / tap_tasks / blocks * e.maps + lane0;
    const int64_t tap = i % tap_tasks * taps_per_task, count = min(taps_per_task, taps - tap);
    A* const sum = sums + (i / tap_tasks * chunks * taps + tap) * lanes;
    on_vectors([=] {
      for (int64_t chunk = 1; chunk < chunks; ++chunk) {
        const A* more = sum + chunk * taps * lanes;
        TP_INDEPENDENT
        for (int64_t j = 0; j < count * lanes; ++j) sum[j] += more[j];
      }
    });
    transpose(count, min(lanes, e.maps - lane0), sum, lanes, e.weight + map * taps + tap, taps);
  });
}

template <class T>
void products(const Elements<T>& e, Pass pass, Context& context) {
  switch (pass) {
    case Pass::fprop:
      return fprop(e, context);
    case Pass::dgrad:
      return dgrad(e, context);
    case Pass::wgrad:
      return wgrad(e, context);
  }
}

// The same problem with filters in NCHW, which all ways but Winograd's and products other than wgrad's read.
template <class T>
Args with_nchw_filters(Args args, Context& context) {
  if (args.filters == Layout::nchw) return args;
  const int64_t taps = args.rows.kernel * args.cols.kernel;
  args.weight = transposed(static_cast<const T*>(args.weight), args.m, taps, args.c / args.groups, context);
  args.filters = Layout::nchw;
  return args;
}

// Computes a pass by Winograd's algorithm; then computes again, by products, every element that is not finite.
template <class T>
void winograd(const Args& args, Context& context) {
  const Elements<T> e(args);
  const bool of_weight = args.pass == Pass::wgrad;
  if (of_weight ? WinogradWgrad<T>(e, context).run() : Winograd<T>(e, args.pass, context).run()) return;
  Elements<T> again(with_nchw_filters<T>(args, context));
  T*& written = of_weight ? again.weight : args.pass == Pass::fprop ? again.y : again.x;
  const int64_t n = of_weight                  ? e.weights()
                    : args.pass == Pass::fprop ? e.n * e.m * e.rows.out * e.cols.out
                                               : e.n * e.c * e.rows.in * e.cols.in;
  T *const to = written, *const from = context.workspace<T>(n);
  written = from;
  products(again, args.pass, context);
  context.parallel_for(n, 4096, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!is_finite(acc_t<T>(to[i]))) to[i] = from[i];
    }
  });
}

}  // namespace

void threaded(const Args& problem, Context& context) {
  dispatch(FloatTypes{}, problem.dtype, "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    if (winograd_pays(problem)) return winograd<T>(problem, context);
    const bool of_weight = problem.pass == Pass::wgrad;
    if (has_one_filter_per_channel(problem) && by_channels<T>(with_nchw_filters<T>(problem, context), context)) return;
    if (!of_weight && !lines_pay<T>(problem, context)) {
      return products(Elements<T>(problem), problem.pass, context);
    }
    const Args args = with_nchw_filters<T>(problem, context);
    if (of_weight ? wgrad_of_lines<T>(args, context) : lines_of_pixels<T>(args, context)) return;
    products(Elements<T>(args), args.pass, context);
  });
}

}  // namespace tp::conv
