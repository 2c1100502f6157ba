// dgrad by few_channels.cuh: a lane sums over its own maps only. It goes down the rows of dy and keeps the sums of the
// three rows of dx that the current row contributes to. When a row of dx is complete, the eight lanes add up their
// sums.
#pragma once
#include "block/warp.cuh"
#include "conv/few_channels.cuh"

namespace tp::conv {

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
// sends the other to the lane that differs from it in the bit `half`. At the end, each lane has one column, at index 0.
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

// A lane's part of dx and of dy: rows `first` to `end` - 1, and one strip.
struct FewRows {
  int image, first, end;
  int col, own_col;      // of dx: of the strip, and the column whose sum the lane stores
  int top, left;         // of dy: the first row and column that the lane reads
  unsigned columns = 0;  // of dy: those that exist
};

template <class T, bool last>
TP_DEVICE __forceinline__ FewRows few_rows(const FewDgrad<T>& plan, const FewLane<last>& lane, int64_t unit) {
  const Gather<T>& g = plan.g;
  FewRows at;
  int strip_group = int(unit), row_block = plan.strip_groups.divide(strip_group);
  at.image = plan.row_blocks.divide(row_block);
  at.first = row_block * plan.rows;
  at.end = min(at.first + plan.rows, int(g.rows.in));
  at.col = (strip_group * strips_per_warp + lane.strip) * few_columns;
  at.own_col = at.col + lane.maps;
  at.top = at.first - 2 + int(g.rows.pad);
  at.left = at.col - 2 + int(g.cols.pad);
#pragma unroll
  for (int j = 0; j < few_columns + 2; ++j) {
    at.columns |= unsigned(at.col < int(g.cols.in) && unsigned(at.left + j) < unsigned(g.cols.out)) << j;
  }
  return at;
}

// Loads the weights of map `map` of the lane whose first vector is at `from`.
template <int C, class A>
TP_DEVICE __forceinline__ void load_few_weights(const A* from, int map, A (&weights)[ceil_div(9 * C, 4) * 4]) {
  constexpr int vectors = ceil_div(9 * C, 4);
#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    const auto four = *reinterpret_cast<const block::Vector<A, 4>*>(from + (map * vectors + v) * 32);
#pragma unroll
    for (int x = 0; x < 4; ++x) weights[v * 4 + x] = four.v[x];
  }
}

template <class T, int C, bool last>
__global__ void __launch_bounds__(few_threads, few_residents)
    few_channels_dgrad(const __grid_constant__ FewDgrad<T> plan) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  A* const filters = reinterpret_cast<A*>(pool);
  const Gather<T>& g = plan.g;
  const bool plain = !__syncthreads_and(stage_few_filters<C>(plan, filters));
  const int64_t unit = int64_t(blockIdx.x) * few_warps + int(threadIdx.x) / block::warp_size;
  if (unit >= plan.units) return;
  const FewLane<last> lane;
  const FewRows at = few_rows(plan, lane, unit);
  T* const target = g.target + g.target_strides.at(at.image, 0, 0, at.own_col);
  if (plain) {
    const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
    for (int i = at.first * C; i < at.end * C && at.own_col < int(g.cols.in); ++i) {
      target[(i / C) * g.target_strides.row + i % C * g.target_strides.channel] =
          T(g.plain_sum(rows, cols, at.image, 0, i % C, i / C, at.own_col));
    }
    return;
  }
  const T* const source = g.source + at.image * g.source_strides.image +
                          lane.maps * maps_per_lane * g.source_strides.channel + at.left * int(g.source_strides.col);
  const A* const mine = filters + lane.maps * 4;
  // Of the rows of dx that read the current row of dy through rows 0, 1 and 2 of the filters.
  FewSums<A, C> newest{}, middle{}, oldest{};
#pragma unroll 1
  for (int i = 0; i < at.end - at.first + 2; ++i) {
    const int row = at.top + i;
    if (unsigned(row) < unsigned(g.rows.out)) {
#pragma unroll 1
      for (int chunk = 0; chunk < plan.chunks; ++chunk) {
        const int maps = int(g.depth) - chunk * maps_per_warp - lane.maps * maps_per_lane;
        T dy[maps_per_lane][few_columns + 2];
        load_maps<last, 1, few_columns, 1>(
            source + row * int(g.source_strides.row) + chunk * maps_per_warp * int(g.source_strides.channel),
            g.source_strides, maps > 0 ? at.columns : 0, maps, dy);
#pragma unroll
        for (int k = 0; k < maps_per_lane; ++k) {
          A weights[ceil_div(9 * C, 4) * 4];
          load_few_weights<C>(mine, chunk * maps_per_lane + k, weights);
          add_filter_row<0>(weights, dy[k], newest);
          add_filter_row<1>(weights, dy[k], middle);
          add_filter_row<2>(weights, dy[k], oldest);
        }
      }
    }
    // The oldest row is complete.
    add_lanes<FewLane<last>::map_step>(oldest, lane.maps);
    if (i >= 2 && at.own_col < int(g.cols.in)) {
#pragma unroll
      for (int c = 0; c < C; ++c) {
        target[(at.first + i - 2) * int(g.target_strides.row) + c * int(g.target_strides.channel)] = T(oldest.of[0][c]);
      }
    }
    oldest = middle;
    middle = newest;
    newest = {};
  }
}

// Launches the kernel, or returns false if it does not apply.
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
  if (bytes > 48 * 1024 || units >= dividend_limit) return false;
  const FewDgrad<T> plan{Gather<T>(e, Pass::dgrad), int(rows),          int(chunks), units,
                         Divisor(strip_groups),     Divisor(row_blocks)};
  const auto kernel = last ? few_channels_dgrad<T, C, true> : few_channels_dgrad<T, C, false>;
  kernel<<<unsigned(ceil_div(units, int64_t(few_warps))), few_threads, size_t(bytes), cudaStream_t(context.stream)>>>(
      plan);
  check_launch("register_tiled");
  return true;
}

}  // namespace tp::conv
