// fprop and dgrad of filters that move by one pixel at a time, in strips of registers.
//
// A thread computes `tile_rows` x `columns` neighbouring pixels of `maps` target maps. For every channel it reads rows
// of the source from shared memory, columns + K - 1 values each, and every value takes part in up to K * maps products
// per row of the tile: few reads per product, and all sums in registers. A block stages what its threads read, some
// channels at a time: windows of one or several images, and the filters.
//
// With a stride and a dilation of 1, dgrad is fprop with the filter turned by half a turn and a padding of K - 1 - pad.
#pragma once
#include "conv/strips.cuh"

namespace tp::conv {

// The shape of a thread's work.
template <int kernel, int tile_rows_, int columns_, int maps_>
struct StripTile {
  static constexpr int K = kernel, tile_rows = tile_rows_, columns = columns_, maps = maps_;
  static constexpr int width = columns % 4 == 0 ? 4 : 2;       // of vectors of the source
  static constexpr int weights = ceil_div(K * maps, 4) * 4;    // of one row of the filters of a thread's maps
  static constexpr int source_columns = columns + K - 1;
};

constexpr int strip_threads = 256, strip_bytes = 48 * 1024;

// How a batch is shared among blocks. A block's tile is `rows` x `cols` target pixels of `images` images in
// `map_groups` times the maps of a thread.
template <class T, class Tile>
struct StripPlan {
  using A = acc_t<T>;
  Gather<T> gather;
  Window<T> window;
  int images, row_tiles, strips, map_groups, chunk;  // row_tiles and strips of a block; channels staged at a time
  int threads;
  Divisor tiles_across, tiles_down, map_blocks, groups;
  Divisor per_map_groups, per_strips, per_row_tiles, per_chunk;
  int64_t first_image;
  int quads;  // elements per access to the target: 4, 2 or 1

