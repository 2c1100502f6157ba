// Shared by the passes of the threaded rung: tasks for threads, copies between images and lanes, and the input as two
// tables.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstring>

#include "block/convert.h"
#include "conv/accumulate.h"
#include "conv/elements.h"
#include "conv/packed.h"
#include "conv/tiles.h"

namespace tp::conv {

constexpr int64_t pixels_per_tile = 256, most_pixels_per_tile = 1024;
constexpr int64_t tasks_per_thread = 4;

// The depth of a panel of the right factor that stays in the L1 cache.
template <class A>
constexpr int64_t panel_depth(const Accumulate<A>& kernel) {
  return (16 << 10) / (kernel.lanes * int64_t(sizeof(A)));
}

// Runs the kernel panel by panel.
template <class A>
void accumulate(const Accumulate<A>& kernel, int64_t rows, const A* a, const int64_t* from, int64_t depth,
                const int64_t* off, const A* b, const A* start, A* c, const int64_t* to) {
  const int64_t step = panel_depth(kernel);
  for (int64_t k = 0; k < depth; k += step) {
    kernel.run(rows, a, from, min(step, depth - k), off + k, b + k * kernel.lanes, k == 0 ? start : nullptr, c, to);
  }
}

// The size of one thread's scratch memory, in elements: a whole number of cache lines.
constexpr int64_t lines(int64_t n) { return ceil_div(n, int64_t(16)) * 16; }

// Calls task(i, slot) for every i. No two threads have the same slot at the same time; there are at most
// context.device.threads slots.
template <class Task>
void run_tasks(Context& context, int64_t tasks, const Task& task) {
  std::atomic<int64_t> next{0};
  context.parallel_for(min(tasks, int64_t(context.device.threads)), 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      for (int64_t i = next++; i < tasks; i = next++) task(i, slot);
    }
  });
}

// Returns an array in the accumulators' dtype: itself, or a converted copy.
template <class T>
const acc_t<T>* widened(const T* from, int64_t n, Context& context) {
  using A = acc_t<T>;
  if constexpr (std::is_same<T, A>::value) {
    return from;
  } else {
    A* wide = context.workspace<A>(n);
    context.parallel_for(n, 4096, [=](int64_t begin, int64_t end) {
      on_vectors([=] { convert(end - begin, from + begin, wide + begin); });
    });
    return wide;
  }
}

// `lanes` columns of the right factor: element(k, lane) if lane < columns, else zero.
template <class A, class Element>
void pack(A* out, int64_t depth, int64_t columns, int64_t lanes, const Element& element) {
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t lane = 0; lane < lanes; ++lane) out[k * lanes + lane] = lane < columns ? A(element(k, lane)) : A(0);
  }
}

// Walks a tile of images [n, maps, height, width] in memory order: calls f(first pixel of the tile, its offset in map
// 0, number of pixels) for each contiguous run.
template <class F>
void for_runs(const Tile& t, const Tiling& whole, int64_t maps, const F& f) {
  const bool full = t.width == whole.width;  // whole rows are contiguous
  const int64_t length = full ? t.height * t.width : t.width, runs = full ? 1 : t.height;
  for (int64_t n = 0; n < t.images; ++n) {
    for (int64_t r = 0; r < runs; ++r) {
      f((n * runs + r) * length, ((t.image + n) * maps * whole.height + t.h + r) * whole.width + t.w, length);
    }
  }
}

// Stores sums[pixel, lane] as map `lane` of the images; `out` is the address of the first of these maps.
template <class T, class A>
void store(const Tile& t, const A* sums, int64_t columns, int64_t lanes, T* out, const Tiling& whole,
           const Strides& strides) {
  if (strides.channel == 1) {
    const int64_t step = strides.image / (whole.height * whole.width);
    return for_runs(t, whole, 1, [&](int64_t pixel, int64_t at, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        const A* from = sums + (pixel + i) * lanes;
        T* to = out + (at + i) * step;
        for (int64_t lane = 0; lane < columns; ++lane) to[lane] = T(from[lane]);
      }
    });
  }
  for_runs(t, whole, strides.image / strides.channel, [&](int64_t pixel, int64_t at, int64_t length) {
    transpose(length, columns, sums + pixel * lanes, lanes, out + at, strides.channel);
  });
}

// panel[pixel, lane] = map `lane` of the images, for lanes below `columns`.
template <class T, class A>
void load(const Tile& t, A* panel, int64_t columns, int64_t lanes, const T* in, const Tiling& whole,
          const Strides& strides) {
  if (strides.channel == 1) {
    const int64_t step = strides.image / (whole.height * whole.width);
    return for_runs(t, whole, 1, [&](int64_t pixel, int64_t at, int64_t length) {
      on_vectors([=] {
        for (int64_t i = 0; i < length; ++i) {
          const T* from = in + (at + i) * step;
          A* to = panel + (pixel + i) * lanes;
          TP_INDEPENDENT
          for (int64_t lane = 0; lane < columns; ++lane) to[lane] = A(from[lane]);
        }
      });
    });
  }
  for_runs(t, whole, strides.image / strides.channel, [&](int64_t pixel, int64_t at, int64_t length) {
    transpose(columns, length, in + at, strides.channel, panel + pixel * lanes, lanes);
  });
}

