// F(2 x 2, 3 x 3) for the threaded rung (winograd.cu derives it): fprop and dgrad of 3 x 3 filters without stride and
// dilation.
//
// A task is a number of tiles of 2 x 2 outputs. The inputs of the tiles are transformed to 16 matrices [channels,
// tiles], and the filters, once, to 16 matrices [maps, channels]; 16 matrix products by the kernel of accumulate.h give
// the transformed outputs. The lanes of a vector are always neighbouring tiles, so NCHW images are read and written in
// memory order; of images in channels_last, a task transposes the rows that it reads and writes in the cache. An output
// depends only on its own tile and on the order of the channels, whatever the number of threads.
//
// The transforms mix the pixels of a tile, so an infinity or a NaN spreads over the tile. All outputs that it reaches
// are not finite, so the caller computes those again.
#pragma once
#include "block/on_vectors.h"
#include "conv/gather.h"
#include "conv/threaded.h"

namespace tp::conv {

// Tells whether the 16 products instead of 36 save more time than the transforms cost. Those of the filters, which are
// larger than the filters, pay only if there are enough tiles to multiply with them.
inline bool winograd_pays(const Args& a) {
  constexpr int64_t few = 16, few_tiles = 64;  // channels or maps of a group; tiles of the batch
  const Axis &rows = a.rows, &cols = a.cols;
  const int64_t down = a.pass == Pass::dgrad ? rows.in : rows.out, across = a.pass == Pass::dgrad ? cols.in : cols.out;
  if (a.n * ceil_div(down, int64_t(2)) * ceil_div(across, int64_t(2)) < few_tiles) return false;
  const auto fits = [](const Axis& axis) {
    return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1 && axis.out >= 4;
  };
  return a.pass != Pass::wgrad && fits(a.rows) && fits(a.cols) && min(a.c, a.m) / a.groups >= few;
}

template <class T>
class Winograd {
  using A = acc_t<T>;
  static constexpr int64_t products = 16;

 public:
  Winograd(const Elements<T>& e, Pass pass, Context& context)
      : g_(e, pass),
        context_(context),
        rows_(gather_axis(e.rows, pass, 0)),
        cols_(gather_axis(e.cols, pass, 0)),
        kernel_(accumulate_for<A>(1 << 10)),
        down_(ceil_div(rows_.outputs, int64_t(2))),
        across_(ceil_div(cols_.outputs, int64_t(2))),
        tiles_(g_.n * down_ * across_),
        size_(task_size()),
        rows_per_task_(is_nchw() ? 0 : 4 * ((size_ - 1) / across_ + 2)),
        row_size_(min(cols_.sources, 2 * min(across_, size_) + 2)) {}

  // Writes all targets; returns whether all are finite.
  bool run() {
    const int64_t tasks = g_.groups * ceil_div(tiles_, size_), threads = min(tasks, int64_t(context_.device.threads));
    filters_ = context_.workspace<A>(g_.groups * products * g_.maps * g_.depth);
    run_tasks(context_, g_.groups * g_.maps, [&](int64_t i, int64_t) { transform_filters(i / g_.maps, i % g_.maps); });
    from_ = context_.workspace<int64_t>(g_.maps);
    to_ = context_.workspace<int64_t>(g_.maps);
    off_ = context_.workspace<int64_t>(g_.depth);
    for (int64_t m = 0; m < g_.maps; ++m) from_[m] = m * g_.depth, to_[m] = m * map_size();
    for (int64_t c = 0; c < g_.depth; ++c) off_[c] = c;
    const int64_t input = products * size_ * g_.depth, output = g_.maps * map_size(), row = 4 * (cols_.outputs + 4),
                  spare = products * size_ + row;
    A* scratch = context_.workspace<A>(threads * lines(input + output + spare));
    T* transposed = context_.workspace<T>(threads * lines(g_.depth * channel_size()));
    std::atomic<bool> finite{true};
    run_tasks(context_, tasks, [&](int64_t i, int64_t slot) {
      A* in = scratch + slot * lines(input + output + spare);
      T* rows = transposed + slot * lines(g_.depth * channel_size());
      if (!run_task(i % g_.groups, i / g_.groups * size_, in, in + input, in + input + output, rows)) finite = false;
    });
    return finite;
  }