  int shared_values() const { return window.values() + chunk * map_groups * Tile::K * Tile::weights; }
  int64_t blocks(int64_t batch) const {
    return ceil_div(batch, int64_t(images)) * tiles_across.value * tiles_down.value * map_blocks.value * groups.value;
  }
};

#ifdef __CUDACC__

// One thread's place in its block, and the block's in the batch.
struct StripPlace {
  int map_group, strip, row_tile, image;  // inside the block
  bool works;
  int64_t first_image;
  int group, map, row, col;  // of the block: its group, first map of that group, first pixel
};

template <class T, class Tile>
TP_DEVICE StripPlace strip_place(const StripPlan<T, Tile>& plan) {
  StripPlace at{};
  int item = int(threadIdx.x), block = int(blockIdx.x);
  int rest = plan.per_map_groups.divide(item);
  at.map_group = item;
  item = rest;
  rest = plan.per_strips.divide(item);
  at.strip = item;
  item = rest;
  at.image = plan.per_row_tiles.divide(item);
  at.row_tile = item;
  at.works = at.image < plan.images;

  rest = plan.map_blocks.divide(block);
  at.map = block * plan.map_groups * Tile::maps;
  block = rest;
  rest = plan.groups.divide(block);
  at.group = block;
  block = rest;
  rest = plan.tiles_across.divide(block);
  at.col = block * plan.strips * Tile::columns;
  block = rest;
  at.first_image = plan.first_image + int64_t(plan.tiles_down.divide(block)) * plan.images;
  at.row = block * plan.row_tiles * Tile::tile_rows;
  return at;
}

// The filters of the block's maps, `count` channels of them, as [channel][map group][row][column, map]. Returns whether
// this thread saw a weight that is not finite.
template <class T, class Tile>
TP_DEVICE bool stage_filters(const StripPlan<T, Tile>& plan, const StripPlace& at, acc_t<T>* filters, int channel,
                             int count) {
  using A = acc_t<T>;
  const Gather<T>& g = plan.gather;
  constexpr int K = Tile::K, M = Tile::maps;
  const T* const first = g.weight + at.group * g.group_stride;
  bool odd = false;
  for (int i = int(threadIdx.x); i < plan.map_groups * M * plan.chunk * K * K; i += plan.threads) {
    const int tap = i % (K * K), p = tap / K, q = tap % K;
    int c = i / (K * K);
    const int map = plan.per_chunk.divide(c), source = g.pass == Pass::dgrad ? K * K - 1 - tap : tap;
    if (c >= count) continue;
    A value = 0;
    if (at.map + map < g.maps) value = A(first[(at.map + map) * g.map_stride + (channel + c) * g.depth_stride + source]);
    odd = odd || !is_finite(value);
    filters[((c * plan.map_groups + map / M) * K + p) * Tile::weights + q * M + map % M] = value;
  }
  return odd;
}

// Adds the products of one channel: `source` is the thread's first value in the window, `filters` its maps' rows.
template <class Tile, class A>
TP_DEVICE void add_channel(const A* source, int pitch, const A* filters,
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

// Writes a thread's sums, with the bias of each map.
template <class T, class Tile>
TP_DEVICE void store_sums(const StripPlan<T, Tile>& plan, const StripPlace& at, int height, int present,
                          const acc_t<T> (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
  using A = acc_t<T>;
  const Gather<T>& g = plan.gather;
  const int col = at.col + at.strip * Tile::columns;
#pragma unroll
  for (int m = 0; m < Tile::maps; ++m) {
    const int map = at.map + at.map_group * Tile::maps + m;
    if (map >= g.maps) break;
    const A shift = g.bias ? A(g.bias[at.group * g.maps + map]) : A(0);
#pragma unroll
    for (int r = 0; r < Tile::tile_rows; ++r) {
      const int row = at.row + at.row_tile * Tile::tile_rows + r;
      if (row >= height) break;
      T* const to = g.target + g.target_strides.at(at.first_image + at.image, at.group * g.maps + map, row, col);
      if (plan.quads == 4 && Tile::columns % 4 == 0) {
        store_strip<4>(to, 1, present, m, shift, sum[r]);
      } else if (plan.quads >= 2) {
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
TP_DEVICE void store_plain_sums(const StripPlan<T, Tile>& plan, const StripPlace& at, int height, int present,
                                int pad_rows, int pad_cols) {
  using A = acc_t<T>;
  constexpr int K = Tile::K;
  const Gather<T>& g = plan.gather;
  const int col = at.col + at.strip * Tile::columns;
#pragma unroll 1
  for (int i = 0; i < Tile::maps * Tile::tile_rows * Tile::columns; ++i) {
    const int j = i % Tile::columns, r = i / Tile::columns % Tile::tile_rows, m = i / (Tile::columns * Tile::tile_rows);
    const int map = at.map + at.map_group * Tile::maps + m, row = at.row + at.row_tile * Tile::tile_rows + r;
    if (map >= g.maps || row >= height || j >= present) continue;
    A sum = 0;
#pragma unroll 1
    for (int k = 0; k < int(g.depth) * K * K; ++k) {
      const int q = k % K, p = k / K % K, c = k / (K * K), h = row - pad_rows + p, w = col + j - pad_cols + q;
      if (h < 0 || h >= plan.window.height || w < 0 || w >= plan.window.width) continue;
      const int64_t from = g.source_strides.at(at.first_image + at.image, at.group * g.depth + c, h, w);
      sum += A(g.source[from]) * A(g.weight[g.weight_at(at.group, map, c, K - 1 - p, K - 1 - q)]);
    }
    g.target[g.target_strides.at(at.first_image + at.image, at.group * g.maps + map, row, col + j)] = T(sum);
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(strip_threads) strips_gather(const __grid_constant__ StripPlan<T, Tile> plan) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  A* const window = reinterpret_cast<A*>(pool);
  A* const filters = window + plan.window.values();
  const Gather<T>& g = plan.gather;
  const StripPlace at = strip_place(plan);
  const int t = int(threadIdx.x), pad_rows = g.pass == Pass::dgrad ? Tile::K - 1 - int(g.rows.pad) : int(g.rows.pad),
            pad_cols = g.pass == Pass::dgrad ? Tile::K - 1 - int(g.cols.pad) : int(g.cols.pad);
  A sum[Tile::tile_rows][Tile::columns][Tile::maps] = {};
  bool odd = false;
  plan.window.clear(window, t, plan.threads);
  for (int channel = 0; channel < g.depth; channel += plan.chunk) {
    const int count = min(plan.chunk, int(g.depth) - channel);
    __syncthreads();
    plan.window.fill(window, at.first_image, g.n, at.group * g.depth + channel, count, at.row - pad_rows,
                     at.col - pad_cols, t, plan.threads);
    odd = stage_filters(plan, at, filters, channel, count) || odd;
    wait_for_copies();
    __syncthreads();
    if (!at.works) continue;
    const A* source = window +
                      (at.image * plan.chunk * plan.window.rows + at.row_tile * Tile::tile_rows) * plan.window.pitch +
                      at.strip * Tile::columns;
    const A* mine = filters + at.map_group * Tile::K * Tile::weights;
#pragma unroll 1
    for (int c = 0; c < count; ++c) {
      add_channel<Tile>(source, plan.window.pitch, mine, sum);
      source += plan.window.rows * plan.window.pitch;
      mine += plan.map_groups * Tile::K * Tile::weights;
    }
  }
  const bool plain = g.pass == Pass::dgrad && __syncthreads_or(odd);
  if (!at.works || at.first_image + at.image >= g.n) return;
  const int height = int(g.pass == Pass::fprop ? g.rows.out : g.rows.in),
            width = int(g.pass == Pass::fprop ? g.cols.out : g.cols.in);
  const int present = width - at.col - at.strip * Tile::columns;
  if (plain) return store_plain_sums(plan, at, height, present, pad_rows, pad_cols);
  store_sums(plan, at, height, present, sum);
}

// ---- the host's part

// The most images of one launch, whose blocks are counted in an int.
constexpr int64_t most_blocks = 1 << 30;

// Blocks that fill the device: small batches are cut into smaller blocks rather than leave multiprocessors idle.
constexpr int64_t enough_blocks = 528;  // four for each multiprocessor of an H200

template <class T, class Tile>
StripPlan<T, Tile> plan_strips(const Gather<T>& g) {
  using A = acc_t<T>;
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const auto least = [](int64_t a, int64_t b) { return int(min(a, b)); };
  const int strips = least(ceil_div(cols.outputs, int64_t(Tile::columns)), max(1, 64 / Tile::columns));
  const int map_groups = least(ceil_div(g.maps, int64_t(Tile::maps)), 8);
  int row_tiles = least(ceil_div(rows.outputs, int64_t(Tile::tile_rows)), max(1, strip_threads / (strips * map_groups)));
  const int pitch = pitch_for(strips * Tile::columns + Tile::K - 1, Tile::width);
  const auto bytes = [&](int images, int chunk) {
    return (int64_t(images) * (row_tiles * Tile::tile_rows + Tile::K - 1) * pitch + map_groups * Tile::K * Tile::weights) *
           chunk * int64_t(sizeof(A));
  };
  while (row_tiles > 1 && bytes(1, 1) > strip_bytes) row_tiles = (row_tiles + 1) / 2;
  const int64_t across = ceil_div(cols.outputs, int64_t(strips * Tile::columns)),
                down = ceil_div(rows.outputs, int64_t(row_tiles * Tile::tile_rows)),
                map_blocks = ceil_div(g.maps, int64_t(map_groups * Tile::maps));
  const int64_t tiles = across * down * map_blocks * g.groups;
  int images = 1;
  if (across * down == 1) {
    const int items = strips * row_tiles * map_groups, most = max(1, 160 / items);
    images = least(most, max(int64_t(1), g.n * tiles / enough_blocks));
    while (images > 1 && bytes(images, 1) > strip_bytes / 2) --images;
  }
  int chunk = least(g.depth, 32);
  while (chunk > 1 && bytes(images, chunk) > strip_bytes * 2 / 3) --chunk;
  const int items = strips * row_tiles * map_groups * images;
  const int pad_cols = g.pass == Pass::dgrad ? Tile::K - 1 - int(g.cols.pad) : int(g.cols.pad);
  int quads = 1;
  const int64_t most_quad = g.target_strides.col == 1 ? 4 : 1;
  for (int width = 2; width <= most_quad; width *= 2) {
    const bool fits = cols.outputs % width == 0 && reinterpret_cast<uintptr_t>(g.target) % (width * sizeof(T)) == 0;
    if (fits) quads = width;
  }
  return {g,
          Window<T>(g.source, g.source_strides, rows.sources, cols.sources, images, chunk,
                    row_tiles * Tile::tile_rows + Tile::K - 1, pitch, across == 1 ? -pad_cols : 1),
          images,
          row_tiles,
          strips,
          map_groups,
          chunk,
          ceil_div(items, 32) * 32,
          Divisor(across),
          Divisor(down),
          Divisor(map_blocks),
          Divisor(g.groups),
          Divisor(map_groups),
          Divisor(strips),
          Divisor(row_tiles),
          Divisor(chunk),
          0,
          quads};
}

template <class T, class Tile>
void launch_strips(const Gather<T>& g, Context& context) {
  StripPlan<T, Tile> plan = plan_strips<T, Tile>(g);
  const int64_t per_launch = max(int64_t(1), most_blocks / max(int64_t(1), plan.blocks(1))) * plan.images;
  for (; plan.first_image < g.n; plan.first_image += per_launch) {
    const int64_t blocks = plan.blocks(min(per_launch, g.n - plan.first_image));
    strips_gather<T, Tile><<<unsigned(blocks), unsigned(plan.threads), size_t(plan.shared_values()) * sizeof(acc_t<T>),
                             cudaStream_t(context.stream)>>>(plan);
    check_launch("register_tiled");
  }
}

#endif

}  // namespace tp::conv
