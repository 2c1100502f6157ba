// F(2 x 2, 3 x 3) for the threaded rung (winograd.cu derives it): fprop and dgrad of 3 x 3 filters without stride and
// dilation.
//
// Tiles are 2 x 2 outputs. Their inputs are transformed to 16 matrices [tiles, channels], and the filters, once, to 16
// matrices [channels, maps]; 16 matrix products by the kernel of accumulate.h give the transformed outputs. A task
// computes all maps of some tiles, with filters that were transformed before, or some maps of all tiles, with inputs
// that were. The lanes of a vector are neighbouring channels, then neighbouring maps. So images in channels_last are
// read and written where they are; of other layouts and of half types, a task copies the rows that it reads and writes.
// An output depends only on its own tile and on the order of the channels, whatever the number of threads.
//
// The transforms mix the pixels of a tile, so an infinity or a NaN spreads over the tile. All outputs that it reaches
// are not finite, so the caller computes those again.
#pragma once
#include <array>

#include "block/on_vectors.h"
#include "block/transpose.h"
#include "conv/gather.h"
#include "conv/threaded.h"

namespace tp::conv {

// Tells whether the 16 products instead of 36 save more time than the transforms cost. Those of the filters, which are
// larger than the filters, pay only if there are enough tiles to multiply with them.
inline bool winograd_pays(const Args& a) {
  constexpr int64_t few = 16;                                 // channels or maps of a group
  const int64_t few_tiles = a.pass == Pass::wgrad ? 32 : 16;  // of the batch
  const Axis &rows = a.rows, &cols = a.cols;
  const int64_t down = a.pass == Pass::dgrad ? rows.in : rows.out, across = a.pass == Pass::dgrad ? cols.in : cols.out;
  if (a.n * ceil_div(down, int64_t(2)) * ceil_div(across, int64_t(2)) < few_tiles) return false;
  const auto fits = [](const Axis& axis) {
    return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1 && axis.out >= 4;
  };
  return fits(a.rows) && fits(a.cols) && min(a.c, a.m) / a.groups >= few;
}

// The tiles of 2 x 2 outputs, the 4 x 4 inputs that each reads, and their transforms.
template <class T>
class WinogradTiles {
 protected:
  using A = acc_t<T>;
  static constexpr int64_t products = 16, most_lanes = 32;  // lanes: of the kernel

  WinogradTiles(const Elements<T>& e, Pass pass, Context& context)
      : g_(e, pass),
        context_(context),
        rows_(gather_axis(e.rows, pass, 0)),
        cols_(gather_axis(e.cols, pass, 0)),
        in_place_(std::is_same<T, A>::value && g_.source_strides.channel == 1),
        kernel_(accumulate_for<A>(g_.maps)),
        blocks_(ceil_div(g_.maps, kernel_.lanes)),
        width_(blocks_ * kernel_.lanes),
        down_(ceil_div(rows_.outputs, int64_t(2))),
        across_(ceil_div(cols_.outputs, int64_t(2))),
        tiles_(g_.n * down_ * across_) {}

  // How many tiles are processed at once.
  void set_size(int64_t tiles) {
    size_ = tiles;
    row_size_ = min(cols_.sources, 2 * min(across_, size_) + 2);
  }
  // The elements of a copy of what so many tiles read.
  int64_t copy_size(int64_t channels) const {
    return in_place_ ? 0 : lines(4 * ((size_ - 1) / across_ + 2) * row_size_ * channels);
  }

  // The distance between the 16 matrices of so many elements: some more, or they would fall into the same sets of the
  // caches.
  static int64_t apart(int64_t elements) { return elements + 16; }

  // Adjacent tiles in a row, from the `at`-th tile of the task on. The copy of the source has the four rows that they
  // read from its row `rows` on, and of these the columns from `begin` to `end`. Whole rows of tiles share two of them
  // with the row above.
  struct Run {
    int64_t at, image, row, col, count;
    int64_t rows, begin, end;
    bool is_whole, shares;
  };
  template <class F>
  void for_runs(int64_t first, int64_t count, F f) const {
    Run run{};
    for (int64_t i = 0; i < count; i += run.count) {
      const int64_t tile = first + i, col = tile % across_, n = min(across_ - col, count - i),
                    before = left() + 2 * col;
      const bool is_whole = n == across_, shares = is_whole && run.is_whole && tile / across_ % down_ > 0;
      run = {i,
             tile / across_ / down_,
             tile / across_ % down_,
             col,
             n,
             i == 0 ? 0 : run.rows + (shares ? 2 : 4),
             max(before, int64_t(0)),
             min(before + 2 * n + 2, cols_.sources),
             is_whole,
             shares};
      f(run);
    }
  }

