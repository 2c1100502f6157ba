// dgrad and wgrad of 3 x 3 filters with stride and dilation 1, from images of a few channels to many maps, as in the
// first layer of a network.
//
// Nearly all memory traffic is dy. A lane reads it straight from memory into registers, four maps at a time: as vectors
// of maps if the maps of a pixel are contiguous, and as vectors of columns otherwise. Eight lanes have 32 maps, and the
// four groups of eight lanes have four strips of columns. In either layout, a warp reads whole sectors.
//
// dgrad: a lane sums over its own maps only. It goes down the rows of dy and keeps the sums of the three rows of dx
// that the current row contributes to. When a row of dx is complete, the eight lanes add up their sums.
//
// wgrad: a lane has all taps of its four maps in registers. x is in shared memory, in rows of one channel. As in
// strips_wgrad.cuh, blocks store the sums of their slices, which a second kernel adds up in a fixed order.
#pragma once
#include "block/slices.cuh"
#include "block/warp.cuh"
#include "conv/strips.cuh"

namespace tp::conv {

constexpr int few_threads = 128, few_warps = few_threads / block::warp_size, few_residents = 3;
constexpr int64_t few_blocks = 132 * few_residents;  // as many as an H200 runs at once
constexpr int maps_per_lane = 4, maps_per_warp = 8 * maps_per_lane, strips_per_warp = 4;

// The place of a lane in its warp. Neighbouring lanes read neighbouring addresses: maps of one pixel if `last`, which
// says that images are in channels_last, and columns of one map otherwise.
template <bool last>
struct FewLane {
  static constexpr int strip_step = last ? 8 : 1, map_step = last ? 1 : 4;  // from one lane to the next
  int strip, maps;                                                          // maps: which four of 32

