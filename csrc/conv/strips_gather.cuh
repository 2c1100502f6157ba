// fprop and dgrad with stride and dilation 1, by strips of pixels in registers.
//
// A thread computes `tile_rows` x `columns` neighbouring pixels of `maps` target maps. For each channel it reads rows
// of columns + K - 1 source values from shared memory, and uses every value in up to K * maps products per row of the
// tile. So it reads little per product, and all its sums stay in registers.
//
// A block keeps the filters of its maps in shared memory, and processes the whole batch with them. It stages windows of
// one or several images, some channels at a time; while one window arrives, it computes with the previous one.
//
// With stride and dilation 1, dgrad is fprop with the filter rotated by 180 degrees and a padding of K - 1 - pad. Rows
// of this padding are neither stored nor multiplied; enum Ends says what happens to its columns.
#pragma once
#include "conv/strip_division.cuh"

namespace tp::conv {

// Copies the filters of the block's maps to shared memory, as [channel][map group][row][column, map]. Values that need
// no conversion are copied asynchronously.
template <class T, class Tile>
TP_DEVICE void stage_filters(const StripPlan<T, Tile>& plan, const StripPosition& at, acc_t<T>* filters) {
  using A = acc_t<T>;
  const Gather<T>& g = plan.gather;
  constexpr int K = Tile::K, M = Tile::maps;
  const T* const first = g.weight + at.group * g.group_stride;
#pragma unroll 2
  for (int i = int(threadIdx.x); i < plan.map_groups * M * int(g.depth) * K * K; i += int(blockDim.x)) {
    const int tap = i % (K * K), source = g.pass == Pass::dgrad ? K * K - 1 - tap : tap;
    int channel = i / (K * K);
    const int map = plan.per_depth.divide(channel);
    const bool exists = at.map + map < g.maps;
    const T* const from = first + (exists ? (at.map + map) * g.map_stride + channel * g.depth_stride + source : 0);
    A* const to =
        filters + ((channel * plan.map_groups + map / M) * K + tap / K) * Tile::weights + tap % K * M + map % M;
    if constexpr (std::is_same<T, float>::value) {
      block::copy_or_zero<4>(to, from, exists);
    } else {
      *to = exists ? A(*from) : A(0);
    }
  }
}

// Whether one of the staged weights that this thread checks is infinite or NaN.
template <class Tile, class A>
TP_DEVICE bool any_not_finite(const A* filters, int count) {
  bool found = false;
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
    if (i % Tile::weights < Tile::K * Tile::maps) found = found || !is_finite(filters[i]);  // the rest is padding
  }
  return found;
}

// Adds the products of one row of the source and one row of the filters.
template <class Tile, class A>
TP_DEVICE void add_row(const A (&values)[Tile::source_columns], const A (&weights)[Tile::K * Tile::maps],
                       A (&sum)[Tile::columns][Tile::maps]) {
#pragma unroll
  for (int q = 0; q < Tile::K; ++q) {
#pragma unroll
    for (int j = 0; j < Tile::columns; ++j) {
      const int from = Tile::source(j, q);
      if (from < 0 || from >= Tile::source_columns) continue;
#pragma unroll
      for (int m = 0; m < Tile::maps; ++m) sum[j][m] += weights[q * Tile::maps + m] * values[from];
    }
  }
}