  // The first source row and column that a tile reads; if taps are reversed, the last one comes first.
  int64_t top() const { return min(rows_.source(0, 0), rows_.source(0, 2)); }
  int64_t left() const { return min(cols_.source(0, 0), cols_.source(0, 2)); }

  // Copies `cols` pixels of an image, `channels` channels of each, to lines of pixels.
  static void copy_pixels(const T* from, const Strides& strides, int64_t cols, int64_t channels, A* to, int64_t pitch) {
    if (strides.channel != 1) return transpose(channels, cols, from, strides.channel, to, pitch);
    for (int64_t c = 0; c < cols; ++c) convert(channels, from + c * strides.col, to + c * pitch);
  }
  // Copies what a run reads, from a channel on.
  void copy_sources(const Run& run, int64_t channel, int64_t channels, A* sources) const {
    for (int64_t i = run.shares ? 2 : 0; i < 4; ++i) {
      const int64_t row = top() + 2 * run.row + i;
      if (!rows_.inside(row)) continue;
      copy_pixels(g_.source + g_.source_strides.at(run.image, channel, row, run.begin), g_.source_strides,
                  run.end - run.begin, channels, sources + (run.rows + i) * row_size_ * channels, channels);
    }
  }

  // V = B^T d B for some channels of a tile, along the rows first. Element k of V is `plane` further on.
  void transform_input(const Run& run, int64_t tile, int64_t channel, int64_t channels, const A* zeros,
                       const A* sources, A* to, int64_t plane) const {
    const A* d[16];
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t row = top() + 2 * run.row + i / 4, col = left() + 2 * (run.col + tile) + i % 4;
      d[i] = zeros;
      if (!rows_.inside(row) || !cols_.inside(col)) continue;
      d[i] = sources + ((run.rows + i / 4) * row_size_ + col - run.begin) * channels;
      if constexpr (std::is_same<T, A>::value) {
        if (in_place_) d[i] = g_.source + g_.source_strides.at(run.image, channel, row, col);
      }
    }
    TP_INDEPENDENT
    for (int64_t c = 0; c < channels; ++c) {
      A half[4][4];
      for (int i = 0; i < 4; ++i) {
        const A d0 = d[4 * i][c], d1 = d[4 * i + 1][c], d2 = d[4 * i + 2][c], d3 = d[4 * i + 3][c];
        half[i][0] = d0 - d2;
        half[i][1] = d1 + d2;
        half[i][2] = d2 - d1;
        half[i][3] = d1 - d3;
      }
      for (int j = 0; j < 4; ++j) {
        A* const v = to + j * plane + c;
        v[0] = half[0][j] - half[2][j];
        v[4 * plane] = half[1][j] + half[2][j];
        v[8 * plane] = half[2][j] - half[1][j];
        v[12 * plane] = half[1][j] - half[3][j];
      }
    }
  }

  const Gather<T> g_;
  Context& context_;
  const GatherAxis rows_, cols_;
  const bool in_place_;  // whether images are read and written where they are
  const Accumulate<A> kernel_;
  const int64_t blocks_, width_;  // blocks of maps, and their lanes
  const int64_t down_, across_, tiles_;
  int64_t size_ = 0, row_size_ = 0;
  const A zeros_[most_lanes] = {};
};

template <class T>
class Winograd : WinogradTiles<T> {
  using Base = WinogradTiles<T>;
  using Base::across_;
  using Base::blocks_;
  using Base::cols_;
  using Base::context_;
  using Base::down_;
  using Base::g_;
  using Base::in_place_;
  using Base::kernel_;
  using Base::most_lanes;
  using Base::products;
  using Base::rows_;
  using Base::size_;
  using Base::tiles_;
  using Base::width_;
  using Base::zeros_;
  using typename Base::A;
  using typename Base::Run;

 public:
  Winograd(const Elements<T>& e, Pass pass, Context& context)
      : Base(e, pass, context), by_maps_(takes_few_tiles()), pitch_(by_maps_ ? kernel_.lanes : width_) {
    this->set_size(by_maps_ ? tiles_ : task_size());
  }