 private:
  // The number of tiles per task: a thread's matrices should stay in its L2 cache.
  int64_t task_size() const {
    constexpr int64_t bytes = 1 << 19, most = 128;
    const int64_t per_tile = products * int64_t(sizeof(A)) * (g_.depth + g_.maps);
    const int64_t fair = ceil_div(tiles_ * g_.groups, tasks_per_thread * context_.device.threads);
    const int64_t tiles = max(min(min(most, bytes / per_tile), fair), int64_t(1));
    return max(int64_t(tiles >= 2 * kernel_.lanes ? 2 : 1), tiles / kernel_.lanes) * kernel_.lanes;
  }
  // The pitch between maps of transformed outputs; a few elements of padding make maps fall into different sets of the
  // caches.
  int64_t map_size() const { return products * size_ + 16; }

  // In channels_last, a task has the source rows of its tiles channel by channel.
  bool is_nchw() const { return g_.source_strides.col == 1; }
  int64_t channel_size() const { return rows_per_task_ * row_size_ + (is_nchw() ? 0 : 16); }

  // U = G w G^T for the filters of one map; the taps are in the order in which sources are read.
  void transform_filters(int64_t group, int64_t map) const {
    const int64_t depth = g_.depth, stride = g_.depth_stride, plane = g_.maps * depth;
    const T* from = g_.weight + g_.weight_at(group, map, 0, 0, 0);
    A* to = filters_ + (group * products * g_.maps + map) * depth;
    const bool reversed = cols_.source_tap < 0;
    on_vectors([=] {
      TP_INDEPENDENT
      for (int64_t c = 0; c < depth; ++c) {
        A w[3][3], half[4][3];
        for (int p = 0; p < 3; ++p) {
          for (int q = 0; q < 3; ++q) {
            const int tap = 3 * p + q;
            w[p][q] = A(from[c * stride + (reversed ? 8 - tap : tap)]);
          }
        }
        for (int q = 0; q < 3; ++q) {
          half[0][q] = w[0][q];
          half[1][q] = ((w[0][q] + w[2][q]) + w[1][q]) / 2;
          half[2][q] = ((w[0][q] + w[2][q]) - w[1][q]) / 2;
          half[3][q] = w[2][q];
        }
        for (int p = 0; p < 4; ++p) {
          A* u = to + 4 * p * plane + c;
          u[0] = half[p][0];
          u[plane] = ((half[p][0] + half[p][2]) + half[p][1]) / 2;
          u[2 * plane] = ((half[p][0] + half[p][2]) - half[p][1]) / 2;
          u[3 * plane] = half[p][2];
        }
      }
    });
  }

  bool run_task(int64_t group, int64_t first, A* in, A* out, A* spare, T* rows) const {
    const int64_t count = min(size_, tiles_ - first), lanes = kernel_.lanes, blocks = ceil_div(count, lanes);
    on_vectors([=, this] {
      if (!is_nchw()) transpose_sources(group, first, count, rows);
      for (int64_t c = 0; c < g_.depth; ++c) transform_input(group, c, first, count, in, spare, rows);
    });
    for (int64_t k = 0; k < products; ++k) {
      const A* filters = filters_ + (group * products + k) * g_.maps * g_.depth;
      for (int64_t block = 0; block < blocks; ++block) {
        accumulate(kernel_, g_.maps, filters, from_, g_.depth, off_, in + (k * blocks + block) * g_.depth * lanes,
                   zeros_, out + k * size_ + block * lanes, to_);
      }
    }
    bool finite = true;
    on_vectors([=, this, &finite] {
      for (int64_t m = 0; m < g_.maps; ++m) finite &= transform_output(group, m, first, count, out + to_[m], spare);
      if (!is_nchw()) transpose_targets(group, first, count, out);
    });
    return finite;
  }