// Adds the products of one channel. `source` is the thread's first value in the window, `filters` the rows of its maps.
// Row i of the tile's window exists if `row` + i is below `height`: dgrad leaves out rows that do not exist, and fprop
// reads zeros there. Bit v of `vectors` says whether vector v of a row exists (Ends::vectors). Whichever takes fewer
// registers, the thread holds all filters and one row of the source, or one row of the filters and as many source rows
// as the tile has.
template <class Tile, bool backward, class A>
TP_DEVICE void add_channel(const A* source, int pitch, unsigned vectors, const A* filters, int row, int height,
                           A (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
  constexpr int K = Tile::K, R = Tile::tile_rows;
  const auto load_row = [&](int i, A(&values)[Tile::source_columns]) {
    if constexpr (Tile::ends == Ends::vectors) {
      load_strip<Tile::width>(source + i * pitch, vectors, values);
    } else {
      load_strip<Tile::width>(source + i * pitch, values);
    }
  };
  const auto exists = [&](int i) { return !backward || unsigned(row + i) < unsigned(height); };
  if constexpr (Tile::holds_filters) {
    A weights[K][K * Tile::maps];
#pragma unroll
    for (int p = 0; p < K; ++p) load_strip<4>(filters + p * Tile::weights, weights[p]);
#pragma unroll
    for (int i = 0; i < R + K - 1; ++i) {
      if (!exists(i)) continue;
      A values[Tile::source_columns];
      load_row(i, values);
#pragma unroll
      for (int r = max(0, i - K + 1); r < min(R, i + 1); ++r) add_row<Tile>(values, weights[i - r], sum[r]);
    }
  } else if constexpr (R == 1) {
#pragma unroll Tile::unroll
    for (int p = 0; p < K; ++p) {
      if (!exists(p)) continue;
      A values[Tile::source_columns], weights[K * Tile::maps];
      load_row(p, values);
      load_strip<4>(filters + p * Tile::weights, weights);
      add_row<Tile>(values, weights, sum[0]);
    }
  } else {
    A values[R][Tile::source_columns], weights[K * Tile::maps];
#pragma unroll
    for (int i = 0; i < R + K - 1; ++i) {
      if (exists(i)) load_row(i, values[i % R]);
      const int p = i - R + 1;
      if (p < 0) continue;
      load_strip<4>(filters + p * Tile::weights, weights);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (exists(p + r)) add_row<Tile>(values[(p + r) % R], weights, sum[r]);
      }
    }
  }
}