  TP_DEVICE FewLane() {
    const int lane = int(threadIdx.x) % block::warp_size;
    strip = lane / strip_step % strips_per_warp;
    maps = lane / map_step % 8;
  }
};

// Loads four maps of `before` + `columns` + `after` pixels of one row, of which `from` is the first. Pixels whose bit
// in `present` is not set count as zeros. If maps are contiguous, all four exist; otherwise `maps` of them do, and all
// vectors of 4 columns from column `before` on exist entirely or not at all.
template <bool last, int before, int columns, int after, class T>
TP_DEVICE void load_maps(const T* from, const Strides& strides, unsigned present, int maps,
                         T (&to)[maps_per_lane][before + columns + after]) {
  using V = block::Vector<T, 4>;
  if constexpr (last) {
#pragma unroll
    for (int j = 0; j < before + columns + after; ++j) {
      V v{};
      if (present >> j & 1) v = *reinterpret_cast<const V*>(from + j * int(strides.col));
#pragma unroll
      for (int k = 0; k < maps_per_lane; ++k) to[k][j] = v.v[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < maps_per_lane; ++k) {
      const T* const map = from + k * int(strides.channel);
#pragma unroll
      for (int j = 0; j < before + columns + after; ++j) {
        if (j >= before && j < before + columns) continue;
        to[k][j] = T(0);
        if (k < maps && (present >> j & 1)) to[k][j] = map[j];
      }
#pragma unroll
      for (int j = before; j < before + columns; j += 4) {
        V v{};
        if (k < maps && (present >> j & 1)) v = *reinterpret_cast<const V*>(map + j);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[k][j + i] = v.v[i];
      }
    }
  }
}

// ---- dgrad

constexpr int few_columns = 8;  // of a strip: one for each of the lanes that add up their sums

template <class T>
struct FewDgrad {
  Gather<T> g;
  int rows, chunks;  // rows of a unit; chunks of 32 maps
  int64_t units;     // one per warp: `rows` rows of four strips of an image
  Divisor strip_groups, row_blocks;
};

// Copies the filters to shared memory, so that the 9 * C weights of a map are vectors of four, in the order [row][col]
// [channel] of the rotated filter, and the same vector of the eight lanes is contiguous. Returns whether all weights of
// this thread are finite.
template <int C, class T>
TP_DEVICE bool stage_few_filters(const FewDgrad<T>& plan, acc_t<T>* filters) {
  using A = acc_t<T>;
  constexpr int taps = 9, vectors = ceil_div(taps * C, 4);
  bool finite = true;
#pragma unroll 2
  for (int i = int(threadIdx.x); i < plan.chunks * maps_per_warp * vectors * 4; i += few_threads) {
    const int lane = i / 4 % 8, value = i / 32 % vectors * 4 + i % 4, k = i / (32 * vectors) % 4;
    const int map = i / (128 * vectors) * maps_per_warp + lane * maps_per_lane + k, tap = value / C;
    A weight = 0;
    if (tap < taps && map < plan.g.depth) {
      weight = A(plan.g.weight[map * plan.g.depth_stride + value % C * plan.g.map_stride + taps - 1 - tap]);
    }
    finite = finite && is_finite(weight);
    filters[i] = weight;
  }
  return finite;
}

// The sums of a strip of dx.
template <class A, int C>
struct FewSums {
  A of[few_columns][C];
};

// Adds the products of one row of dy, of one map, with row p of its filters.
template <int p, int C, class A, class T>
TP_DEVICE void add_filter_row(const A* weights, const T (&dy)[few_columns + 2], FewSums<A, C>& sum) {
#pragma unroll
  for (int q = 0; q < 3; ++q) {
#pragma unroll
    for (int j = 0; j < few_columns; ++j) {
#pragma unroll
      for (int c = 0; c < C; ++c) sum.of[j][c] += weights[(p * 3 + q) * C + c] * A(dy[j + q]);
    }
  }
}

// Adds up the sums of the eight lanes that share a strip. Of the first 2 * half columns, a lane keeps one half and
// sends the other to the lane that differs from it in the bit `half`. At the end, each lane has one column, in place 0.
template <int step, int half = few_columns / 2, int C, class A>
TP_DEVICE void add_lanes(FewSums<A, C>& sum, int lane) {
  const bool upper = lane & half;
#pragma unroll
  for (int j = 0; j < half; ++j) {
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const A left = sum.of[j][c], right = sum.of[j + half][c];
      sum.of[j][c] = (upper ? right : left) + block::shuffle_xor(upper ? left : right, half * step);
    }
  }
  if constexpr (half > 1) add_lanes<step, half / 2>(sum, lane);
}

template <class T, int C, bool last>
__global__ void __launch_bounds__(few_threads, few_residents)
    few_channels_dgrad(const __grid_constant__ FewDgrad<T> plan) {
  using A = acc_t<T>;
  constexpr int vectors = ceil_div(9 * C, 4), reads = few_columns + 2;
  extern __shared__ __align__(16) unsigned char pool[];
  A* const filters = reinterpret_cast<A*>(pool);
  const Gather<T>& g = plan.g;
  const bool plain = !__syncthreads_and(stage_few_filters<C>(plan, filters));
  // Find the rows and the columns of this lane.
  const int64_t unit = int64_t(blockIdx.x) * few_warps + int(threadIdx.x) / block::warp_size;
  if (unit >= plan.units) return;
  const FewLane<last> lane;
  int strip_group = int(unit), row_block = plan.strip_groups.divide(strip_group);
  const int image = plan.row_blocks.divide(row_block);
  const int first = row_block * plan.rows, end = min(first + plan.rows, int(g.rows.in));
  const int col = (strip_group * strips_per_warp + lane.strip) * few_columns, own_col = col + lane.maps;
  const int top = first - 2 + int(g.rows.pad), left = col - 2 + int(g.cols.pad);  // of what it reads
  unsigned columns = 0;
#pragma unroll
  for (int j = 0; j < reads; ++j) {
    columns |= unsigned(col < int(g.cols.in) && unsigned(left + j) < unsigned(g.cols.out)) << j;
  }
  T* const target = g.target + g.target_strides.at(image, 0, 0, own_col);
  if (plain) {
    const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
    for (int i = first * C; i < end * C && own_col < int(g.cols.in); ++i) {
      target[(i / C) * g.target_strides.row + i % C * g.target_strides.channel] =
          T(g.plain_sum(rows, cols, image, 0, i % C, i / C, own_col));
    }
    return;
  }
  const T* const source = g.source + image * g.source_strides.image +
                          lane.maps * maps_per_lane * g.source_strides.channel + left * int(g.source_strides.col);
  const A* const mine = filters + lane.maps * 4;
  // Of the rows of dx that read the current row of dy through rows 0, 1 and 2 of the filters.
  FewSums<A, C> newest{}, middle{}, oldest{};
#pragma unroll 1
  for (int i = 0; i < end - first + 2; ++i) {
    const int row = top + i;
    if (unsigned(row) < unsigned(g.rows.out)) {
#pragma unroll 1
      for (int chunk = 0; chunk < plan.chunks; ++chunk) {
        const int maps = int(g.depth) - chunk * maps_per_warp - lane.maps * maps_per_lane;
        T dy[maps_per_lane][reads];
        load_maps<last, 1, few_columns, 1>(
            source + row * int(g.source_strides.row) + chunk * maps_per_warp * int(g.source_strides.channel),
            g.source_strides, maps > 0 ? columns : 0, maps, dy);
#pragma unroll
        for (int k = 0; k < maps_per_lane; ++k) {
          A weights[vectors * 4];
#pragma unroll
          for (int v = 0; v < vectors; ++v) {
            const auto four =
                *reinterpret_cast<const block::Vector<A, 4>*>(mine + ((chunk * maps_per_lane + k) * vectors + v) * 32);
#pragma unroll
            for (int x = 0; x < 4; ++x) weights[v * 4 + x] = four.v[x];
          }
          add_filter_row<0>(weights, dy[k], newest);
          add_filter_row<1>(weights, dy[k], middle);
          add_filter_row<2>(weights, dy[k], oldest);
        }
      }
    }
    // The oldest row is complete.
    add_lanes<FewLane<last>::map_step>(oldest, lane.maps);
    if (i >= 2 && own_col < int(g.cols.in)) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        target[(first + i - 2) * int(g.target_strides.row) + c * int(g.target_strides.channel)] = T(oldest.of[0][c]);
      }
    }
    oldest = middle;
    middle = newest;
    newest = {};
  }
}

