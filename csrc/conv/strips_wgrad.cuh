// wgrad with stride and dilation 1, by strips of pixels in registers.
//
// A thread owns the K x K taps of `maps` filters that read one channel, and keeps their sums in registers. It processes
// strips of `columns` pixels of dy: each value of dy is multiplied by K x K values of x, each value of x by up to K *
// maps values of dy. Several threads, called slots, share the strips of the same taps. Their sums are added up within
// the block, and those of all blocks by a second kernel, both in an order that depends only on the shape, so the result
// has the same bits in every run.
#pragma once
#include "block/launch.cuh"
#include "block/slices.h"
#include "block/warp.cuh"
#include "conv/strips.cuh"

namespace tp::conv {

template <int kernel, int columns_, int maps_>
struct TapTile {
  static constexpr int K = kernel, columns = columns_, maps = maps_;
  static constexpr int width = columns % 4 == 0 ? 4 : 2;  // of the vectors in which strips are read
  static constexpr int source_columns = columns + K - 1;
  static constexpr int blocks = maps * K * K > 16 ? 2 : 4;  // blocks on a multiprocessor that the registers allow
};

constexpr int tap_threads = 256;

// How the filters and the batch are divided among blocks. A unit is `rows` rows of `images` images, which a block
// stages at a time. Block `slice` of each set of filters processes the units slice, slice + slices, ...
template <class T, class Tile>
struct TapPlan {
  using A = acc_t<T>;
  Elements<T> e;
  Window<T> x, dy;
  int images, rows, channels, map_groups;  // of a block: images and rows per unit, channels, groups of maps
  int slots, strips, strip_lanes;          // slots = strip_lanes * row lanes; strips per row
  int64_t units, slices;
  A* sums;    // [slices][filters in their order in memory]
  int lanes;  // threads that share one sum at the end
  Divisor map_blocks, channel_blocks, groups, row_tiles;
  Divisor per_pairs, per_map_groups, per_strip_lanes, per_rows;

