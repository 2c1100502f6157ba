// Depthwise convolution: every channel has one filter of its own, of 3 x 3, 5 x 5 or 7 x 7, with stride 1 or 2. There
// is nothing to share between channels, so a thread computes the outputs of `width` neighbouring channels, which it
// loads as a vector if the channels of a pixel are contiguous. Half types are summed in float and rounded once.
//
// fprop and dgrad compute a strip of neighbouring pixels per thread, so that most loads serve several of them
// (depthwise_gather). wgrad gives each block one row of taps and a slice of the pixels, and adds up the slices in a
// fixed order (depthwise_wgrad).
#pragma once
#include "block/launch.cuh"
#include "block/load_store.cuh"
#include "block/slices.h"
#include "conv/divisor.h"
#include "conv/elements.h"

namespace tp::conv {

constexpr int depthwise_threads = 256;

// How threads are arranged: neighbouring lanes have neighbouring vectors of channels, if the channels of a pixel are
// contiguous, and otherwise neighbouring pixels of one channel.
template <class T>
struct Depthwise {
  Elements<T> e;
  int lanes;             // threads across the channels, a power of 2
  int chunks;            // of the channels
  Divisor down, across;  // of the rows of the target, or of y in wgrad, and of the strips in a row
  int strips;            // of all images
  int64_t slices;        // wgrad: blocks that share the pixels of a chunk
  float* sums;           // wgrad: [slices][weights]

  Depthwise(const Elements<T>& e, int width, int64_t rows, int64_t strips_of_row)
      : e(e), lanes(1), down(rows), across(strips_of_row), strips(int(e.n * rows * strips_of_row)), slices(1), sums() {
    const int64_t vectors = ceil_div(e.c, int64_t(width));
    const auto chunks_of = [&](int lanes) { return ceil_div(vectors, int64_t(lanes)); };
    // As few idle threads as possible, then long accesses.
    for (int n = 4; e.x_strides.channel == 1 && n <= 32; n *= 2) {
      if (lanes == 1 || chunks_of(n) * n <= chunks_of(lanes) * lanes) lanes = n;
    }
    chunks = int(chunks_of(lanes));
  }
  TP_DEVICE int lane() const { return int(threadIdx.x) % lanes; }
  // The strips that a block handles at once, and which of them is this thread's.
  TP_HD int strips_at_once() const { return depthwise_threads / lanes; }
  TP_DEVICE int strip() const { return int(threadIdx.x) / lanes; }
};

// The filters of a block's channels as [tap][channel], for dgrad with taps in reverse order. Returns whether all are
// finite.
template <int taps, bool reversed, class T>
TP_DEVICE bool stage_filters(const Depthwise<T>& work, int64_t first, int channels, float* to) {
  float odd = 0;
  for (int i = int(threadIdx.x); i < channels * taps; i += depthwise_threads) {
    const int channel = i / taps, tap = i % taps;
    float weight = 0;
    if (first + channel < work.e.c) weight = acc_t<T>(work.e.weight[first * taps + i]);
    to[(reversed ? taps - 1 - tap : tap) * channels + channel] = weight;
    odd += weight * 0.0f;
  }
  return __syncthreads_or(odd != 0.0f) == 0;
}

// A row of vectors of a source image, as floats; vectors that are not in the image are zeros.
template <class T, int width, int count>
struct DepthwiseRow {
  float v[count][width];
  bool exists[count];

  TP_DEVICE void load(const T* row, int col, int cols, int64_t step, bool inside) {
    using V = block::Vector<T, width>;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      exists[j] = inside && unsigned(col + j) < unsigned(cols);
      V loaded{};
      if (exists[j]) loaded = *reinterpret_cast<const V*>(row + (col + j) * step);
#pragma unroll
      for (int k = 0; k < width; ++k) v[j][k] = acc_t<T>(loaded.v[k]);
    }
  }
};