// ---- wgrad

constexpr int few_pixels = 4;  // of a strip
constexpr int few_batch = 4;   // of the window of x

template <class T>
struct FewWgrad {
  Elements<T> e;
  Window<T, few_batch> x;
  int rows;               // rows of an image that a block stages at a time: a unit
  int64_t units, slices;  // block `slice` of each set of maps processes the units slice, slice + slices, ...
  acc_t<T>* sums;         // [slices][filters in their order in memory]
  Divisor strip_groups, row_tiles;
};

// A strip of a unit: its row in the unit, its column, and how many of its pixels exist.
struct FewStrip {
  int row, col, present;
};

// Adds the products of one strip, all pixels of which exist.
template <int C, class A, class T>
TP_DEVICE void add_few_strip(const A* x, const Window<T, few_batch>& window, const T (&dy)[maps_per_lane][few_pixels],
                             A (&sum)[maps_per_lane][C][9]) {
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      A values[few_pixels + 2];
      const A* const from = x + (c * window.rows + p) * window.pitch;
      const auto four = *reinterpret_cast<const block::Vector<A, 4>*>(from);
      const auto two = *reinterpret_cast<const block::Vector<A, 2>*>(from + 4);
#pragma unroll
      for (int j = 0; j < few_pixels + 2; ++j) values[j] = j < 4 ? four.v[j] : two.v[j - 4];
#pragma unroll
      for (int q = 0; q < 3; ++q) {
#pragma unroll
        for (int j = 0; j < few_pixels; ++j) {
#pragma unroll
          for (int k = 0; k < maps_per_lane; ++k) sum[k][c][p * 3 + q] += A(dy[k][j]) * values[j + q];
        }
      }
    }
  }
}

