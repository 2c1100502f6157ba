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
#include "conv/strip_tile.cuh"

namespace tp::conv {

// Copies the filters of the block's maps to shared memory, as [channel][map group][row][column, map]. Values that need
// no conversion are copied asynchronously.
template <class T, class Tile>
TP_DEVICE void stage_filters(const StripPlan<T, Tile>& plan, const StripPlace& at, acc_t<T>* filters) {
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

// `pixels`: the target is stored in vectors of maps.
template <class T, class Tile, bool backward, bool pixels>
__global__ void __launch_bounds__(Tile::threads, strip_blocks<Tile, acc_t<T>>)
    strips_gather(const __grid_constant__ StripPlan<T, Tile> plan) {
  using A = acc_t<T>;
  // Find the block's window in the source and the thread's part of the target.
  extern __shared__ __align__(16) unsigned char pool[];
  const Gather<T>& g = plan.gather;
  const Window<T>& window = plan.window;
  A *const filters = reinterpret_cast<A*>(pool), *const shifts = filters + plan.filter_values(),
           *const windows = shifts + plan.shift_values();
  __shared__ block::Barrier arrived[2];
  const StripPlace at = strip_place(plan);
  const int t = int(threadIdx.x), threads = int(blockDim.x), depth = int(g.depth);
  const int first_row = at.row - plan.pad_rows, col = Tile::for_dgrad ? 0 : at.col - plan.pad_cols;
  // The window of dgrad contains no rows from outside of the image.
  const int row = backward ? max(0, min(first_row, window.height - window.rows)) : first_row;
  const bool works = at.row_tile < plan.row_tiles;
  const int strip_col = at.strip * Tile::columns - (Tile::ends == Ends::vectors ? plan.pad_cols : 0);
  unsigned vectors = 0;
  for (int v = 0; v * Tile::width < Tile::source_columns; ++v) {
    vectors |= unsigned(unsigned(strip_col + v * Tile::width) < unsigned(window.width)) << v;
  }
  const int height = int(backward ? g.rows.in : g.rows.out), width = int(backward ? g.cols.in : g.cols.out);
  // The thread's part of the target.
  const int target_map = at.map + at.map_group * Tile::maps, target_row = at.row + at.row_tile * Tile::tile_rows,
            target_col = at.col + at.strip * Tile::columns;
  T* const target = g.target + g.target_strides.at(0, at.group * g.maps + target_map, target_row, target_col);
  // Load the bias, initialize the barriers, and write the zeros that no copy will overwrite.
  for (int i = t; i < plan.map_groups * Tile::maps; i += threads) {
    shifts[i] = g.bias && at.map + i < g.maps ? A(g.bias[at.group * g.maps + at.map + i]) : A(0);
  }
  if (t < 2) arrived[t].init(threads / block::warp_size);
  window.clear(windows, t, threads);
  window.clear(windows + window.values(), t, threads);
  bool plain = false;
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
                  at.group * g.depth + next_channel, min(plan.chunk, depth - next_channel), row, col, t, threads,
                  arrived[1 - current]);
    }
    // While the first window is on its way, load the filters; at step 1, dgrad checks them for infinities and NaN.
    if (step == 0) {
      stage_filters(plan, at, filters);
    } else {
      if (backward && step == 1) plain = __syncthreads_or(any_not_finite<Tile>(filters, plan.filter_values()));
      // At the first channel of a tile, the sums start from the bias.
      if (channel == 0) {
#pragma unroll
        for (int m = 0; m < Tile::maps; ++m) {
          const A shift = shifts[at.map_group * Tile::maps + m];
#pragma unroll
          for (int i = 0; i < Tile::tile_rows * Tile::columns; ++i)
            sum[i / Tile::columns][i % Tile::columns][m] = shift;
        }
      }
      // Add the products of the staged channels.
      const int tile_row = first_row + at.row_tile * Tile::tile_rows,
                end = works ? min(plan.chunk, depth - channel) : 0;
      const A* source = windows + current * window.values() + at.image * window.image_values +
                        (tile_row - row) * window.pitch + strip_col;
      const A* mine = filters + (channel * plan.map_groups + at.map_group) * Tile::K * Tile::weights;
#pragma unroll 1
      for (int c = 0; c < end; ++c) {
        add_channel<Tile, backward>(source, window.pitch, vectors, mine, tile_row, window.height, sum);
        source += window.rows * window.pitch;
        mine += plan.map_groups * Tile::K * Tile::weights;
      }
      // After the last channel of a tile, store the sums.
      const int64_t image = int64_t(image_tile) * plan.images + at.image;
      if (channel + plan.chunk >= depth && works && image < g.n) {
        T* const to = target + image * g.target_strides.image;
        const int maps = int(g.maps) - target_map, rows = height - target_row, columns = width - target_col;
        if constexpr (pixels) {
          store_pixels<T, Tile>(to, g.target_strides, maps, rows, columns, sum);
        } else if (plain) {
          store_plain_sums(plan, at, image, height, width);
        } else if (Tile::columns % 4 == 0 && plan.vector == 4) {
          store_sums<4, T, Tile>(to, g.target_strides, maps, rows, columns, sum);
        } else if (plan.vector >= 2) {
          store_sums<2, T, Tile>(to, g.target_strides, maps, rows, columns, sum);
        } else {
          store_sums<1, T, Tile>(to, g.target_strides, maps, rows, columns, sum);
        }
      }
    }
    if (!more) break;
    image_tile = next_tile;
    channel = next_channel;
  }
}