// Pass fprop, or dgrad with stride 1, which is fprop with reversed filters but for padding: a product with padding
// counts in fprop, where NaN times zero is NaN, and does not exist in dgrad. It can be skipped if it is zero.
template <class T, int K, int S, int R, int width, bool dgrad>
__global__ void __launch_bounds__(depthwise_threads) depthwise_gather(const __grid_constant__ Depthwise<T> work) {
  using V = block::Vector<T, width>;
  extern __shared__ float filters[];
  const Elements<T>& e = work.e;
  const Strides &from = dgrad ? e.y_strides : e.x_strides, &to = dgrad ? e.x_strides : e.y_strides;
  const int rows = int(dgrad ? e.rows.out : e.rows.in), cols = int(dgrad ? e.cols.out : e.cols.in),
            target_cols = int(dgrad ? e.cols.in : e.cols.out);
  const int row_pad = int(dgrad ? K - 1 - e.rows.pad : e.rows.pad),
            col_pad = int(dgrad ? K - 1 - e.cols.pad : e.cols.pad);
  const int channels = work.lanes * width, chunk = int(blockIdx.x) % work.chunks;
  const bool skips = stage_filters<K * K, dgrad>(work, int64_t(chunk) * channels, channels, filters) || dgrad;
  const int64_t channel = int64_t(chunk) * channels + work.lane() * width;
  if (channel >= e.c) return;
  const float* const taps = filters + work.lane() * width;
  const T* const source = (dgrad ? e.y : e.x) + channel * from.channel;
  T* const target = (dgrad ? e.x : e.y) + channel * to.channel;
  float shift[width] = {};
#pragma unroll
  for (int k = 0; k < width; ++k) {
    if (!dgrad && e.bias) shift[k] = acc_t<T>(e.bias[channel + k]);
  }
  const int step = int(gridDim.x) / work.chunks * work.strips_at_once();
  for (int strip = int(blockIdx.x) / work.chunks * work.strips_at_once() + work.strip(); strip < work.strips;
       strip += step) {
    int col = strip, row = work.across.divide(col), image = row;
    image = work.down.divide(row);
    col *= R;
    float sum[R][width] = {};
#pragma unroll 1
    for (int p = 0; p < K; ++p) {
      constexpr int count = (R - 1) * S + K;
      const int i = row * S - row_pad + p;
      const bool inside = unsigned(i) < unsigned(rows);
      if (skips && !inside) continue;
      DepthwiseRow<T, width, count> x;
      x.load(source + image * from.image + i * from.row, col * S - col_pad, cols, from.col, inside);
#pragma unroll
      for (int q = 0; q < K; ++q) {
        float weight[width];
#pragma unroll
        for (int k = 0; k < width; ++k) weight[k] = taps[(p * K + q) * channels + k];
#pragma unroll
        for (int r = 0; r < R; ++r) {
          if (skips && !x.exists[r * S + q]) continue;
#pragma unroll
          for (int k = 0; k < width; ++k) sum[r][k] += x.v[r * S + q][k] * weight[k];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (col + r >= target_cols) continue;
      V result;
#pragma unroll
      for (int k = 0; k < width; ++k) result.v[k] = T(sum[r][k] + shift[k]);
      *reinterpret_cast<V*>(target + image * to.image + row * to.row + (col + r) * to.col) = result;
    }
  }
}

// dgrad with stride 2: one pixel per thread, of which only some taps have read it.
template <class T, int K, int width>
__global__ void __launch_bounds__(depthwise_threads) depthwise_spread(const __grid_constant__ Depthwise<T> work) {
  using V = block::Vector<T, width>;
  extern __shared__ float filters[];
  const Elements<T>& e = work.e;
  const int channels = work.lanes * width, chunk = int(blockIdx.x) % work.chunks;
  stage_filters<K * K, false>(work, int64_t(chunk) * channels, channels, filters);
  const int64_t channel = int64_t(chunk) * channels + work.lane() * width;
  if (channel >= e.c) return;
  const float* const taps = filters + work.lane() * width;
  const T* const source = e.y + channel * e.y_strides.channel;
  T* const target = e.x + channel * e.x_strides.channel;
  const int step = int(gridDim.x) / work.chunks * work.strips_at_once();
  for (int strip = int(blockIdx.x) / work.chunks * work.strips_at_once() + work.strip(); strip < work.strips;
       strip += step) {
    int col = strip, row = work.across.divide(col), image = row;
    image = work.down.divide(row);
    float sum[width] = {};
#pragma unroll
    for (int p = 0; p < K; ++p) {
      const int down = row + int(e.rows.pad) - p, h = down / 2;
      if (down < 0 || down % 2 != 0 || h >= int(e.rows.out)) continue;
#pragma unroll
      for (int q = 0; q < K; ++q) {
        const int across = col + int(e.cols.pad) - q, w = across / 2;
        if (across < 0 || across % 2 != 0 || w >= int(e.cols.out)) continue;
        const V dy =
            *reinterpret_cast<const V*>(source + image * e.y_strides.image + h * e.y_strides.row + w * e.y_strides.col);
#pragma unroll
        for (int k = 0; k < width; ++k) sum[k] += acc_t<T>(dy.v[k]) * taps[(p * K + q) * channels + k];
      }
    }
    V result;
#pragma unroll
    for (int k = 0; k < width; ++k) result.v[k] = T(sum[k]);
    *reinterpret_cast<V*>(target + image * e.x_strides.image + row * e.x_strides.row + col * e.x_strides.col) = result;
  }
}

// Block (x, p): row p of the taps of a chunk of channels, from one slice of the strips of y.
template <class T, int K, int S, int R, int width>
__global__ void __launch_bounds__(depthwise_threads) depthwise_wgrad(const __grid_constant__ Depthwise<T> work) {
  __shared__ float pool[depthwise_threads * width];
  const Elements<T>& e = work.e;
  const int chunk = int(blockIdx.x) % work.chunks, slice = int(blockIdx.x) / work.chunks, p = int(blockIdx.y);
  const int64_t channel = (int64_t(chunk) * work.lanes + work.lane()) * width;
  const bool active = channel < e.c;
  const T *const x = e.x + channel * e.x_strides.channel, *const y = e.y + channel * e.y_strides.channel;
  const int begin = int(slice * int64_t(work.strips) / work.slices),
            end = int((slice + 1) * int64_t(work.strips) / work.slices);
  float sum[K][width] = {};
  for (int strip = begin + work.strip(); active && strip < end; strip += work.strips_at_once()) {
    int w = strip, h = work.across.divide(w), image = h;
    image = work.down.divide(h);
    w *= R;
    const int i = h * S - int(e.rows.pad) + p;
    DepthwiseRow<T, width, R> dy;
    DepthwiseRow<T, width, (R - 1) * S + K> row;
    dy.load(y + image * e.y_strides.image + h * e.y_strides.row, w, int(e.cols.out), e.y_strides.col, true);
    row.load(x + image * e.x_strides.image + i * e.x_strides.row, w * S - int(e.cols.pad), int(e.cols.in),
             e.x_strides.col, unsigned(i) < unsigned(e.rows.in));
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if (r > 0 && !dy.exists[r]) break;
#pragma unroll
      for (int q = 0; q < K; ++q) {
#pragma unroll
        for (int k = 0; k < width; ++k) sum[q][k] += dy.v[r][k] * row.v[r * S + q][k];
      }
    }
  }
  // Add up the threads that share channels, by a tree; then store the sums.
  float* const mine = pool + threadIdx.x * width;
#pragma unroll 1
  for (int q = 0; q < K; ++q) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < width; ++k) {
#pragma unroll
      for (int j = 0; j < K; ++j) mine[k] = j == q ? sum[j][k] : mine[k];
    }
    for (int half = work.strips_at_once() / 2; half > 0; half /= 2) {
      __syncthreads();
      if (work.strip() >= half) continue;
#pragma unroll
      for (int k = 0; k < width; ++k) mine[k] += mine[half * work.lanes * width + k];
    }
    if (work.strip() > 0 || !active) continue;
    float* const to = work.sums + slice * e.weights() + channel * (K * K) + p * K + q;
#pragma unroll
    for (int k = 0; k < width; ++k) to[k * K * K] = mine[k];
  }
}

