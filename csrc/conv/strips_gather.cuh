// fprop and dgrad of filters that move by one pixel at a time, in strips of registers.
//
// A thread computes `tile_rows` x `columns` neighbouring pixels of `maps` target maps. For every channel it reads rows
// of the source from shared memory, columns + K - 1 values each, and every value takes part in up to K * maps products
// per row of the tile: few reads per product, and all sums in registers.
//
// A block keeps the filters of its maps in shared memory and goes over the batch with them: it stages windows of one or
// several images, some channels at a time, each while it computes with the one before.
//
// With a stride and a dilation of 1, dgrad is fprop with the filter turned by half a turn and a padding of K - 1 - pad.
#pragma once
#include "conv/strips.cuh"

namespace tp::conv {

// The shape of a thread's work.
template <int kernel, int tile_rows_, int columns_, int maps_>
struct StripTile {
  static constexpr int K = kernel, tile_rows = tile_rows_, columns = columns_, maps = maps_;
  static constexpr int width = columns % 4 == 0 ? 4 : 2;     // of vectors of the source
  static constexpr int weights = ceil_div(K * maps, 4) * 4;  // of one row of the filters of a thread's maps
  static constexpr int source_columns = columns + K - 1;
};

constexpr int strip_threads = 256, strip_bytes = 48 * 1024;

// How a batch is shared among blocks. A block's tile is row_tiles * tile_rows x strips * columns target pixels of
// `images` images, in `map_groups` times the maps of a thread; it goes on to the images `image_slots` tiles further.
template <class T, class Tile>
struct StripPlan {
  using A = acc_t<T>;
  Gather<T> gather;
  Window<T> window;
  int images, row_tiles, strips, map_groups, chunk;  // row_tiles and strips of a block; channels staged at a time
  int image_tiles, image_slots, pad_rows, pad_cols;
  int threads, vector;  // elements per access to the target: 4, 2 or 1
  Divisor tiles_across, tiles_down, map_blocks, groups;
  Divisor per_map_groups, per_strips, per_images, per_depth;