// ---- the host's part

constexpr int64_t multiprocessors = 132;  // of an H200

// Whether the tile's assumption about the ends of rows holds for this problem.
template <class Tile, class T>
bool fits_ends(const Gather<T>& g) {
  const int64_t pad = Tile::K - 1 - g.cols.pad;  // of dgrad
  if (!Tile::for_dgrad) return true;
  if (g.pass != Pass::dgrad || g.cols.in > (Tile::trims ? Tile::columns : 64)) return false;
  return Tile::trims ? g.cols.pad == 0 : pad >= 0 && pad % Tile::width == 0 && g.cols.out % Tile::width == 0;
}

// Launches the kernel, if the filters of one group of maps and the window of one tile fit in shared memory. Otherwise
// returns false.
template <class T, class Tile>
bool launch_strips(const Gather<T>& g, Context& context) {
  using A = acc_t<T>;
  if (!fits_ends<Tile>(g)) return false;
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const bool backward = g.pass == Pass::dgrad;
  const int pad_rows = int(backward ? Tile::K - 1 - g.rows.pad : g.rows.pad),
            pad_cols = int(backward ? Tile::K - 1 - g.cols.pad : g.cols.pad);
  const auto least = [](int64_t a, int64_t b) { return int(min(a, b)); };
  const int64_t filter_bytes = g.depth * Tile::K * Tile::weights * int64_t(sizeof(A));  // for one group of maps
  // Choose the numbers of strips, of groups of maps and of rows of tiles for a block.
  const int strips = least(ceil_div(cols.outputs, int64_t(Tile::columns)), max(1, 64 / Tile::columns));
  const int64_t all_groups = ceil_div(g.maps, int64_t(Tile::maps)),
                most_groups = min(int64_t(8), filter_bytes_per_block / filter_bytes);
  if (most_groups == 0) return false;
  // as equal as possible in all blocks
  const int map_groups = int(ceil_div(all_groups, ceil_div(all_groups, most_groups)));
  int row_tiles =
      least(ceil_div(rows.outputs, int64_t(Tile::tile_rows)), max(1, Tile::threads / (strips * map_groups)));
  // The pitch of a window is that of memory if a block has whole rows and needs no zeros beside them.
  const int columns = (strips - 1) * Tile::columns + Tile::source_columns;
  const bool as_in_memory = Tile::for_dgrad || (pad_cols == 0 && cols.outputs <= strips * Tile::columns &&
                                                cols.sources == columns && cols.sources % Tile::width == 0);
  const int pitch = Tile::trims    ? ceil_div(columns, 2) * 2
                    : as_in_memory ? int(cols.sources)
                                   : pitch_for(columns, Tile::width);
  const auto window_rows = [&] {
    const int all = row_tiles * Tile::tile_rows + Tile::K - 1;
    return backward ? least(all, rows.sources) : all;
  };
  const auto threads_for = [&](int images) { return ceil_div(strips * row_tiles * map_groups * images, 32) * 32; };
  const auto bytes_for = [&](int images, int chunk) {
    const int64_t values = Window<T>::image_pitch(chunk * window_rows() * pitch, Tile::width);
    return map_groups * filter_bytes + (2 * (images * values + 4) + 64) * int64_t(sizeof(A));
  };
  const auto fits = [&](int images, int chunk) { return bytes_for(images, chunk) <= strip_bytes(threads_for(images)); };
  while (row_tiles > 1 && !fits(1, 1)) row_tiles = (row_tiles + 1) / 2;
  if (!fits(1, 1)) return false;
  const int64_t across = ceil_div(cols.outputs, int64_t(strips * Tile::columns)),
                down = ceil_div(rows.outputs, int64_t(row_tiles * Tile::tile_rows)),
                map_blocks = ceil_div(g.maps, int64_t(map_groups * Tile::maps));
  const int64_t tiles = across * down * map_blocks * g.groups;
  const int items = strips * row_tiles * map_groups;
  // Choose the number of images per block. Blocks run in rounds of as many as the device can hold; take the number with
  // which the busiest multiprocessor has the least work.
  int images = 1, chunk = 1;
  int64_t slots = g.n, least_work = -1;
  const int most_images = across * down == 1 ? least(max(1, Tile::threads / items), g.n) : 1;
  for (int n = 1; n <= most_images && fits(n, 1); ++n) {
    int c = least(g.depth, 32);
    while (c > 1 && !fits(n, c)) --c;
    c = int(ceil_div(g.depth, ceil_div(g.depth, int64_t(c))));  // the same number of channels each time
    const int64_t resident = max(
        int64_t(1), min(int64_t(strip_warps<Tile, A> * 32 / threads_for(n)), int64_t(220) * 1024 / bytes_for(n, c)));
    const int64_t image_tiles = ceil_div(g.n, int64_t(n)),
                  rounds = min(image_tiles, ceil_div(image_tiles * tiles, multiprocessors * resident));
    const int64_t blocks = ceil_div(image_tiles, rounds);
    const int64_t work = rounds * ceil_div(blocks * tiles, multiprocessors) * threads_for(n);
    if (least_work >= 0 && work > least_work) continue;
    least_work = work;
    images = n;
    chunk = c;
    slots = blocks;
  }
  const int threads = threads_for(images);
  const int64_t image_tiles = ceil_div(g.n, int64_t(images));
  if (image_tiles >= most_quotient || tiles * slots >= most_quotient) return false;
  // Store in the longest vectors to which all rows of the target are aligned.
  int vector = 1;
  for (int width = 2; width <= 4 && g.target_strides.col == 1; width *= 2) {
    if (cols.outputs % width == 0 && reinterpret_cast<uintptr_t>(g.target) % (width * sizeof(T)) == 0) vector = width;
  }
  const StripPlan<T, Tile> plan{g,
                                Window<T>(g.source, g.source_strides, rows.sources, cols.sources, images, chunk,
                                          window_rows(), pitch, Tile::width,
                                          down > 1   ? 1
                                          : backward ? max(0, -pad_rows)
                                                     : -pad_rows,
                                          Tile::for_dgrad ? 0
                                          : across > 1    ? 1
                                                          : -pad_cols,
                                          threads),
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
  auto kernel = strips_gather<T, Tile, true, false>;
  if constexpr (!Tile::for_dgrad) {
    if (!backward) kernel = strips_gather<T, Tile, false, false>;
  }
  if constexpr (!Tile::for_dgrad && Tile::map_width > 1) {
    const bool whole =
        g.maps % Tile::map_width == 0 && reinterpret_cast<uintptr_t>(g.target) % (Tile::map_width * sizeof(T)) == 0;
    if (!backward && vector == 1 && g.target_strides.channel == 1 && whole) {
      kernel = strips_gather<T, Tile, false, true>;
    }
  }
  const int shared_bytes = int(plan.shared_bytes());
  if (shared_bytes > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  kernel<<<unsigned(plan.blocks()), unsigned(threads), size_t(shared_bytes), cudaStream_t(context.stream)>>>(plan);
  check_launch("register_tiled");
  return true;
}

}  // namespace tp::conv