// ---- the host's part

// Whether the kernels suit: they count pixels and positions in an image in int.
template <class T>
bool is_depthwise(const Elements<T>& e) {
  constexpr int64_t most = int64_t(1) << 29;
  const auto suits = [](const Axis& a) {
    return (a.kernel == 3 || a.kernel == 5 || a.kernel == 7) && (a.stride == 1 || a.stride == 2) && a.dilation == 1 &&
           a.pad < most && a.in < most && a.out < most;
  };
  return sizeof(acc_t<T>) == 4 && e.channels == 1 && e.maps == 1 && suits(e.rows) && e.rows.kernel == e.cols.kernel &&
         e.rows.stride == e.cols.stride && max(e.x_strides.image, e.y_strides.image) < most &&
         e.rows.in * e.cols.in * e.n < dividend_limit && e.rows.out * e.cols.out * e.n < dividend_limit && e.c < most;
}

// Calls f(K, S, width) with constants. Vectors have four channels if they are aligned; of half types, eight would take
// too many registers.
template <class T, class F>
void with_depthwise(const Elements<T>& e, const F& f) {
  constexpr int widest = 4;
  const auto is_aligned = [](const T* p) { return reinterpret_cast<uintptr_t>(p) % (widest * sizeof(T)) == 0; };
  const bool vectors = e.x_strides.channel == 1 && e.c % widest == 0 && is_aligned(e.x) && is_aligned(e.y);
  const auto with_width = [&](auto k, auto s) {
    vectors ? f(k, s, std::integral_constant<int, widest>()) : f(k, s, std::integral_constant<int, 1>());
  };
  const auto with_stride = [&](auto k) {
    e.rows.stride == 1 ? with_width(k, std::integral_constant<int, 1>())
                       : with_width(k, std::integral_constant<int, 2>());
  };
  e.rows.kernel == 3   ? with_stride(std::integral_constant<int, 3>())
  : e.rows.kernel == 5 ? with_stride(std::integral_constant<int, 5>())
                       : with_stride(std::integral_constant<int, 7>());
}

