// wgrad by few_channels.cuh: a lane has all taps of its four maps in registers. x is in shared memory, in rows of one
// channel. As in strips_wgrad.cuh, blocks store the sums of their slices, which a second kernel adds up in a fixed
// order.
#pragma once
#include "block/launch.cuh"
#include "block/slices.h"
#include "block/warp.cuh"
#include "conv/few_channels.cuh"

namespace tp::conv {

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
  const auto address_of = [&](const FewStrip& at) {
    return origin + at.row * int(e.y_strides.row) + at.col * int(e.y_strides.col);
  };
  const auto load = [&](const FewStrip& at, T(&dy)[maps_per_lane][few_pixels]) {
    load_maps<last, 0, few_pixels, 0>(address_of(at), e.y_strides, at.present > 0 ? (1u << at.present) - 1 : 0, maps,
                                      dy);
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
      add_short_few_strip<C>(from, plan.x, address_of(at), int(e.y_strides.col), at.present, sum);
    }
  }
}

// Adds up the sums of the strips of a warp, then of the warps, and stores the slice of the block.
template <int C, class T, bool last>
TP_DEVICE __forceinline__ void write_few_slice(const FewWgrad<T>& plan, const FewLane<last>& lane, acc_t<T>* pool,
                                               const acc_t<T> (&sum)[maps_per_lane][C][9]) {
  using A = acc_t<T>;
  const Elements<T>& e = plan.e;
  const int t = int(threadIdx.x), warp = t / block::warp_size, first_map = int(blockIdx.x) * maps_per_warp;
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
        pool[(warp * maps_per_warp + lane.maps * maps_per_lane + k) * C * 9 + i] = total;
      }
    }
  }
  __syncthreads();
  A* const slice = plan.sums + int64_t(blockIdx.y) * e.weights() + first_map * C * 9;
  for (int i = t; i < min(maps_per_warp, int(e.maps) - first_map) * C * 9; i += few_threads) {
    A total = 0;
#pragma unroll
    for (int w = 0; w < few_warps; ++w) total += pool[w * maps_per_warp * C * 9 + i];
    slice[i] = total;
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
  const int t = int(threadIdx.x), map = int(blockIdx.x) * maps_per_warp + lane.maps * maps_per_lane;
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
  write_few_slice<C>(plan, lane, stages, sum);
}

// Launches the kernel, or returns false if it does not apply.
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
  if (units >= dividend_limit || map_blocks >= dividend_limit) return false;
  A* const sums = context.workspace<A>(slices * e.weights());
  const FewWgrad<T> plan{e, window(rows), int(rows), units, slices, sums, Divisor(strip_groups), Divisor(row_tiles)};
  const auto kernel = last ? few_channels_wgrad<T, C, true> : few_channels_wgrad<T, C, false>;
  const int64_t bytes = max(2 * int64_t(plan.x.values()), reduction) * int64_t(sizeof(A));
  block::allow_shared_memory(kernel, int(bytes));
  kernel<<<dim3(unsigned(map_blocks), unsigned(slices)), few_threads, size_t(bytes), cudaStream_t(context.stream)>>>(
      plan);
  check_launch("register_tiled");
  block::sum_slices(sums, slices, e.weights(), e.weight, context);
  return true;
}

}  // namespace tp::conv