  // Writes all targets; returns whether all are finite.
  bool run() {
    Context& context = context_;
    bias_ = context.workspace<A>(g_.groups * width_);
    from_ = context.workspace<int64_t>(size_);
    to_ = context.workspace<int64_t>(size_);
    off_ = context.workspace<int64_t>(g_.depth);
    for (int64_t i = 0; i < size_; ++i) from_[i] = i * g_.depth, to_[i] = i * pitch_;
    for (int64_t c = 0; c < g_.depth; ++c) off_[c] = c;
    for (int64_t i = 0; i < g_.groups * width_; ++i) {
      const int64_t map = i % width_;
      bias_[i] = g_.bias && map < g_.maps ? A(g_.bias[i / width_ * g_.maps + map]) : A(0);
    }
    return by_maps_ ? run_by_maps() : run_by_tiles();
  }

 private:
  static constexpr int64_t filter_channels = 32, input_tiles = 16;  // that are transformed at once

  // The memory of a task: the transformed inputs (or filters, if it has a block of maps) and outputs, filters tap by
  // tap, a pixel of zeros, and copies of the rows that it reads and writes, pixel by pixel (if these are in place, one
  // pixel for outputs outside of the image).
  struct Scratch {
    A *in, *out, *taps, *zeros, *sources, *targets;
  };
  // Allocates it for those of `tasks` tasks that run at once; returns what has that of a slot.
  auto allocate(int64_t tasks, int64_t in) {
    const int64_t sizes[] = {in,       products * out_apart(),    9 * kernel_.lanes * filter_channels,
                             g_.depth, this->copy_size(g_.depth), (in_place_ ? 1 : 4 * size_) * pitch_};
    std::array<int64_t, 7> at{};
    for (size_t i = 0; i < 6; ++i) at[i + 1] = at[i] + lines(sizes[i]);
    Context& context = context_;
    A* const memory = context.workspace<A>(min(tasks, int64_t(context.device.threads)) * at[6]);
    return [=](int64_t slot) {
      A* const own = memory + slot * at[6];
      return Scratch{own, own + at[1], own + at[2], own + at[3], own + at[4], own + at[5]};
    };
  }

  bool run_by_maps() {
    Context& context = context_;
    const int64_t parts = ceil_div(tiles_, input_tiles), inputs_size = lines(products * in_apart());
    A* const inputs = context.workspace<A>(g_.groups * inputs_size);
    const auto scratch = allocate(g_.groups * max(parts, blocks_), products * block_apart());
    run_tasks(context, g_.groups * parts, [&](int64_t i, int64_t slot) {
      const int64_t group = i / parts, first = i % parts * input_tiles;
      transform_inputs(group, first, min(input_tiles, tiles_ - first), scratch(slot),
                       inputs + group * inputs_size + first * g_.depth);
    });
    std::atomic<bool> finite{true};
    run_tasks(context, g_.groups * blocks_, [&](int64_t i, int64_t slot) {
      const int64_t group = i / blocks_, block = i % blocks_;
      const Scratch s = scratch(slot);
      transform_filters(group, block, s.taps, s.in, block_apart());
      multiply(tiles_, inputs + group * inputs_size, s.in, block_apart(), s.out);
      if (!store_tiles(group, block * kernel_.lanes, 0, tiles_, s)) finite = false;
    });
    return finite;
  }

  bool run_by_tiles() {
    Context& context = context_;
    const int64_t tasks = g_.groups * ceil_div(tiles_, size_);
    A* const filters = context.workspace<A>(g_.groups * products * filters_apart());
    const auto block_of = [=, this](int64_t group, int64_t block) {
      return filters + group * products * filters_apart() + block * g_.depth * kernel_.lanes;
    };
    const auto scratch = allocate(max(tasks, g_.groups * blocks_), products * in_apart());
    run_tasks(context, g_.groups * blocks_, [&](int64_t i, int64_t slot) {
      const int64_t group = i / blocks_, block = i % blocks_;
      transform_filters(group, block, scratch(slot).taps, block_of(group, block), filters_apart());
    });
    std::atomic<bool> finite{true};
    run_tasks(context, tasks, [&](int64_t i, int64_t slot) {
      const int64_t group = i % g_.groups, first = i / g_.groups * size_, count = min(size_, tiles_ - first);
      const Scratch s = scratch(slot);
      transform_inputs(group, first, count, s, s.in);
      for (int64_t block = 0; block < blocks_; ++block) {
        multiply(count, s.in, block_of(group, block), filters_apart(), s.out + block * kernel_.lanes);
      }
      if (!store_tiles(group, 0, first, count, s)) finite = false;
    });
    return finite;
  }