  // Adjacent tiles in a row. In channels_last, the task has the four source rows that they read from its row `rows` on,
  // and of these the columns from `begin` to `end`. Whole rows of tiles share two of them with the row above.
  struct Run {
    int64_t at, image, row, col, count;  // `at` counts tiles of the task
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

  void transpose_sources(int64_t group, int64_t first, int64_t count, T* rows) const {
    for_runs(first, count, [=, this](const Run& run) {
      for (int64_t i = run.shares ? 2 : 0; i < 4; ++i) {
        const int64_t r = top() + 2 * run.row + i;
        if (!rows_.inside(r)) continue;
        transpose(run.end - run.begin, g_.depth,
                  g_.source + g_.source_strides.at(run.image, group * g_.depth, r, run.begin), g_.source_strides.col,
                  rows + (run.rows + i) * row_size_, channel_size());
      }
    });
  }

  // V = B^T d B, along the rows first: half[4 i + j] is combination j of source row i.
  void transform_input(int64_t group, int64_t channel, int64_t first, int64_t count, A* in, A* half,
                       const T* rows) const {
    const int64_t lanes = kernel_.lanes, blocks = ceil_div(count, lanes), width = blocks * lanes, size = size_;
    A *even = half + products * size, *odd = even + across_ + 1;
    for_runs(first, count, [=, this](const Run& run) {
      const int64_t n = run.count;
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t r = top() + 2 * run.row + i, c0 = left() + 2 * run.col;
        A* to = half + 4 * i * size + run.at;
        if (!rows_.inside(r)) {
          for (int64_t j = 0; j < 4; ++j) std::fill(to + j * size, to + j * size + n, A(0));
          continue;
        }
        // In channels_last, the row begins with the first column that it reads.
        const int64_t skipped = is_nchw() ? 0 : run.begin;
        const T* row = is_nchw() ? g_.source + g_.source_strides.at(run.image, group * g_.depth + channel, r, 0)
                                 : rows + channel * channel_size() + (run.rows + i) * row_size_;
        // Reads columns c0 to c0 + 2 n + 1 in pairs; those inside the image are columns `begin` to `end`.
        const int64_t sources = cols_.sources, begin = max(int64_t(0), min(ceil_div(-c0, int64_t(2)), n + 1)),
                      end = max(begin, min(n + 1, sources > c0 ? (sources - c0) / 2 : int64_t(0)));
        const auto column = [=](int64_t c) { return c >= 0 && c < sources ? A(row[c - skipped]) : A(0); };
        for (int64_t t = 0; t < begin; ++t) even[t] = column(c0 + 2 * t), odd[t] = column(c0 + 2 * t + 1);
        const T* from = row + (c0 - skipped);
        TP_INDEPENDENT
        for (int64_t t = begin; t < end; ++t) even[t] = A(from[2 * t]), odd[t] = A(from[2 * t + 1]);
        for (int64_t t = end; t <= n; ++t) even[t] = column(c0 + 2 * t), odd[t] = column(c0 + 2 * t + 1);
        TP_INDEPENDENT
        for (int64_t t = 0; t < n; ++t) {
          to[t] = even[t] - even[t + 1];
          to[t + size] = odd[t] + even[t + 1];
          to[t + 2 * size] = even[t + 1] - odd[t];
          to[t + 3 * size] = odd[t] - odd[t + 1];
        }
      }
    });
    for (int64_t k = 0; k < products; ++k) std::fill(half + k * size + count, half + k * size + width, A(0));
    for (int64_t j = 0; j < 4; ++j) {
      for (int64_t block = 0; block < blocks; ++block) {
        const A* d = half + j * size + block * lanes;
        const int64_t matrix = blocks * g_.depth * lanes;
        A* to = in + j * matrix + (block * g_.depth + channel) * lanes;
        TP_INDEPENDENT
        for (int64_t l = 0; l < lanes; ++l) {
          const A d0 = d[l], d1 = d[4 * size + l], d2 = d[8 * size + l], d3 = d[12 * size + l];
          to[l] = d0 - d2;
          to[4 * matrix + l] = d1 + d2;
          to[8 * matrix + l] = d2 - d1;
          to[12 * matrix + l] = d1 - d3;
        }
      }
    }
  }