  TP_HD int filter_values() const { return int(gather.depth) * map_groups * Tile::K * Tile::weights; }
  int64_t shared_bytes() const { return (filter_values() + 2 * window.values()) * int64_t(sizeof(A)); }
  int64_t blocks() const {
    return int64_t(image_slots) * tiles_across.value * tiles_down.value * map_blocks.value * groups.value;
  }
};

// One thread's place in its block, and the block's in the batch.
struct StripPlace {
  int map_group, strip, image, row_tile;  // inside the block
  int group, map, row, col, image_slot;   // of the block: its group, first map of that group, first pixel
};

template <class T, class Tile>
TP_DEVICE StripPlace strip_place(const StripPlan<T, Tile>& plan) {
  StripPlace at{};
  int rest = int(threadIdx.x);
  at.map_group = rest;
  rest = plan.per_map_groups.divide(at.map_group);
  at.strip = rest;
  rest = plan.per_strips.divide(at.strip);
  at.image = rest;
  at.row_tile = plan.per_images.divide(at.image);

  int map_block = int(blockIdx.x), across, down;
  at.group = plan.map_blocks.divide(map_block);
  across = plan.groups.divide(at.group);
  down = plan.tiles_across.divide(across);
  at.image_slot = plan.tiles_down.divide(down);
  at.map = map_block * plan.map_groups * Tile::maps;
  at.col = across * plan.strips * Tile::columns;
  at.row = down * plan.row_tiles * Tile::tile_rows;
  return at;
}

// The filters of the block's maps as [channel][map group][row][column, map]. Returns whether this thread saw a weight
// that is not finite.
template <class T, class Tile>
TP_DEVICE bool stage_filters(const StripPlan<T, Tile>& plan, const StripPlace& at, acc_t<T>* filters) {
  using A = acc_t<T>;
  const Gather<T>& g = plan.gather;
  constexpr int K = Tile::K, M = Tile::maps;
  const T* const first = g.weight + at.group * g.group_stride;
  bool odd = false;
  for (int i = int(threadIdx.x); i < plan.map_groups * M * int(g.depth) * K * K; i += int(blockDim.x)) {
    const int tap = i % (K * K), p = tap / K, q = tap % K;
    int channel = i / (K * K);
    const int map = plan.per_depth.divide(channel), source = g.pass == Pass::dgrad ? K * K - 1 - tap : tap;
    A value = 0;
    if (at.map + map < g.maps) value = A(first[(at.map + map) * g.map_stride + channel * g.depth_stride + source]);
    odd = odd || !is_finite(value);
    filters[((channel * plan.map_groups + map / M) * K + p) * Tile::weights + q * M + map % M] = value;
  }
  return odd;
}

// Adds the products of one channel: `source` is the thread's first value in the window, `filters` its maps' rows. Row i
// of the tile's window exists if `row` + i is below `height`; those that do not may be skipped.
template <class Tile, class A>
TP_DEVICE void add_channel(const A* source, int pitch, const A* filters, bool skips, int row, int height,
                           A (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
  constexpr int K = Tile::K, M = Tile::maps, R = Tile::tile_rows;
  constexpr bool all_rows = R > 1;  // each row of the filters is used by several rows of the tile
  A weights[all_rows ? K : 1][K * M];
  if (all_rows) {
#pragma unroll
    for (int p = 0; p < K; ++p) load_strip<4>(filters + p * Tile::weights, weights[all_rows ? p : 0]);
  }
#pragma unroll
  for (int i = 0; i < R + K - 1; ++i) {
    if (skips && unsigned(row + i) >= unsigned(height)) continue;
    A values[Tile::source_columns];
    load_strip<Tile::width>(source + i * pitch, values);
    if (!all_rows) load_strip<4>(filters + i * Tile::weights, weights[0]);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int p = i - r;
      if (p < 0 || p >= K) continue;
#pragma unroll
      for (int q = 0; q < K; ++q) {
#pragma unroll
        for (int j = 0; j < Tile::columns; ++j) {
#pragma unroll
          for (int m = 0; m < M; ++m) sum[r][j][m] += weights[all_rows ? p : 0][q * M + m] * values[j + q];
        }
      }
    }
  }
}

template <int width, class T, class A, int columns, int maps>
TP_DEVICE void store_strip(T* to, int64_t stride, int present, int m, A shift, const A (&sum)[columns][maps]) {
  using V = block::Vector<T, width>;
#pragma unroll
  for (int j = 0; j < columns; j += width) {
    if (j + width > present) break;
    V v;
#pragma unroll
    for (int k = 0; k < width; ++k) v.v[k] = T(sum[j + k < columns ? j + k : 0][m] + shift);
    if (width > 1) {
      *reinterpret_cast<V*>(to + j) = v;
    } else {
      to[j * stride] = v.v[0];
    }
  }
}

// Writes a thread's sums for one image, with the bias of each map; height and width are the target's.
template <class T, class Tile>
TP_DEVICE void store_sums(const StripPlan<T, Tile>& plan, const StripPlace& at, int64_t image, int height, int width,
                          const acc_t<T> (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
  using A = acc_t<T>;
  const Gather<T>& g = plan.gather;
  const int col = at.col + at.strip * Tile::columns, row = at.row + at.row_tile * Tile::tile_rows;
  const int map = at.map + at.map_group * Tile::maps, present = width - col;
  T* const first = g.target + g.target_strides.at(image, at.group * g.maps + map, row, col);
#pragma unroll
  for (int m = 0; m < Tile::maps; ++m) {
    if (map + m >= g.maps) break;
    const A shift = g.bias ? A(g.bias[at.group * g.maps + map + m]) : A(0);
#pragma unroll
    for (int r = 0; r < Tile::tile_rows; ++r) {
      if (row + r >= height) break;
      T* const to = first + m * g.target_strides.channel + r * g.target_strides.row;
      if (plan.vector == 4 && Tile::columns % 4 == 0) {
        store_strip<4>(to, 1, present, m, shift, sum[r]);
      } else if (plan.vector >= 2) {
        store_strip<2>(to, 1, present, m, shift, sum[r]);
      } else {
        store_strip<1>(to, g.target_strides.col, present, m, shift, sum[r]);
      }
    }
  }
}

// dgrad with a weight that is not finite: each element from the products that exist, one after another. The loops stay
// loops, so that this rare path takes no registers from the usual one.
template <class T, class Tile>
TP_DEVICE void store_plain_sums(const StripPlan<T, Tile>& plan, const StripPlace& at, int64_t image, int height,
                                int width) {
  using A = acc_t<T>;
  constexpr int K = Tile::K;
  const Gather<T>& g = plan.gather;
#pragma unroll 1
  for (int i = 0; i < Tile::maps * Tile::tile_rows * Tile::columns; ++i) {
    const int j = i % Tile::columns, r = i / Tile::columns % Tile::tile_rows, m = i / (Tile::columns * Tile::tile_rows);
    const int map = at.map + at.map_group * Tile::maps + m, row = at.row + at.row_tile * Tile::tile_rows + r;
    const int col = at.col + at.strip * Tile::columns + j;
    if (map >= g.maps || row >= height || col >= width) continue;
    A sum = 0;
#pragma unroll 1
    for (int k = 0; k < int(g.depth) * K * K; ++k) {
      const int q = k % K, p = k / K % K, c = k / (K * K), h = row - (K - 1 - int(g.rows.pad)) + p,
                w = col - (K - 1 - int(g.cols.pad)) + q;
      if (h < 0 || h >= plan.window.height || w < 0 || w >= plan.window.width) continue;
      const int64_t from = g.source_strides.at(image, at.group * g.depth + c, h, w);
      sum += A(g.source[from]) * A(g.weight[g.weight_at(at.group, map, c, K - 1 - p, K - 1 - q)]);
    }
    g.target[g.target_strides.at(image, at.group * g.maps + map, row, col)] = T(sum);
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(strip_threads) strips_gather(const __grid_constant__ StripPlan<T, Tile> plan) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  const Gather<T>& g = plan.gather;
  const Window<T>& window = plan.window;
  A *const filters = reinterpret_cast<A*>(pool), *const windows = filters + plan.filter_values();
  const StripPlace at = strip_place(plan);
  const int t = int(threadIdx.x), threads = int(blockDim.x), depth = int(g.depth);
  const int row = at.row - plan.pad_rows, col = at.col - plan.pad_cols;
  const bool works = at.row_tile < plan.row_tiles, backward = g.pass == Pass::dgrad;
  const int height = int(backward ? g.rows.in : g.rows.out), width = int(backward ? g.cols.in : g.cols.out);
  const auto stage = [&](A* to, int image_tile, int channel) {
    window.fill(to, int64_t(image_tile) * plan.images, g.n, at.group * g.depth + channel,
                min(plan.chunk, depth - channel), row, col, t, threads);
  };
  window.clear(windows, t, threads);
  window.clear(windows + window.values(), t, threads);
  __syncthreads();
  stage(windows, at.image_slot, 0);
  const bool odd = stage_filters(plan, at, filters);
  const bool plain = backward && __syncthreads_or(odd);
  int current = 0;
  for (int image_tile = at.image_slot; image_tile < plan.image_tiles; image_tile += plan.image_slots) {
    A sum[Tile::tile_rows][Tile::columns][Tile::maps] = {};
    for (int channel = 0; channel < depth; channel += plan.chunk) {
      wait_for_copies();
      __syncthreads();
      A* const next = windows + (1 - current) * window.values();
      if (channel + plan.chunk < depth) {
        stage(next, image_tile, channel + plan.chunk);
      } else if (image_tile + plan.image_slots < plan.image_tiles) {
        stage(next, image_tile + plan.image_slots, 0);
      }
      const int first_row = at.row_tile * Tile::tile_rows, end = works ? min(plan.chunk, depth - channel) : 0;
      const A* source = windows + current * window.values() + at.image * window.image_values +
                        first_row * window.pitch + at.strip * Tile::columns;
      const A* mine = filters + (channel * plan.map_groups + at.map_group) * Tile::K * Tile::weights;
#pragma unroll 1
      for (int c = 0; c < end; ++c) {
        add_channel<Tile>(source, window.pitch, mine, backward, row + first_row, window.height, sum);
        source += window.rows * window.pitch;
        mine += plan.map_groups * Tile::K * Tile::weights;
      }
      current = 1 - current;
    }
    const int64_t image = int64_t(image_tile) * plan.images + at.image;
    if (!works || image >= g.n) continue;
    plain ? store_plain_sums(plan, at, image, height, width) : store_sums(plan, at, image, height, width, sum);
  }
}

// ---- the host's part

// Blocks that keep the 132 multiprocessors of an H200 busy: small batches are cut into smaller blocks.
constexpr int64_t enough_strip_blocks = 528;

// Threads for an H200, about four times as many as run at once: with fewer, blocks take several images one after
// another, but the last ones leave multiprocessors idle.
constexpr int64_t strip_threads_in_all = 132 * 4096;

// Launches the kernel, if the filters of one group of maps and the window of one tile fit into shared memory.
template <class T, class Tile>
bool launch_strips(const Gather<T>& g, Context& context) {
  using A = acc_t<T>;
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const bool backward = g.pass == Pass::dgrad;
  const int pad_rows = int(backward ? Tile::K - 1 - g.rows.pad : g.rows.pad),
            pad_cols = int(backward ? Tile::K - 1 - g.cols.pad : g.cols.pad);
  const auto least = [](int64_t a, int64_t b) { return int(min(a, b)); };
  const int64_t filter_bytes = g.depth * Tile::K * Tile::weights * int64_t(sizeof(A));  // of one group of maps
  const int strips = least(ceil_div(cols.outputs, int64_t(Tile::columns)), max(1, 64 / Tile::columns));
  const int64_t all_groups = ceil_div(g.maps, int64_t(Tile::maps)),
                most_groups = min(int64_t(8), strip_bytes / 2 / filter_bytes);
  if (most_groups == 0) return false;
  const int map_groups = int(ceil_div(all_groups, ceil_div(all_groups, most_groups)));  // the same number in each block
  int row_tiles =
      least(ceil_div(rows.outputs, int64_t(Tile::tile_rows)), max(1, strip_threads / (strips * map_groups)));
  const int pitch = pitch_for(strips * Tile::columns + Tile::K - 1, Tile::width);
  const auto fits = [&](int images, int chunk) {
    const int64_t values =
        Window<T>::image_pitch(chunk * (row_tiles * Tile::tile_rows + Tile::K - 1) * pitch, Tile::width);
    return map_groups * filter_bytes + 2 * (images * values + 4) * int64_t(sizeof(A)) <= strip_bytes;
  };
  while (row_tiles > 1 && !fits(1, 1)) row_tiles = (row_tiles + 1) / 2;
  if (!fits(1, 1)) return false;
  const int64_t across = ceil_div(cols.outputs, int64_t(strips * Tile::columns)),
                down = ceil_div(rows.outputs, int64_t(row_tiles * Tile::tile_rows)),
                map_blocks = ceil_div(g.maps, int64_t(map_groups * Tile::maps));
  const int64_t tiles = across * down * map_blocks * g.groups;
  const int items = strips * row_tiles * map_groups;
  int images = 1;
  if (across * down == 1) {
    images = least(max(1, 224 / items), max(int64_t(1), g.n * tiles / enough_strip_blocks));
    while (images > 1 && !fits(images, 1)) --images;
  }
  int chunk = least(g.depth, 32);
  while (chunk > 1 && !fits(images, chunk)) --chunk;
  const int threads = ceil_div(items * images, 32) * 32;
  const int64_t image_tiles = ceil_div(g.n, int64_t(images));
  // Where there are enough blocks, each takes so many images that staging its filters does not count for much.
  const int64_t least_tiles = ceil_div(map_groups * filter_bytes, int64_t(threads * 4 * sizeof(A)));
  const int64_t many = min(ceil_div(image_tiles, least_tiles), strip_threads_in_all / threads / tiles);
  const int64_t slots = min(image_tiles, max(max(int64_t(1), 2 * enough_strip_blocks / tiles), many));
  if (image_tiles >= most_quotient || tiles * slots >= most_quotient) return false;
  int vector = 1;
  for (int width = 2; width <= 4 && g.target_strides.col == 1; width *= 2) {
    if (cols.outputs % width == 0 && reinterpret_cast<uintptr_t>(g.target) % (width * sizeof(T)) == 0) vector = width;
  }
  const StripPlan<T, Tile> plan{
      g,
      Window<T>(g.source, g.source_strides, rows.sources, cols.sources, images, chunk,
                row_tiles * Tile::tile_rows + Tile::K - 1, pitch, Tile::width, across == 1 ? -pad_cols : 1),
      images,
      row_tiles,
      strips,
      map_groups,
      chunk,
      int(image_tiles),
      int(slots),
      pad_rows,
      pad_cols,
      threads,
      vector,
      Divisor(across),
      Divisor(down),
      Divisor(map_blocks),
      Divisor(g.groups),
      Divisor(map_groups),
      Divisor(strips),
      Divisor(images),
      Divisor(g.depth)};
  strips_gather<T, Tile>
      <<<unsigned(plan.blocks()), unsigned(threads), size_t(plan.shared_bytes()), cudaStream_t(context.stream)>>>(plan);
  check_launch("register_tiled");
  return true;
}

}  // namespace tp::conv