// Adds the products of the last strip of a row, of which only `present` pixels exist, if maps are contiguous. Values of
// x are multiplied only by pixels that exist.
template <int C, class A, class T>
TP_DEVICE void add_short_few_strip(const A* x, const Window<T, few_batch>& window, const T* dy, int col_stride,
                                   int present, A (&sum)[maps_per_lane][C][9]) {
#pragma unroll 1
  for (int j = 0; j < present; ++j) {
    const auto maps = *reinterpret_cast<const block::Vector<T, maps_per_lane>*>(dy + j * col_stride);
#pragma unroll
    for (int i = 0; i < C * 9; ++i) {
      const A value = x[(i / 9 * window.rows + i % 9 / 3) * window.pitch + j + i % 3];
#pragma unroll
      for (int k = 0; k < maps_per_lane; ++k) sum[k][i / 9][i % 9] += A(maps.v[k]) * value;
    }
  }
}

// Adds the products of one staged unit: `rows` rows of dy from `origin` on, where the lane's maps begin.
template <class T, int C, bool last>
TP_DEVICE void add_few_unit(const FewWgrad<T>& plan, const FewLane<last>& lane, const acc_t<T>* x, const T* origin,
                            int maps, int rows, acc_t<T> (&sum)[maps_per_lane][C][9]) {
  const Elements<T>& e = plan.e;
  const int items = rows * int(plan.strip_groups.value);
  const auto strip_of = [&](int item) {
    int group = item;
    const int row = plan.strip_groups.divide(group), col = (group * strips_per_warp + lane.strip) * few_pixels;
    return FewStrip{row, col, item < items && maps > 0 ? min(few_pixels, int(e.cols.out) - col) : 0};
  };
  const auto place_of = [&](const FewStrip& at) {
    return origin + at.row * int(e.y_strides.row) + at.col * int(e.y_strides.col);
  };
  const auto load = [&](const FewStrip& at, T(&dy)[maps_per_lane][few_pixels]) {
    load_maps<last, 0, few_pixels, 0>(place_of(at), e.y_strides, at.present > 0 ? (1u << at.present) - 1 : 0, maps, dy);
  };
  // While it computes, a lane loads its next strip.
  int item = int(threadIdx.x) / block::warp_size;
  FewStrip next = strip_of(item);
  T arriving[maps_per_lane][few_pixels];
  load(next, arriving);
#pragma unroll 1
  for (; item < items; item += few_warps) {
    const FewStrip at = next;
    T dy[maps_per_lane][few_pixels];
#pragma unroll
    for (int i = 0; i < maps_per_lane * few_pixels; ++i)
      dy[i / few_pixels][i % few_pixels] = arriving[i / few_pixels][i % few_pixels];
    next = strip_of(item + few_warps);
    load(next, arriving);
    const acc_t<T>* const from = x + at.row * plan.x.pitch + at.col;
    if (at.present == few_pixels) {
      add_few_strip<C>(from, plan.x, dy, sum);
    } else if (last) {
      add_short_few_strip<C>(from, plan.x, place_of(at), int(e.y_strides.col), at.present, sum);
    }
  }
}