// Stores a thread's sums for one image, in vectors of `lanes` elements. `to` is its first pixel; `maps`, `rows` and
// `columns` say how much of its target exists.
template <int lanes, class T, class Tile>
TP_DEVICE void store_sums(T* to, const Strides& strides, int maps, int rows, int columns,
                          const acc_t<T> (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
#pragma unroll
  for (int m = 0; m < Tile::maps; ++m) {
    if (m >= maps) break;
    T* row = to;
#pragma unroll
    for (int r = 0; r < Tile::tile_rows; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (int j = 0; j + lanes <= Tile::columns; j += lanes) {
        if (j + lanes > columns) break;
        block::Vector<T, lanes> v;
#pragma unroll
        for (int k = 0; k < lanes; ++k) v.v[k] = T(sum[r][j + k][m]);
        if constexpr (lanes > 1) {
          store_vector<lanes>(row + j, v);
        } else {
          row[j * strides.col] = v.v[0];
        }
      }
      row += strides.row;
    }
    to += strides.channel;
  }
}

// As above, in vectors of maps, which must be contiguous in a pixel and exist entirely or not at all.
template <class T, class Tile>
TP_DEVICE void store_pixels(T* to, const Strides& strides, int maps, int rows, int columns,
                            const acc_t<T> (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
  constexpr int width = Tile::map_width;
#pragma unroll
  for (int r = 0; r < Tile::tile_rows; ++r) {
    if (r >= rows) break;
#pragma unroll
    for (int j = 0; j < Tile::columns; ++j) {
      if (j >= columns) break;
      T* const pixel = to + r * strides.row + j * strides.col;
#pragma unroll
      for (int m = 0; m < Tile::maps; m += width) {
        if (m >= maps) break;
        block::Vector<T, width> v;
#pragma unroll
        for (int k = 0; k < width; ++k) v.v[k] = T(sum[r][j][m + k]);
        store_vector<width>(pixel + m, v);
      }
    }
  }
}

// dgrad with an infinite or NaN weight: computes each element only from the products that exist. The loops are not
// unrolled, so that this rare path takes no registers from the usual one.
template <class T, class Tile>
TP_DEVICE void store_plain_sums(const StripPlan<T, Tile>& plan, const StripPosition& at, int64_t image, int height,
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

// Loads the bias, initializes the barriers, and writes the zeros that no copy will overwrite.
template <class T, class Tile>
TP_DEVICE __forceinline__ void prepare_shared(const StripPlan<T, Tile>& plan, const StripPosition& at, acc_t<T>* shifts,
                                              acc_t<T>* windows, block::Barrier (&arrived)[2]) {
  using A = acc_t<T>;
  const Gather<T>& g = plan.gather;
  const int t = int(threadIdx.x), threads = int(blockDim.x);
  for (int i = t; i < plan.map_groups * Tile::maps; i += threads) {
    shifts[i] = g.bias && at.map + i < g.maps ? A(g.bias[at.group * g.maps + at.map + i]) : A(0);
  }
  if (t < 2) arrived[t].init(threads / block::warp_size);
  plan.window.clear(windows, t, threads);
  plan.window.clear(windows + plan.window.values(), t, threads);
}

// The sums of a tile start from the bias of their maps.
template <class Tile, class A>
TP_DEVICE __forceinline__ void start_sums(const A* shifts, A (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
#pragma unroll
  for (int m = 0; m < Tile::maps; ++m) {
    const A shift = shifts[m];
#pragma unroll
    for (int i = 0; i < Tile::tile_rows * Tile::columns; ++i) sum[i / Tile::columns][i % Tile::columns][m] = shift;
  }
}

// Adds the products of `count` staged channels. `filters` are those of the first channel.
template <bool backward, class T, class Tile>
TP_DEVICE __forceinline__ void add_window(const StripPlan<T, Tile>& plan, const StripPosition& at,
                                          const StripSource& from, const acc_t<T>* window, const acc_t<T>* filters,
                                          int count, acc_t<T> (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
  const auto* source =
      window + at.image * plan.window.image_values + (from.tile_row - from.row) * plan.window.pitch + from.strip_col;
  const auto* mine = filters + at.map_group * Tile::K * Tile::weights;
#pragma unroll 1
  for (int c = 0; c < count; ++c) {
    add_channel<Tile, backward>(source, plan.window.pitch, from.vectors, mine, from.tile_row, plan.window.height, sum);
    source += plan.window.rows * plan.window.pitch;
    mine += plan.map_groups * Tile::K * Tile::weights;
  }
}

// Stores a thread's sums for one image. `pixels`: in vectors of maps.
template <bool pixels, class T, class Tile>
TP_DEVICE __forceinline__ void store_tile(const StripPlan<T, Tile>& plan, const StripPosition& at,
                                          const StripTarget<T>& target, int64_t image, bool plain,
                                          const acc_t<T> (&sum)[Tile::tile_rows][Tile::columns][Tile::maps]) {
  const Gather<T>& g = plan.gather;
  T* const to = target.first + image * g.target_strides.image;
  const int maps = int(g.maps) - target.map, rows = target.height - target.row, columns = target.width - target.col;
  if constexpr (pixels) {
    store_pixels<T, Tile>(to, g.target_strides, maps, rows, columns, sum);
  } else if (plain) {
    store_plain_sums(plan, at, image, target.height, target.width);
  } else if (Tile::columns % 4 == 0 && plan.vector == 4) {
    store_sums<4, T, Tile>(to, g.target_strides, maps, rows, columns, sum);
  } else if (plan.vector >= 2) {
    store_sums<2, T, Tile>(to, g.target_strides, maps, rows, columns, sum);
  } else {
    store_sums<1, T, Tile>(to, g.target_strides, maps, rows, columns, sum);
  }
}

// `pixels`: the target is stored in vectors of maps.
template <class T, class Tile, bool backward, bool pixels>
__global__ void __launch_bounds__(Tile::threads, strip_blocks<Tile, acc_t<T>>)
    strips_gather(const __grid_constant__ StripPlan<T, Tile> plan) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  __shared__ block::Barrier arrived[2];
  const Gather<T>& g = plan.gather;
  const Window<T>& window = plan.window;
  A *const filters = reinterpret_cast<A*>(pool), *const shifts = filters + plan.filter_values(),
           *const windows = shifts + plan.shift_values();
  const StripPosition at = strip_position(plan);
  const int t = int(threadIdx.x), threads = int(blockDim.x), depth = int(g.depth);
  const StripSource from = strip_source<backward>(plan, at);
  const StripTarget<T> target = strip_target<backward>(plan, at);
  prepare_shared(plan, at, shifts, windows, arrived);
  bool plain = false;                                     // dgrad found a weight that is infinite or NaN
  int image_tile = at.image_slot, channel = -plan.chunk;  // before the first step there is nothing to compute with
  A sum[Tile::tile_rows][Tile::columns][Tile::maps];
  // Each step starts to copy the next window, and computes with the one that has arrived. The first step only copies.
  for (int step = 0;; ++step) {
    const int current = step % 2;
    int next_tile = image_tile, next_channel = channel + plan.chunk;
    if (next_channel >= depth) {
      next_channel = 0;
      next_tile += plan.image_slots;
    }
    const bool more = next_tile < plan.image_tiles;
    if (step > 0) window.wait(arrived[current], (step - 1) / 2 % 2);
    __syncthreads();
    if (more) {
      window.fill(windows + (1 - current) * window.values(), int64_t(next_tile) * plan.images, g.n,
                  at.group * g.depth + next_channel, min(plan.chunk, depth - next_channel), from.row, from.col, t,
                  threads, arrived[1 - current]);
    }
    // While the first window is on its way, load the filters; at step 1, dgrad checks them for infinities and NaN.
    if (step == 0) {
      stage_filters(plan, at, filters);
    } else {
      if (backward && step == 1) plain = __syncthreads_or(any_not_finite<Tile>(filters, plan.filter_values()));
      if (channel == 0) start_sums<Tile>(shifts + at.map_group * Tile::maps, sum);
      const int count = at.works ? min(plan.chunk, depth - channel) : 0;
      add_window<backward>(plan, at, from, windows + current * window.values(),
                           filters + channel * plan.map_groups * Tile::K * Tile::weights, count, sum);
      // After the last channel of a tile, store the sums.
      const int64_t image = int64_t(image_tile) * plan.images + at.image;
      if (channel + plan.chunk >= depth && at.works && image < g.n) {
        store_tile<pixels>(plan, at, target, image, plain, sum);
      }
    }
    if (!more) break;
    image_tile = next_tile;
    channel = next_channel;
  }
}

// ---- the host's part

// Launches the kernel, if the filters of one group of maps and the window of one tile fit in shared memory. Otherwise
// returns false.
template <class T, class Tile>
bool launch_strips(const Gather<T>& g, Context& context) {
  if (!fits_ends<Tile>(g)) return false;
  StripDivision<T, Tile> division{g};
  if (!division.choose_tile()) return false;
  division.choose_images();
  if (!division.divisible()) return false;
  const StripPlan<T, Tile> plan = division.plan();
  const bool backward = division.backward;
  auto kernel = strips_gather<T, Tile, true, false>;
  if constexpr (!Tile::for_dgrad) {
    if (!backward) kernel = strips_gather<T, Tile, false, false>;
  }
  if constexpr (!Tile::for_dgrad && Tile::map_width > 1) {
    const bool whole =
        g.maps % Tile::map_width == 0 && reinterpret_cast<uintptr_t>(g.target) % (Tile::map_width * sizeof(T)) == 0;
    if (!backward && plan.vector == 1 && g.target_strides.channel == 1 && whole) {
      kernel = strips_gather<T, Tile, false, true>;
    }
  }
  const int shared_bytes = int(plan.shared_bytes());
  block::allow_shared_memory(kernel, shared_bytes);
  kernel<<<unsigned(plan.blocks()), unsigned(plan.threads), size_t(shared_bytes), cudaStream_t(context.stream)>>>(plan);
  check_launch("register_tiled");
  return true;
}

}  // namespace tp::conv