  // Whether a task has all tiles and one block of maps, so that it can transform the filters itself, and those need not
  // be stored: if the filters are larger than a thread's L2 cache, and the inputs are smaller than the filters.
  bool takes_few_tiles() const {
    constexpr int64_t cache = 1 << 20;
    return products * int64_t(sizeof(A)) * g_.depth * width_ > cache && tiles_ < width_;
  }
  // Otherwise the number of tiles per task: a thread's matrices should stay in its L2 cache, but every task reads all
  // filters, which takes less time than the products only if there are enough tiles.
  int64_t task_size() const {
    constexpr int64_t bytes = 1 << 19, most = 128, enough = 48;
    const int64_t per_tile = products * int64_t(sizeof(A)) * (g_.depth + width_), threads = context_.device.threads;
    const int64_t fair = ceil_div(tiles_ * g_.groups, tasks_per_thread * threads),
                  fewest = min(enough, ceil_div(tiles_ * g_.groups, threads));
    const int64_t tiles = max(min(min(most, bytes / per_tile), fair), fewest);
    return ceil_div(tiles, kernel_.tile) * kernel_.tile;
  }

  // The filters of one block of maps, as [16][depth][lanes]. `taps` is for [depth][9][lanes] of some channels, or for
  // [9][depth][lanes] if filters are in channels_last. In memory, fprop has the channels and taps of a map next to each
  // other, dgrad the maps and taps of a channel.
  void transform_filters(int64_t group, int64_t block, A* taps, A* result, int64_t plane) const {
    const int64_t lanes = kernel_.lanes, first = block * lanes, maps = min(lanes, g_.maps - first);
    const bool reversed = cols_.source_tap < 0;
    std::fill(taps, taps + 9 * filter_channels * lanes, A(0));
    for (int64_t c = 0; c < g_.depth; c += filter_channels) {
      const int64_t channels = min(filter_channels, g_.depth - c);
      const T* const from = g_.weight + g_.weight_at(group, first, c, 0, 0);
      A* const to = result + c * lanes;
      on_vectors([=, this] {
        const bool by_tap = g_.tap_stride != 1;
        const auto row = [=](int64_t i, int64_t k) {
          return taps + (by_tap ? k * filter_channels + i : i * 9 + k) * lanes;
        };
        if (by_tap && g_.depth_stride == 1) {
          for (int64_t k = 0; k < 9; ++k) {
            transpose(maps, channels, from + k * g_.tap_stride, g_.map_stride, row(0, k), lanes);
          }
        } else if (g_.depth_stride == 9) {
          transpose(maps, channels * 9, from, g_.map_stride, taps, lanes);
        } else {
          for (int64_t i = 0; i < channels; ++i) {
            const T* const filters = from + i * g_.depth_stride;
            if (!by_tap) transpose(maps, int64_t(9), filters, g_.map_stride, row(i, 0), lanes);
            for (int64_t k = 0; by_tap && k < 9; ++k) convert(maps, filters + k * g_.tap_stride, row(i, k));
          }
        }
        for (int64_t i = 0; i < channels; ++i) {
          // U = G w G^T, along the columns of w first.
          A half[12 * most_lanes];
          const auto tap = [=](int k) { return row(i, reversed ? 8 - k : k); };
          for (int q = 0; q < 3; ++q) {
            transform_taps(lanes, tap(q), tap(3 + q), tap(6 + q), half + q * most_lanes, 3 * most_lanes);
          }
          for (int p = 0; p < 4; ++p) {
            const A* const row = half + p * 3 * most_lanes;
            transform_taps(lanes, row, row + most_lanes, row + 2 * most_lanes, to + i * lanes + 4 * p * plane, plane);
          }
        }
      });
    }
  }
  // G applied to three taps.
  static void transform_taps(int64_t lanes, const A* a, const A* b, const A* c, A* to, int64_t plane) {
    TP_INDEPENDENT
    for (int64_t i = 0; i < lanes; ++i) {
      to[i] = a[i];
      to[plane + i] = ((a[i] + c[i]) + b[i]) / 2;
      to[2 * plane + i] = ((a[i] + c[i]) - b[i]) / 2;
      to[3 * plane + i] = c[i];
    }
  }
  int64_t filters_apart() const { return Base::apart(g_.depth * width_); }
  int64_t block_apart() const { return Base::apart(g_.depth * kernel_.lanes); }
  int64_t in_apart() const { return Base::apart(size_ * g_.depth); }
  int64_t out_apart() const { return Base::apart(size_ * pitch_); }