template <class T, int C, bool last>
__global__ void __launch_bounds__(few_threads, few_residents)
    few_channels_wgrad(const __grid_constant__ FewWgrad<T> plan) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  __shared__ block::Barrier arrived[2];
  A* const stages = reinterpret_cast<A*>(pool);
  const Elements<T>& e = plan.e;
  const FewLane<last> lane;
  const int t = int(threadIdx.x), warp = t / block::warp_size, first_map = int(blockIdx.x) * maps_per_warp,
            map = first_map + lane.maps * maps_per_lane;
  const int values = plan.x.values();
  A sum[maps_per_lane][C][9] = {};
  if (t < 2) arrived[t].init(few_warps);
  for (int i = 0; i < 2; ++i) plan.x.clear(stages + i * values, t, few_threads);
  int64_t unit = int64_t(blockIdx.y) - plan.slices;  // before the first step there is nothing to compute with
  // Each step starts to copy the next window of x, and computes with the one that has arrived. The first only copies.
  for (int step = 0;; ++step) {
    const int current = step % 2;
    const int64_t next = unit + plan.slices;
    if (step > 0) plan.x.wait(arrived[current], (step - 1) / 2 % 2);
    __syncthreads();
    if (next < plan.units) {
      int row_tile = int(next);
      const int image = plan.row_tiles.divide(row_tile);
      plan.x.fill(stages + (1 - current) * values, image, e.n, 0, C, row_tile * plan.rows - int(e.rows.pad),
                  -int(e.cols.pad), t, few_threads, arrived[1 - current]);
    }
    if (step > 0) {
      int row_tile = int(unit);
      const int image = plan.row_tiles.divide(row_tile), row = row_tile * plan.rows;
      add_few_unit<T, C, last>(plan, lane, stages + current * values, e.y + e.y_at(image, map, row, 0),
                               int(e.maps) - map, min(plan.rows, int(e.rows.out) - row), sum);
    }
    if (next >= plan.units) break;
    unit = next;
  }
  // Add up the sums of the strips of a warp, then of the warps, and store the slice of the block.
  __syncthreads();
#pragma unroll
  for (int k = 0; k < maps_per_lane; ++k) {
#pragma unroll
    for (int i = 0; i < C * 9; ++i) {
      A total = sum[k][i / 9][i % 9];
#pragma unroll
      for (int half = strips_per_warp / 2; half > 0; half /= 2) {
        total += block::shuffle_xor(total, half * FewLane<last>::strip_step);
      }
      if (lane.strip == 0) {
        stages[(warp * maps_per_warp + lane.maps * maps_per_lane + k) * C * 9 + i] = total;
      }
    }
  }
  __syncthreads();
  A* const slice = plan.sums + int64_t(blockIdx.y) * e.weights() + first_map * C * 9;
  for (int i = t; i < min(maps_per_warp, int(e.maps) - first_map) * C * 9; i += few_threads) {
    A total = 0;
#pragma unroll
    for (int w = 0; w < few_warps; ++w) total += stages[w * maps_per_warp * C * 9 + i];
    slice[i] = total;
  }
}

// ---- the host's part

inline bool is_channels_last(const Strides& strides, int64_t channels) {
  return strides.channel == 1 && strides.col == channels;
}

// Whether lanes can read dy in vectors, and `quarters` quarters of them have maps.
template <class T>
bool fits_few_channels(const Elements<T>& e, bool last, int quarters) {
  const int64_t lanes = ceil_div(e.maps, int64_t(maps_per_warp)) * maps_per_warp;
  return e.groups == 1 && 4 * e.maps >= quarters * lanes && (last ? e.maps : e.cols.out) % 4 == 0 &&
         reinterpret_cast<uintptr_t>(e.y) % (4 * sizeof(T)) == 0;
}