constexpr int64_t depthwise_blocks = 132 * 8;  // as many as an H200 runs at once

template <class T>
void launch_depthwise_gather(const Elements<T>& e, Pass pass, Context& context) {
  const bool dgrad = pass == Pass::dgrad;
  const int64_t rows = dgrad ? e.rows.in : e.rows.out, cols = dgrad ? e.cols.in : e.cols.out;
  if (e.n * e.c * rows * cols == 0) return;
  with_depthwise(e, [&](auto k, auto s, auto w) {
    constexpr int K = decltype(k)::value, S = decltype(s)::value, width = decltype(w)::value;
    const int R = width == 1 || (dgrad && S == 2) ? 1 : 4;
    const Depthwise<T> work(e, width, rows, ceil_div(cols, int64_t(R)));
    const int64_t per_chunk = ceil_div(int64_t(work.strips), int64_t(work.strips_at_once()));
    const int64_t blocks = work.chunks * min(per_chunk, ceil_div(4 * depthwise_blocks, int64_t(work.chunks)));
    const int bytes = K * K * work.lanes * width * int(sizeof(float));
    constexpr int strip = width == 1 ? 1 : 4;
    auto kernel = !dgrad   ? depthwise_gather<T, K, S, strip, width, false>
                  : S == 1 ? depthwise_gather<T, K, 1, strip, width, true>
                           : depthwise_spread<T, K, width>;
    block::allow_shared_memory(kernel, bytes);
    kernel<<<unsigned(blocks), depthwise_threads, bytes, cudaStream_t(context.stream)>>>(work);
    check_launch("register_tiled");
  });
}

template <class T>
void launch_depthwise_wgrad(const Elements<T>& e, Context& context) {
  with_depthwise(e, [&](auto k, auto s, auto w) {
    constexpr int K = decltype(k)::value, S = decltype(s)::value, width = decltype(w)::value;
    constexpr int R = width == 1 ? 1 : 4;
    Depthwise<T> work(e, width, max(e.rows.out, int64_t(1)), max(ceil_div(e.cols.out, int64_t(R)), int64_t(1)));
    work.strips = e.rows.out * e.cols.out == 0 ? 0 : work.strips;
    const int64_t most = ceil_div(int64_t(work.strips), int64_t(4 * work.strips_at_once()));
    work.slices = max(int64_t(1), min(most, ceil_div(depthwise_blocks, int64_t(work.chunks * K))));
    work.sums = context.workspace<float>(work.slices * e.weights());
    depthwise_wgrad<T, K, S, R, width>
        <<<dim3(unsigned(work.chunks * work.slices), K), depthwise_threads, 0, cudaStream_t(context.stream)>>>(work);
    check_launch("register_tiled");
    block::sum_slices(work.sums, work.slices, e.weights(), e.weight, context);
  });
}

}  // namespace tp::conv