  void transform_inputs(int64_t group, int64_t first, int64_t count, const Scratch& s, A* to) const {
    std::fill(s.zeros, s.zeros + g_.depth, A(0));
    on_vectors([=, this] {
      this->for_runs(first, count, [=, this](const Run& run) {
        if (!in_place_) this->copy_sources(run, group * g_.depth, g_.depth, s.sources);
        for (int64_t t = 0; t < run.count; ++t) {
          this->transform_input(run, t, group * g_.depth, g_.depth, s.zeros, s.sources, to + (run.at + t) * g_.depth,
                                in_apart());
        }
      });
    });
  }

  // The products of some tiles and one block of maps.
  void multiply(int64_t count, const A* in, const A* filters, int64_t filters_apart, A* out) const {
    for (int64_t k = 0; k < products; ++k) {
      accumulate(kernel_, count, in + k * in_apart(), from_, g_.depth, off_, filters + k * filters_apart, zeros_,
                 out + k * out_apart(), to_);
    }
  }

  // Stores the outputs of some tiles and the maps from `map` on. Returns whether all are finite.
  bool store_tiles(int64_t group, int64_t map, int64_t first, int64_t count, const Scratch& s) const {
    bool finite = true;
    on_vectors([=, this, &finite] {
      this->for_runs(first, count, [=, this, &finite](const Run& run) {
        for (int64_t t = 0; t < run.count; ++t) finite &= transform_output(group, map, run, t, s);
        if (!in_place_) copy_targets(group, map, run, s.targets);
      });
    });
    return finite;
  }

  // Computes A^T m A, the four outputs of a tile.
  bool transform_output(int64_t group, int64_t map, const Run& run, int64_t tile, const Scratch& s) const {
    const int64_t maps = min(pitch_, g_.maps - map), plane = out_apart();
    const A *const m = s.out + (run.at + tile) * pitch_, *const bias = bias_ + group * width_ + map;
    A* y[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = 2 * run.row + i / 2, col = 2 * (run.col + tile) + i % 2;
      y[i] = s.targets;
      if (!in_place_) {
        y[i] += (i / 2 * 2 * size_ + 2 * (run.at + tile) + i % 2) * pitch_;
      } else if (row < rows_.outputs && col < cols_.outputs) {
        if constexpr (std::is_same<T, A>::value) {
          y[i] = g_.target + g_.target_strides.at(run.image, group * g_.maps + map, row, col);
        }
      }
    }
    A *const y0 = y[0], *const y1 = y[1], *const y2 = y[2], *const y3 = y[3];
    int bad = 0;
    TP_INDEPENDENT
    for (int64_t l = 0; l < maps; ++l) {
      A upper[4], lower[4];
      for (int j = 0; j < 4; ++j) {
        const A *x = m + j * plane + l, a = x[4 * plane], b = x[8 * plane];
        upper[j] = (x[0] + a) + b;
        lower[j] = (a - b) - x[12 * plane];
      }
      const A shift = bias[l];
      const A a = ((upper[0] + upper[1]) + upper[2]) + shift, b = ((upper[1] - upper[2]) - upper[3]) + shift;
      const A c = ((lower[0] + lower[1]) + lower[2]) + shift, d = ((lower[1] - lower[2]) - lower[3]) + shift;
      y0[l] = a;
      y1[l] = b;
      y2[l] = c;
      y3[l] = d;
      bad |= int(!is_finite(a)) | int(!is_finite(b)) | int(!is_finite(c)) | int(!is_finite(d));
    }
    return !bad;
  }

  void copy_targets(int64_t group, int64_t map, const Run& run, const A* targets) const {
    const Strides& strides = g_.target_strides;
    const int64_t cols = min(2 * run.count, cols_.outputs - 2 * run.col), maps = min(pitch_, g_.maps - map);
    for (int64_t i = 0; i < 2 && 2 * run.row + i < rows_.outputs; ++i) {
      const A* const from = targets + (i * 2 * size_ + 2 * run.at) * pitch_;
      T* const to = g_.target + strides.at(run.image, group * g_.maps + map, 2 * run.row + i, 2 * run.col);
      if (strides.channel != 1) {
        transpose(cols, maps, from, pitch_, to, strides.channel);
      } else {
        for (int64_t c = 0; c < cols; ++c) convert(maps, from + c * pitch_, to + c * strides.col);
      }
    }
  }

  const bool by_maps_;   // whether a task has all tiles and one block of maps
  const int64_t pitch_;  // maps of a task, with their padding
  A* bias_ = nullptr;
  int64_t *from_ = nullptr, *to_ = nullptr, *off_ = nullptr;
};

}  // namespace tp::conv