// Each launches the kernel, or returns false if it does not apply.
template <int C, class T>
bool launch_few_dgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  const bool last = is_channels_last(e.y_strides, e.m);
  const auto can_pad = [](const Axis& a) { return a.pad >= 0 && a.pad <= 2; };
  if (!fits_few_channels(e, last, 2) || !can_pad(e.rows) || !can_pad(e.cols) || (!last && e.cols.pad != 1))
    return false;
  const int64_t chunks = ceil_div(e.maps, int64_t(maps_per_warp));
  const int64_t bytes = chunks * maps_per_warp * ceil_div(9 * C, 4) * 4 * int64_t(sizeof(A));
  const int64_t strip_groups = ceil_div(e.cols.in, int64_t(few_columns * strips_per_warp));
  // Choose the rows of a unit so that the rounds in which the device runs all warps take the least time.
  int64_t rows = e.rows.in, least = -1;
  for (int64_t blocks = 1; blocks <= min(e.rows.in, int64_t(64)); ++blocks) {
    const int64_t height = ceil_div(e.rows.in, blocks), units = e.n * ceil_div(e.rows.in, height) * strip_groups;
    const int64_t time = ceil_div(units, few_blocks * few_warps) * (height + 2);
    if (least >= 0 && time >= least) continue;
    least = time;
    rows = height;
  }
  const int64_t row_blocks = ceil_div(e.rows.in, rows), units = e.n * row_blocks * strip_groups;
  if (bytes > 48 * 1024 || units >= most_quotient) return false;
  const FewDgrad<T> plan{Gather<T>(e, Pass::dgrad), int(rows),          int(chunks), units,
                         Divisor(strip_groups),     Divisor(row_blocks)};
  const auto kernel = last ? few_channels_dgrad<T, C, true> : few_channels_dgrad<T, C, false>;
  kernel<<<unsigned(ceil_div(units, int64_t(few_warps))), few_threads, size_t(bytes), cudaStream_t(context.stream)>>>(
      plan);
  check_launch("register_tiled");
  return true;
}

template <int C, class T>
bool launch_few_wgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  const bool last = is_channels_last(e.y_strides, e.m);
  if (!fits_few_channels(e, last, last ? 2 : 3)) return false;  // the strips of strips_wgrad.cuh lose less by few maps
  const int64_t strips = ceil_div(e.cols.out, int64_t(few_pixels)),
                strip_groups = ceil_div(strips, int64_t(strips_per_warp));
  const int64_t map_blocks = ceil_div(e.maps, int64_t(maps_per_warp)),
                most_slices = max(int64_t(1), few_blocks / map_blocks);
  const int pitch = pitch_for(int(strips) * few_pixels + 2, 4);
  const auto window = [&](int64_t rows) {
    return Window<T, few_batch>(e.x, e.x_strides, e.rows.in, e.cols.in, 1, C, int(rows) + 2, pitch, 4,
                                rows < e.rows.out ? 1 : -int(e.rows.pad), -int(e.cols.pad), few_threads);
  };
  // Choose the rows of a unit so that the busiest block has the least work; each unit costs some time of its own.
  constexpr int64_t most_bytes = 72 * 1024, reduction = few_warps * maps_per_warp * C * 9;
  int64_t rows = 0, least = -1;
  for (int64_t height = 1; height <= min(e.rows.out, int64_t(32)); ++height) {
    if (2 * window(height).values() * int64_t(sizeof(A)) > most_bytes) break;
    const int64_t time = ceil_div(e.n * ceil_div(e.rows.out, height), most_slices) * (height + 1);
    if (least >= 0 && time > least) continue;
    least = time;
    rows = height;
  }
  if (rows == 0) return false;
  const int64_t row_tiles = ceil_div(e.rows.out, rows), units = e.n * row_tiles, slices = min(units, most_slices);
  if (units >= most_quotient || map_blocks >= most_quotient) return false;
  A* const sums = context.workspace<A>(slices * e.weights());
  const FewWgrad<T> plan{e, window(rows), int(rows), units, slices, sums, Divisor(strip_groups), Divisor(row_tiles)};
  const auto kernel = last ? few_channels_wgrad<T, C, true> : few_channels_wgrad<T, C, false>;
  const int64_t bytes = max(2 * int64_t(plan.x.values()), reduction) * int64_t(sizeof(A));
  if (bytes > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  kernel<<<dim3(unsigned(map_blocks), unsigned(slices)), few_threads, size_t(bytes), cudaStream_t(context.stream)>>>(
      plan);
  check_launch("register_tiled");
  block::sum_slices(sums, slices, e.weights(), e.weight, context);
  return true;
}

}  // namespace tp::conv