// Output o of a tile finds its tap k along one axis at o * step + k * tap.
struct AxisLayout {
  int64_t step, tap, extent;
  bool dense;  // spaced as in the image

  AxisLayout(const Axis& axis, int64_t outputs) {
    const int64_t apart = (outputs - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1;
    dense = apart <= outputs * axis.kernel;
    step = dense ? axis.stride : axis.kernel;
    tap = dense ? axis.dilation : 1;
    extent = dense ? apart : outputs * axis.kernel;
  }
};

// The offsets of the pixels of a tile from its first one. In a tiling, the table of the full size serves every tile: a
// smaller one has fewer images, or it is one image with fewer rows, or one row with fewer columns, so its pixels are
// the first ones of the table.
inline void pixel_offsets(const Tile& size, int64_t image, int64_t row, int64_t col, int64_t* off) {
  for (int64_t n = 0; n < size.images; ++n) {
    for (int64_t h = 0; h < size.height; ++h) {
      for (int64_t w = 0; w < size.width; ++w) *off++ = n * image + h * row + w * col;
    }
  }
}

// The elements of x that tiles of output pixels read: the image itself, or a copy with its padding in the layout of the
// image.
template <class T>
struct Input {
  using A = acc_t<T>;
  const Elements<T>& e;
  AxisLayout rows, cols;
  bool copied, last;                   // last: channels are the last dimension
  int64_t col, pitch, channel, image;  // strides
  int64_t copy_size, table_size;

  Input(const Elements<T>& e, const Tile& size)
      : e(e),
        rows(e.rows, size.height),
        cols(e.cols, size.width),
        copied(!std::is_same<T, A>::value || !rows.dense || !cols.dense || e.rows.pad > 0 || e.cols.pad > 0),
        last(e.x_strides.channel == 1),
        col(!copied ? e.x_strides.col
            : last  ? e.channels
                    : 1),
        pitch(copied ? cols.extent * col : e.x_strides.row),
        channel(!copied ? e.x_strides.channel
                : last  ? 1
                        : rows.extent * pitch),
        image(copied ? e.channels * rows.extent * cols.extent : e.x_strides.image),
        copy_size(copied ? lines(size.images * image) : 0),
        table_size(copied ? ceil_div(rows.extent + cols.extent, int64_t(8)) * 8 : 0) {}

  // off[(c * kernel + p) * kernel + q] = the offset of a tap, for the channels of a group.
  void taps(int64_t* off) const {
    for (int64_t c = 0; c < e.channels; ++c) {
      for (int64_t p = 0; p < e.rows.kernel; ++p) {
        for (int64_t q = 0; q < e.cols.kernel; ++q) *off++ = c * channel + p * rows.tap * pitch + q * cols.tap * col;
      }
    }
  }
  // The offsets of the pixels of a tile of the full size.
  void pixels(const Tile& size, int64_t* off) const {
    pixel_offsets(size, image, rows.step * pitch, cols.step * col, off);
  }
  // The array that the two tables address, for one group.
  const A* read(const Tile& t, int64_t group, A* copy, int64_t* table) const {
    const T* x = e.x + e.x_at(t.image, group * e.channels, 0, 0);
    if constexpr (std::is_same<T, A>::value) {
      if (!copied) return x + t.h * e.rows.stride * pitch + t.w * e.cols.stride * col;
    }
    int64_t *from_row = table, *from_col = table + rows.extent;
    sources(e.rows, rows, t.h, t.height, from_row);
    if (!cols.dense) sources(e.cols, cols, t.w, t.width, from_col);
    // A row has one plane per channel with one element per pixel, or one plane with all channels of a pixel.
    const int64_t planes = last ? 1 : e.channels, pieces = last ? e.channels : 1;
    for (int64_t n = 0; n < t.images; ++n) {
      for (int64_t c = 0; c < planes; ++c) {
        for (int64_t r = 0; r < rows.extent; ++r) {
          A* to = copy + n * image + c * channel + r * pitch;
          if (from_row[r] < 0) {
            std::fill(to, to + pitch, A(0));
            continue;
          }
          const T* row = x + e.x_at(n, c, from_row[r], 0);
          if (cols.dense) {
            read_row(row, e.cols.source(t.w, 0), pieces, to);
          } else {
            read_spread_row(row, from_col, pieces, to);
          }
        }
      }
    }
    return copy;
  }