  // Computes A^T m A, the four outputs of each tile, for one map. Returns whether all are finite. In channels_last,
  // they take the place of `m`: first the upper rows of all tiles, then the lower ones.
  bool transform_output(int64_t group, int64_t map, int64_t first, int64_t count, A* m, A* out) const {
    const int64_t size = size_;
    const A shift = g_.bias ? A(g_.bias[group * g_.maps + map]) : A(0);
    A* const top = out;
    A* const bottom = out + 2 * size;
    int bad = 0;
    TP_INDEPENDENT
    for (int64_t t = 0; t < count; ++t) {
      A upper[4], lower[4];
      for (int j = 0; j < 4; ++j) {
        const A *x = m + j * size + t, a = x[4 * size], b = x[8 * size];
        upper[j] = (x[0] + a) + b;
        lower[j] = (a - b) - x[12 * size];
      }
      const A y0 = ((upper[0] + upper[1]) + upper[2]) + shift, y1 = ((upper[1] - upper[2]) - upper[3]) + shift;
      const A z0 = ((lower[0] + lower[1]) + lower[2]) + shift, z1 = ((lower[1] - lower[2]) - lower[3]) + shift;
      top[2 * t] = y0;
      top[2 * t + 1] = y1;
      bottom[2 * t] = z0;
      bottom[2 * t + 1] = z1;
      bad |= int(!is_finite(y0)) | int(!is_finite(y1)) | int(!is_finite(z0)) | int(!is_finite(z1));
    }
    if (!is_nchw()) {
      std::copy(out, out + 4 * size, m);
      return !bad;
    }
    for_runs(first, count, [=, this](const Run& run) {
      const int64_t width = min(2 * run.count, cols_.outputs - 2 * run.col);
      for (int64_t i = 0; i < 2 && 2 * run.row + i < rows_.outputs; ++i) {
        const A* from = (i ? bottom : top) + 2 * run.at;
        T* to = g_.target + g_.target_strides.at(run.image, group * g_.maps + map, 2 * run.row + i, 2 * run.col);
        TP_INDEPENDENT
        for (int64_t w = 0; w < width; ++w) to[w] = T(from[w]);
      }
    });
    return !bad;
  }

  void transpose_targets(int64_t group, int64_t first, int64_t count, const A* out) const {
    for_runs(first, count, [=, this](const Run& run) {
      const int64_t width = min(2 * run.count, cols_.outputs - 2 * run.col);
      for (int64_t i = 0; i < 2 && 2 * run.row + i < rows_.outputs; ++i) {
        transpose(g_.maps, width, out + 2 * (i * size_ + run.at), map_size(),
                  g_.target + g_.target_strides.at(run.image, group * g_.maps, 2 * run.row + i, 2 * run.col),
                  g_.target_strides.col);
      }
    });
  }

  const Gather<T> g_;
  Context& context_;
  const GatherAxis rows_, cols_;
  const Accumulate<A> kernel_;
  const int64_t down_, across_, tiles_, size_, rows_per_task_, row_size_;
  const A zeros_[32] = {};  // at least as many as the kernel has lanes
  A* filters_ = nullptr;    // [groups, 16, maps, depth]
  int64_t *from_ = nullptr, *to_ = nullptr, *off_ = nullptr;
};

}  // namespace tp::conv