  TP_HD int pairs() const { return channels * map_groups; }
  TP_HD int threads() const { return ceil_div(pairs() * slots, 32) * 32; }
  TP_HD int stage_values() const { return x.values() + dy.values(); }
  int64_t shared_values() const { return max(2 * stage_values(), Tile::K * Tile::K * (threads() + 1)); }
  int64_t filter_blocks() const { return int64_t(map_blocks.value) * channel_blocks.value * groups.value; }
};

struct TapPosition {
  int map_group, channel, slot;         // of the thread
  int group, first_channel, first_map;  // of the block, inside the group
};

template <class T, class Tile>
TP_DEVICE TapPosition tap_position(const TapPlan<T, Tile>& plan) {
  TapPosition at{};
  int item = int(threadIdx.x);
  at.slot = plan.per_pairs.divide(item);
  at.channel = plan.per_map_groups.divide(item);
  at.map_group = item;
  int block = int(blockIdx.x), rest = plan.map_blocks.divide(block);
  at.first_map = block * plan.map_groups * Tile::maps;
  at.group = plan.channel_blocks.divide(rest);
  at.first_channel = rest * plan.channels;
  return at;
}

// Adds the products of one strip, all `columns` pixels of which exist.
template <class Tile, class A>
TP_DEVICE void add_strip(const A* x, int pitch, const A* dy, int map_stride, A (&sum)[Tile::maps][Tile::K][Tile::K]) {
  A gradient[Tile::maps][Tile::columns];
#pragma unroll
  for (int m = 0; m < Tile::maps; ++m) load_strip<Tile::width>(dy + m * map_stride, gradient[m]);
#pragma unroll
  for (int p = 0; p < Tile::K; ++p) {
    A values[Tile::source_columns];
    load_strip<Tile::width>(x + p * pitch, values);
#pragma unroll
    for (int j = 0; j < Tile::columns; ++j) {
#pragma unroll
      for (int m = 0; m < Tile::maps; ++m) {
#pragma unroll
        for (int q = 0; q < Tile::K; ++q) sum[m][p][q] += gradient[m][j] * values[j + q];
      }
    }
  }
}

// Adds the products of the last strip of a row, of which only `present` pixels exist. Values of x are multiplied only
// by pixels that exist.
template <class Tile, class A>
TP_DEVICE void add_short_strip(const A* x, int pitch, const A* dy, int map_stride, int present,
                               A (&sum)[Tile::maps][Tile::K][Tile::K]) {
#pragma unroll 1
  for (int j = 0; j < present; ++j) {
#pragma unroll
    for (int p = 0; p < Tile::K; ++p) {
#pragma unroll
      for (int q = 0; q < Tile::K; ++q) {
        const A value = x[p * pitch + j + q];
#pragma unroll
        for (int m = 0; m < Tile::maps; ++m) sum[m][p][q] += dy[m * map_stride + j] * value;
      }
    }
  }
}

// Starts to copy unit `unit` to shared memory.
template <class T, class Tile>
TP_DEVICE void stage_unit(const TapPlan<T, Tile>& plan, const TapPosition& at, acc_t<T>* stage, int64_t unit,
                          block::Barrier& arrived) {
  const Elements<T>& e = plan.e;
  int row_tile = int(unit);
  const int64_t image = int64_t(plan.row_tiles.divide(row_tile)) * plan.images;
  const int row = row_tile * plan.rows, t = int(threadIdx.x), threads = int(blockDim.x);
  plan.x.fill(stage, image, e.n, at.group * e.channels + at.first_channel,
              min(plan.channels, int(e.channels) - at.first_channel), row - int(e.rows.pad), -int(e.cols.pad), t,
              threads, arrived);
  plan.dy.fill(stage + plan.x.values(), image, e.n, at.group * e.maps + at.first_map,
               min(plan.map_groups * Tile::maps, int(e.maps) - at.first_map), row, 0, t, threads, arrived);
}

// Adds the products of one staged unit.
template <class T, class Tile>
TP_DEVICE void add_unit(const TapPlan<T, Tile>& plan, const TapPosition& at, const acc_t<T>* stage, int64_t unit,
                        acc_t<T> (&sum)[Tile::maps][Tile::K][Tile::K]) {
  const Elements<T>& e = plan.e;
  int row_tile = int(unit);
  const int64_t image = int64_t(plan.row_tiles.divide(row_tile)) * plan.images;
  const int images = int(min(int64_t(plan.images), e.n - image)),
            rows = min(plan.rows, int(e.rows.out) - row_tile * plan.rows);
  const acc_t<T>* const dy = stage + plan.x.values();
  int strip = at.slot;
  const int first = plan.per_strip_lanes.divide(strip), step = plan.slots / plan.strip_lanes;
  for (; strip < plan.strips; strip += plan.strip_lanes) {
    const int col = strip * Tile::columns, present = int(e.cols.out) - col;
    const auto* const x_col = stage + at.channel * plan.x.rows * plan.x.pitch + col;
    const auto* const dy_col = dy + at.map_group * Tile::maps * plan.rows * plan.dy.pitch + col;
#pragma unroll 1
    for (int i = first; i < images * plan.rows; i += step) {
      int row = i;
      const int n = plan.per_rows.divide(row);
      if (row >= rows) continue;
      const auto* from = x_col + n * plan.x.image_values + row * plan.x.pitch;
      const auto* gradient = dy_col + n * plan.dy.image_values + row * plan.dy.pitch;
      if (present >= Tile::columns) {
        add_strip<Tile>(from, plan.x.pitch, gradient, plan.rows * plan.dy.pitch, sum);
      } else {
        add_short_strip<Tile>(from, plan.x.pitch, gradient, plan.rows * plan.dy.pitch, present, sum);
      }
    }
  }
}

// Adds up the sums of the slots, for one map per thread at a time, and stores the slice of the block. If there are more
// threads than sums, several lanes share the slots of one sum.
template <class T, class Tile>
TP_DEVICE void write_slice(const TapPlan<T, Tile>& plan, const TapPosition& at, acc_t<T>* pool,
                           const acc_t<T> (&sum)[Tile::maps][Tile::K][Tile::K]) {
  using A = acc_t<T>;
  constexpr int K = Tile::K, M = Tile::maps;
  const Elements<T>& e = plan.e;
  const int threads = int(blockDim.x), t = int(threadIdx.x), pairs = plan.pairs(), pitch = threads + 1;
  const int lanes = plan.lanes, lane = t % lanes;
  A* const slice = plan.sums + int64_t(blockIdx.y) * e.weights();
#pragma unroll
  for (int m = 0; m < M; ++m) {
    __syncthreads();
#pragma unroll
    for (int tap = 0; tap < K * K; ++tap) pool[tap * pitch + t] = sum[m][tap / K][tap % K];
    __syncthreads();
    for (int i = t / lanes; i < ceil_div(K * K * pairs, threads / lanes) * (threads / lanes); i += threads / lanes) {
      int pair = i;
      const int tap = plan.per_pairs.divide(pair);
      A total = 0;
      if (tap < K * K) {
#pragma unroll 4
        for (int slot = lane; slot < plan.slots; slot += lanes) total += pool[tap * pitch + slot * pairs + pair];
      }
      for (int half = lanes / 2; half > 0; half /= 2) total += block::shuffle_down(total, half);
      const int channel = at.first_channel + plan.per_map_groups.divide(pair), map = at.first_map + pair * M + m;
      if (lane > 0 || tap >= K * K || channel >= e.channels || map >= e.maps) continue;
      slice[e.weight_at(at.group * e.maps + map, channel, tap / K, tap % K)] = total;
    }
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(tap_threads, Tile::blocks)
    strips_wgrad(const __grid_constant__ TapPlan<T, Tile> plan) {
  using A = acc_t<T>;
  extern __shared__ __align__(16) unsigned char pool[];
  A* const stages = reinterpret_cast<A*>(pool);
  const TapPosition at = tap_position(plan);
  const bool works = at.slot < plan.slots;
  A sum[Tile::maps][Tile::K][Tile::K] = {};
  __shared__ block::Barrier arrived[2];
  // Initialize the barriers, and write the zeros that no copy will overwrite.
  if (threadIdx.x < 2)
    arrived[threadIdx.x].init(max(1, int(blockDim.x) / block::warp_size * (int(plan.x.bulk) + int(plan.dy.bulk))));
  for (int i = 0; i < 2; ++i) {
    plan.x.clear(stages + i * plan.stage_values(), int(threadIdx.x), int(blockDim.x));
    plan.dy.clear(stages + i * plan.stage_values() + plan.x.values(), int(threadIdx.x), int(blockDim.x));
  }
  int64_t unit = int64_t(blockIdx.y) - plan.slices;  // before the first step there is nothing to compute with
  // Each step starts to copy the next unit, and computes with the one that has arrived. The first step only copies.
  for (int step = 0;; ++step) {
    const int current = step % 2;
    const int64_t next = unit + plan.slices;
    if (step > 0) (plan.x.bulk ? plan.x : plan.dy).wait(arrived[current], (step - 1) / 2 % 2);
    __syncthreads();
    if (next < plan.units)
      stage_unit(plan, at, stages + (1 - current) * plan.stage_values(), next, arrived[1 - current]);
    if (works && step > 0) add_unit(plan, at, stages + current * plan.stage_values(), unit, sum);
    if (next >= plan.units) break;
    unit = next;
  }
  write_slice(plan, at, stages, sum);
}

// ---- the host's part

// The choice of TapPlan's numbers: choose_unit() must succeed first, then choose_images() and choose_slots() follow.
template <class T, class Tile>
struct TapDivision {
  using A = acc_t<T>;
  static constexpr int64_t blocks = 132 * Tile::blocks;  // as many as an H200 runs at once
  static constexpr int most_bytes = 192 * 1024 / Tile::blocks;
  const Elements<T>& e;
  int strips = int(ceil_div(e.cols.out, int64_t(Tile::columns)));
  int columns = strips * Tile::columns + Tile::K - 1;  // of x
  // The pitch of x is that of memory if these are all its columns.
  int pitch =
      e.cols.pad == 0 && e.cols.in == columns && columns % Tile::width == 0 ? columns : pitch_for(columns, Tile::width);
  int dy_pitch = pitch_for(strips * Tile::columns, Tile::width);
  int channels = least(e.channels, 8), map_groups = least(ceil_div(e.maps, int64_t(Tile::maps)), 8);
  int rows = least(e.rows.out, 32), images = 1;
  int strip_lanes = 1, row_lanes = 1;

  static int least(int64_t a, int64_t b) { return int(min(a, b)); }
  int64_t bytes() const {
    return 2 * int64_t(images) *
           (int64_t(channels) * (rows + Tile::K - 1) * pitch + map_groups * Tile::maps * rows * dy_pitch) *
           int64_t(sizeof(A));
  }
  int pairs() const { return channels * map_groups; }
  int slots() const { return strip_lanes * row_lanes; }
  int threads() const { return ceil_div(pairs() * slots(), 32) * 32; }
  int64_t row_tiles() const { return ceil_div(e.rows.out, int64_t(rows)); }
  int64_t units() const { return ceil_div(e.n, int64_t(images)) * row_tiles(); }
  int64_t map_blocks() const { return ceil_div(e.maps, int64_t(map_groups * Tile::maps)); }
  int64_t channel_blocks() const { return ceil_div(e.channels, int64_t(channels)); }
  int64_t filter_blocks() const { return map_blocks() * channel_blocks() * e.groups; }
  int64_t slices() const { return max(int64_t(1), min(units(), blocks / filter_blocks())); }
  bool divisible() const { return units() < dividend_limit && filter_blocks() < dividend_limit; }

  // Makes the unit smaller until its windows fit in shared memory: rows first, then maps or channels. Returns false if
  // they never do.
  bool choose_unit() {
    while (bytes() > most_bytes) {
      if (rows > 4) {
        rows = (rows + 1) / 2;
      } else if (map_groups > 1 && map_groups * Tile::maps >= channels) {
        map_groups = (map_groups + 1) / 2;
      } else if (channels > 1) {
        channels = (channels + 1) / 2;
      } else if (rows > 1) {
        rows = (rows + 1) / 2;
      } else {
        return false;
      }
    }
    return true;
  }

  // A block may take several small images at a time, as long as all blocks stay busy.
  void choose_images() {
    if (rows < e.rows.out) return;
    const int64_t most = max(int64_t(1), e.n / blocks);
    while (images < 4 && images < most && bytes() * (images + 1) / images <= most_bytes) ++images;
  }

  // Arranges the slots in strip_lanes columns and row_lanes rows, so that the busiest slot has the least work.
  void choose_slots() {
    const int most = max(1, tap_threads / pairs());
    int least_strips = 0;
    for (int lanes = 1; lanes <= min(strips, most); ++lanes) {
      const int rounds = ceil_div(images * rows, most / lanes), work = ceil_div(strips, lanes) * rounds;
      if (least_strips > 0 && work > least_strips) continue;
      least_strips = work;
      strip_lanes = lanes;
      row_lanes = ceil_div(images * rows, rounds);
    }
  }

  // The number of threads that share one sum at the end.
  int lanes() const {
    int lanes = 1;
    while (lanes < 32 && 2 * lanes <= slots() && Tile::K * Tile::K * pairs() * 2 * lanes <= threads()) lanes *= 2;
    return lanes;
  }

  TapPlan<T, Tile> plan(A* sums) const {
    return {e,
            Window<T>(e.x, e.x_strides, e.rows.in, e.cols.in, images, channels, rows + Tile::K - 1, pitch, Tile::width,
                      row_tiles() > 1 ? 1 : -int(e.rows.pad), -int(e.cols.pad), threads()),
            Window<T>(e.y, e.y_strides, e.rows.out, e.cols.out, images, map_groups * Tile::maps, rows, dy_pitch,
                      Tile::width, row_tiles() > 1 ? 1 : 0, 0, threads()),
            images,
            rows,
            channels,
            map_groups,
            slots(),
            strips,
            strip_lanes,
            units(),
            slices(),
            sums,
            lanes(),
            Divisor(map_blocks()),
            Divisor(channel_blocks()),
            Divisor(e.groups),
            Divisor(row_tiles()),
            Divisor(pairs()),
            Divisor(map_groups),
            Divisor(strip_lanes),
            Divisor(rows)};
  }
};

// Launches both kernels. Returns false if the windows do not fit in shared memory.
template <class T, class Tile>
bool launch_strips_wgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  TapDivision<T, Tile> division{e};
  if (!division.choose_unit()) return false;
  division.choose_images();
  division.choose_slots();
  if (!division.divisible()) return false;
  const int64_t slices = division.slices();
  A* const sums = context.workspace<A>(slices * e.weights());
  const TapPlan<T, Tile> plan = division.plan(sums);
  const int shared_bytes = int(plan.shared_values() * int64_t(sizeof(A)));  // more than 48 KB if sums are double
  block::allow_shared_memory(strips_wgrad<T, Tile>, shared_bytes);
  strips_wgrad<T, Tile><<<dim3(unsigned(plan.filter_blocks()), unsigned(slices)), unsigned(plan.threads()),
                          size_t(shared_bytes), cudaStream_t(context.stream)>>>(plan);
  check_launch("register_tiled");
  block::sum_slices(sums, slices, e.weights(), e.weight, context);
  return true;
}

}  // namespace tp::conv