 private:
  // Copies a row of pixels, each of `pieces` elements, from column `first` on, which may lie before the image.
  void read_row(const T* row, int64_t first, int64_t pieces, A* to) const {
    const int64_t begin = min(max(-first, int64_t(0)), cols.extent);
    const int64_t end = max(begin, min(e.cols.in - first, cols.extent));
    std::fill_n(to, begin * pieces, A(0));
    read_pixels(row + (first + begin) * e.x_strides.col, end - begin, pieces, to + begin * pieces);
    std::fill_n(to + end * pieces, (cols.extent - end) * pieces, A(0));
  }
  void read_spread_row(const T* row, const int64_t* from_col, int64_t pieces, A* to) const {
    for (int64_t j = 0; j < cols.extent; ++j, to += pieces) {
      if (from_col[j] < 0) {
        std::fill_n(to, pieces, A(0));
      } else {
        read_pixels(row + from_col[j] * e.x_strides.col, 1, pieces, to);
      }
    }
  }
  // Copies neighbouring pixels.
  void read_pixels(const T* from, int64_t count, int64_t pieces, A* to) const {
    constexpr int64_t few = 32;  // elements for which a call takes longer than the loop
    const int64_t step = e.x_strides.col, n = count * pieces;
    if (pieces == step && n > few) {
      if constexpr (std::is_same<T, A>::value) {
        std::memcpy(to, from, size_t(n) * sizeof(A));
      } else {
        on_vectors([=] { convert(n, from, to); });
      }
      return;
    }
    if (pieces == step) {
      for (int64_t i = 0; i < n; ++i) to[i] = A(from[i]);
      return;
    }
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t i = 0; i < pieces; ++i) to[j * pieces + i] = A(from[j * step + i]);
    }
  }
  // The input element for each position of the copy; -1 for padding. For elements that no tap reads it is arbitrary.
  static void sources(const Axis& axis, const AxisLayout& layout, int64_t first, int64_t outputs, int64_t* from) {
    if (layout.dense) {
      const int64_t begin = axis.source(first, 0);
      for (int64_t j = 0; j < layout.extent; ++j) from[j] = begin + j < axis.in ? max(begin + j, int64_t(-1)) : -1;
      return;
    }
    std::fill(from, from + layout.extent, -1);
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t k = 0; k < axis.kernel; ++k) {
        const int64_t i = axis.source(first + o, k);
        if (i >= 0 && i < axis.in) from[o * layout.step + k * layout.tap] = i;
      }
    }
  }
};

// Chooses tiles small enough to keep all threads busy.
inline int64_t pixels_for(const Context& context, int64_t pixels, int64_t most = pixels_per_tile) {
  return min(most, max(int64_t(48), ceil_div(pixels, tasks_per_thread * context.device.threads)));
}

// The tiles of fprop. Neighbouring tiles copy the rows that both of them read, so tiles become larger if that leaves
// their copies in the L1 cache.
template <class T>
Tiling output_tiles(const Elements<T>& e, const Context& context) {
  constexpr int64_t bytes = 20 << 10;
  for (int64_t most = most_pixels_per_tile;; most /= 2) {
    const int64_t pixels = pixels_for(context, e.n * e.rows.out * e.cols.out, most);
    const Tiling tiling(e.n, e.rows.out, e.cols.out, pixels);
    const Input<T> input(e, tiling.size);
    if (most == pixels_per_tile || (input.copied && input.copy_size * int64_t(sizeof(acc_t<T>)) <= bytes))
      return tiling;
  }
}

// Tasks are tiles by groups by `parts` of the blocks of lanes; the fewer tiles there are, the more parts.
struct Tasks {
  int64_t tiles, groups, blocks, parts;

  Tasks(const Context& context, int64_t tiles, int64_t groups, int64_t blocks)
      : tiles(tiles), groups(groups), blocks(blocks), parts(1) {
    if (tiles * groups > 0) parts = min(blocks, ceil_div(tasks_per_thread * context.device.threads, tiles * groups));
  }
  int64_t count() const { return tiles * groups * parts; }

  // Calls f(tile, group, first block, last block, slot) for every task.
  template <class F>
  void run(Context& context, const F& f) const {
    run_tasks(context, count(), [&](int64_t i, int64_t slot) {
      const int64_t part = i % parts, group = i / parts % groups;
      f(i / parts / groups, group, part * blocks / parts, (part + 1) * blocks / parts, slot);
    });
  }
};

// wgrad sums chunks of tiles separately, and then the chunks. There are enough chunks to keep threads busy, but their
// number depends only on the shape. If the sums of a chunk do not stay in the cache, to write and read them takes as
// long as the products of a tile, so there are fewer chunks.
inline int64_t chunks_for(int64_t tiles, int64_t others, int64_t bytes) {
  constexpr int64_t tasks = 64, cached = 128 << 10, tiles_each = 8, most_bytes = 64 << 20;
  const int64_t most = bytes / others > cached ? ceil_div(tiles, tiles_each) : tiles;
  return max(int64_t(1), min(most, min(tasks / others, most_bytes / bytes)));
}

}  // namespace tp::conv
