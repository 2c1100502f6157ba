// fprop and dgrad to a few maps: the image gradient of a first layer with a stride, or a last layer that makes an
// image.
//
// A thread computes all maps of eight neighbouring pixels of a column, in one phase (gather.h). It reads a column of
// the source into registers, and multiplies it with the taps of a column of the filter. Neighbouring lanes have
// neighbouring columns, so they read contiguous memory. The filters of some channels at a time are in shared memory, in
// the order of the source, so that a tap's weights for all maps are one vector.
#pragma once
#include "block/load_store.cuh"
#include "conv/gather.h"
#include "conv/relayout.h"

namespace tp::conv {

constexpr int few_map_threads = 128, few_map_rows = 8, most_few_maps = 4;
constexpr int few_map_taps = 4;        // rows of the filter whose products are added together
constexpr int few_map_vectors = 1024;  // of weights in shared memory

template <class T>
struct FewMaps {
  Gather<T> g;
  const T* source;  // map by map
  int64_t image, channel;
  int row_phases, col_phases;
};

// The sums of a thread's pixels.
template <class A, int maps>
struct FewMapsSums {
  A of[few_map_rows][maps] = {};
};

// Adds the products of `taps` rows of the filter with one channel of the source, whose first row that the thread reads
// is `row`. `weights` has the vectors of these rows.
template <int taps, int maps, class A, class T>
TP_DEVICE void add_filter_rows(const T* plane, int rows, int cols, int row, int col, int col_step, int taps_across,
                               const block::Vector<A, 4>* weights, FewMapsSums<A, maps>& sum) {
  constexpr int window = few_map_rows + taps - 1;
  const int low = max(0, -row), high = min(window, rows - row);
  const unsigned existing = high > low ? (1u << high) - (1u << low) : 0u;
  for (int q = 0; q < taps_across; ++q, col += col_step) {
    const unsigned inside = unsigned(col) < unsigned(cols) ? existing : 0u;
    const T* const from = plane + int64_t(row) * cols + col;
    A values[window];
#pragma unroll
    for (int i = 0; i < window; ++i) values[i] = inside >> i & 1 ? A(from[i * cols]) : A(0);
#pragma unroll
    for (int p = 0; p < taps; ++p) {
      const block::Vector<A, 4> weight = weights[p * taps_across + q];
#pragma unroll
      for (int i = 0; i < few_map_rows; ++i) {
#pragma unroll
        for (int k = 0; k < maps; ++k) sum.of[i][k] += weight.v[k] * values[i + p];
      }
    }
  }
}

// Copies the weights of `channels` channels from channel `first` on to shared memory, in the order [channel][row][col]
// of what the taps read. Returns whether one of this thread's is infinite or NaN.
template <class T, class A>
TP_DEVICE bool stage_few_maps(const Gather<T>& g, const GatherAxis& rows, const GatherAxis& cols, int64_t group,
                              int64_t first, int channels, block::Vector<A, 4>* weights) {
  const int taps_across = int(cols.taps), taps = int(rows.taps) * taps_across;
  bool odd = false;
  for (int i = int(threadIdx.x); i < channels * taps; i += few_map_threads) {
    const int channel = i / taps, p = i % taps / taps_across, q = i % taps_across;
    const int64_t down = rows.tap(rows.source_tap < 0 ? rows.taps - 1 - p : p);
    block::Vector<A, 4> v{};
#pragma unroll
    for (int k = 0; k < most_few_maps; ++k) {
      if (k < g.maps) v.v[k] = A(g.weight[g.weight_at(group, k, first + channel, down, cols.tap(q))]);
      odd = odd || !is_finite(v.v[k]);
    }
    weights[i] = v;
  }
  return odd;
}

template <class T, int maps>
__global__ void __launch_bounds__(few_map_threads) few_maps(const __grid_constant__ FewMaps<T> work) {
  using A = acc_t<T>;
  __shared__ block::Vector<A, 4> weights[few_map_vectors];
  const Gather<T>& g = work.g;
  const int64_t group = blockIdx.y;
  // The phases of a tile are neighbouring blocks, because they read the same part of the source.
  int64_t col_phase = blockIdx.x, row_phase = divide(col_phase, work.col_phases),
          tile = divide(row_phase, work.row_phases);
  const GatherAxis rows = gather_axis(g.rows, g.pass, row_phase), cols = gather_axis(g.cols, g.pass, col_phase);
  const int64_t row_blocks = ceil_div(rows.outputs, int64_t(few_map_rows));
  int64_t col = tile * few_map_threads + threadIdx.x, row_block = divide(col, cols.outputs),
          image = divide(row_block, row_blocks);
  const bool exists = image < g.n;
  const int64_t first = row_block * few_map_rows;
  const T* const source = work.source + (exists ? image : 0) * work.image + group * g.depth * work.channel;
  const int row = int(rows.source(first, rows.source_tap < 0 ? rows.taps - 1 : 0)), left = int(cols.source(col, 0));
  const int taps_down = int(rows.taps), taps_across = int(cols.taps), taps = taps_down * taps_across;
  FewMapsSums<A, maps> sum;
  bool odd = false;
  // Add up the channels, as many at a time as there is room for weights.
  const int at_once = taps > 0 ? few_map_vectors / taps : 0;
  for (int64_t channel = 0; taps > 0 && channel < g.depth; channel += at_once) {
    const int channels = int(min(g.depth - channel, int64_t(at_once)));
    __syncthreads();
    odd = stage_few_maps(g, rows, cols, group, channel, channels, weights);
    odd = __syncthreads_or(odd) && g.pass == Pass::dgrad;
    if (odd) break;
    if (!exists) continue;
    for (int c = 0; c < channels; ++c) {
      const T* const plane = source + (channel + c) * work.channel;
      for (int p = 0; p < taps_down; p += few_map_taps) {
        const auto add = [&](auto count) {
          add_filter_rows<decltype(count)::value>(plane, int(rows.sources), int(cols.sources), row + p, left,
                                                  int(cols.source_tap), taps_across,
                                                  weights + c * taps + p * taps_across, sum);
        };
        switch (taps_down - p) {
          case 1:
            add(std::integral_constant<int, 1>{});
            break;
          case 2:
            add(std::integral_constant<int, 2>{});
            break;
          case 3:
            add(std::integral_constant<int, 3>{});
            break;
          default:
            add(std::integral_constant<int, few_map_taps>{});
        }
      }
    }
  }
  if (!exists) return;
  // Add the bias and store the sums; or compute them again from the products that exist, if a weight is not finite.
#pragma unroll
  for (int i = 0; i < few_map_rows; ++i) {
    if (first + i >= rows.outputs) break;
#pragma unroll
    for (int k = 0; k < maps; ++k) {
      if (k >= g.maps) break;
      const A shift = g.bias ? A(g.bias[group * g.maps + k]) : A(0);
      const A total = odd ? g.plain_sum(rows, cols, image, group, k, first + i, col) : sum.of[i][k];
      g.target[g.target_strides.at(image, group * g.maps + k, rows.target(first + i), cols.target(col))] =
          T(total + shift);
    }
  }
}

// Whether consecutive pixels and consecutive taps of a phase read consecutive rows, and the weights of a channel fit in
// shared memory.
template <class T>
bool fits_few_maps(const Gather<T>& g) {
  constexpr int64_t most = 1 << 24;
  const auto small = [](const Axis& a) {
    return a.in <= most && a.out <= most && a.pad <= most && a.kernel <= most && a.dilation <= most && a.stride <= most;
  };
  if (g.maps > most_few_maps || g.groups > 65535 || !small(g.rows) || !small(g.cols)) return false;
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const bool moves_by_one = rows.source_step == 1 && (rows.source_tap == 1 || rows.source_tap == -1);
  const int64_t blocks =
      phases(g.rows, g.pass) * phases(g.cols, g.pass) *
      ceil_div(g.n * ceil_div(rows.outputs, int64_t(few_map_rows)) * cols.outputs, int64_t(few_map_threads));
  return moves_by_one && g.rows.kernel * g.cols.kernel <= few_map_vectors && rows.sources * cols.sources < most &&
         blocks < int64_t(1) << 31;
}

template <class T>
void launch_few_maps(const Gather<T>& g, Context& context) {
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const int64_t channels = g.groups * g.depth, plane = rows.sources * cols.sources;
  const FewMaps<T> work{g,
                        channels_first(g.source, g.source_strides, g.n, channels, plane, context),
                        channels * plane,
                        plane,
                        int(phases(g.rows, g.pass)),
                        int(phases(g.cols, g.pass))};
  const int64_t units = g.n * ceil_div(rows.outputs, int64_t(few_map_rows)) * cols.outputs;
  const auto blocks =
      unsigned(ceil_div(units, int64_t(few_map_threads)) * int64_t(work.row_phases) * int64_t(work.col_phases));
  const auto kernel = g.maps == 1 ? few_maps<T, 1> : g.maps <= 3 ? few_maps<T, 3> : few_maps<T, 4>;
  kernel<<<dim3(blocks, unsigned(g.groups)), few_map_threads, 0, cudaStream_t(context.stream)>>>(work);
  check_launch("register_tiled");
}

}  // namespace tp::conv
