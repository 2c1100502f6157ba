// decoupled_lookback over one contiguous row that fits on the chip, with one tile per multiprocessor. Nothing could be
// overlapped by a pipeline here, and each of its barriers would cost time. So each thread keeps its elements in
// registers, and each block waits only twice: for memory, and for the aggregates of all earlier tiles.
#pragma once
#include "block/load_store.cuh"
#include "block/lookback.cuh"
#include "scan/elements.h"

namespace tp::scan::lookback {

template <class E>
struct OneWave {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Input = typename E::Input;
  using Output = typename E::Output;
  static constexpr int largest = int(tp::max(sizeof(Input), sizeof(Output)));
  static constexpr int vector = tp::max(2, tp::min(8, 16 / largest)), chunks = 16 / vector;
  static constexpr int threads = 512, warps = threads / block::warp_size, items = threads * chunks * vector;
  static constexpr int most_tiles = 128;  // the most tile states that a warp reads at once in the look-back

  static bool suits(const E& e) {
    return e.rows == 1 && !e.initial && e.n <= int64_t(most_tiles) * items &&
           ceil_div(e.n, int64_t(items)) <= block::device_attribute<cudaDevAttrMultiProcessorCount>();
  }
};

// The elements of one lane. Chunk j of a warp holds `vector` elements of each lane; the lane's begin at first + j *
// chunk.
template <class E>
class OneWaveItems {
  using Wave = OneWave<E>;
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  using Input = typename E::Input;
  using Output = typename E::Output;
  static constexpr int vector = Wave::vector, chunks = Wave::chunks, chunk = block::warp_size * vector;
  const int lane_;
  const int64_t first_;
  block::Vector<Input, vector> x_[chunks];
  Acc before_[chunks];  // the combination of what precedes the lane's chunk j within the warp

 public:
  TP_DEVICE __forceinline__ OneWaveItems(int warp, int lane)
      : lane_(lane), first_(int64_t(blockIdx.x) * Wave::items + (warp * chunks * block::warp_size + lane) * vector) {}

  TP_DEVICE __forceinline__ void load(const block::Vectors<const Input, vector>& in) {
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      const int64_t p = first_ + j * chunk;
      if (in.aligned && p + vector <= in.count) {
        x_[j] = in.at(p);
        if (in.reverse) x_[j].flip();
      } else {
        x_[j] = in.load(p, Input(0));
      }
    }
  }

  // Computes before_, and returns the aggregate of the warp.
  TP_DEVICE __forceinline__ Acc sum() {
    // sum[j] becomes the combination of chunk j up to and including this lane. All chunks are scanned in one loop, so
    // that the latencies of their shuffles overlap.
    Acc sum[chunks], carry = M::identity();
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      sum[j] = M::identity();
#pragma unroll
      for (int i = 0; i < vector; ++i) sum[j] = M::combine(sum[j], Acc(x_[j].v[i]));
    }
#pragma unroll
    for (int stride = 1; stride < block::warp_size; stride *= 2) {
#pragma unroll
      for (int j = 0; j < chunks; ++j) {
        const Acc left = block::shuffle_up(sum[j], stride);
        if (lane_ >= stride) sum[j] = M::combine(left, sum[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      const Acc left = block::shuffle_up(sum[j], 1);
      before_[j] = lane_ == 0 ? carry : M::combine(carry, left);
      carry = M::combine(carry, block::broadcast(sum[j], block::warp_size - 1));
    }
    return carry;
  }

  // Scans the elements and stores the results. `base` is the combination of everything before the warp.
  TP_DEVICE __forceinline__ void store(const block::Vectors<Output, vector>& out, Acc base, bool exclusive) const {
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      const int64_t p = first_ + j * chunk;
      Acc running = M::combine(base, before_[j]);
      block::Vector<Output, vector> y;
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        const Acc next = M::combine(running, Acc(x_[j].v[i]));
        y.v[i] = Output(exclusive ? running : next);
        running = next;
      }
      if (out.aligned && p + vector <= out.count) {
        if (out.reverse) y.flip();
        out.at(p) = y;
      } else {
        out.store(p, y);
      }
    }
  }
};

template <class E>
__global__ __launch_bounds__(OneWave<E>::threads) void one_wave_kernel(
    const block::Vectors<const typename E::Input, OneWave<E>::vector> in,
    const block::Vectors<typename E::Output, OneWave<E>::vector> out, bool exclusive,
    const block::TileStates<typename E::Acc> states) {
  using Wave = OneWave<E>;
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  __shared__ Acc totals[Wave::warps], before_tile;
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;

  // Load the tile into registers and reduce each warp.
  OneWaveItems<E> items(warp, lane);
  items.load(in);
  const Acc total = items.sum();
  if (lane == 0) totals[warp] = total;
  __syncthreads();

  // Warp 0 publishes the aggregate of the tile and looks back.
  const Acc upto = block::inclusive_scan<M>(lane < Wave::warps ? totals[lane] : M::identity());
  const Acc before_warp = warp == 0 ? M::identity() : block::broadcast(upto, warp - 1);
  if (warp == 0) {
    block::wait_for_launch_before();
    if (lane == Wave::warps - 1 && blockIdx.x + 1 < gridDim.x) states.tiles[blockIdx.x].publish(upto);
    const Acc sum = block::look_back<M, Wave::most_tiles>(states, int(blockIdx.x));
    if (lane == 0) before_tile = sum;
  }
  __syncthreads();

  // Scan the elements after everything that precedes the warp.
  items.store(out, M::combine(before_tile, before_warp), exclusive);
}

template <class E>
void scan_in_one_wave(const E& e, Context& context) {
  using Wave = OneWave<E>;
  const int64_t tiles = ceil_div(e.n, int64_t(Wave::items));
  const block::Vectors<const typename E::Input, Wave::vector> in(e.in, e.n, e.reverse);
  const block::Vectors<typename E::Output, Wave::vector> out(e.out, e.n, e.reverse);
  if (tiles == 1) {
    one_wave_kernel<E><<<1, Wave::threads, 0, cudaStream_t(context.stream)>>>(in, out, e.exclusive, {});
  } else {
    const auto states = block::make_tile_states<typename E::Acc>(context, tiles, 0);
    block::launch_early(one_wave_kernel<E>, unsigned(tiles), Wave::threads, 0, context, in, out, e.exclusive, states);
  }
  check_launch("decoupled_lookback");
}

}  // namespace tp::scan::lookback
