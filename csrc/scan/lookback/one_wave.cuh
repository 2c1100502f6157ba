// decoupled_lookback over one contiguous row that fits the chip at once, a tile a multiprocessor. Nothing is to be
// gained by a pipeline then, and every hand-over in it costs: a thread keeps its elements in registers, and a block
// waits for memory once and for the totals of all tiles before its own once.
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
  static constexpr int most_tiles = 128;  // and as many cells does a warp look up at once

  static bool suits(const E& e) {
    return e.rows == 1 && e.n <= int64_t(most_tiles) * items &&
           ceil_div(e.n, int64_t(items)) <= block::device_attribute<cudaDevAttrMultiProcessorCount>();
  }
};

template <class E>
__global__ __launch_bounds__(OneWave<E>::threads) void one_wave_kernel(
    const block::Vectors<const typename E::Input, OneWave<E>::vector> in,
    const block::Vectors<typename E::Output, OneWave<E>::vector> out, bool exclusive,
    const block::Chain<typename E::Acc> chain) {
  using Wave = OneWave<E>;
  using M = typename E::Monoid;
  using Acc = typename E::Acc;
  constexpr int vector = Wave::vector, chunks = Wave::chunks, chunk = block::warp_size * vector;
  __shared__ Acc totals[Wave::warps], before_tile;
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  const int64_t first = int64_t(blockIdx.x) * Wave::items + (warp * chunks * block::warp_size + lane) * vector;

  block::Vector<typename E::Input, vector> x[chunks];
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    const int64_t p = first + j * chunk;
    if (in.aligned && p + vector <= in.count) {
      x[j] = in.at(p);
      if (in.reverse) x[j].flip();
    } else {
      x[j] = in.load(p, typename E::Input(0));
    }
  }

  // sum[j] is of chunk j up to this lane's elements, the chunks side by side so that their steps overlap.
  Acc sum[chunks], before[chunks], carry = M::identity();
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    sum[j] = M::identity();
#pragma unroll
    for (int i = 0; i < vector; ++i) sum[j] = M::combine(sum[j], Acc(x[j].v[i]));
  }
#pragma unroll
  for (int stride = 1; stride < block::warp_size; stride *= 2) {
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      const Acc left = block::shuffle_up(sum[j], stride);
      if (lane >= stride) sum[j] = M::combine(left, sum[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    const Acc left = block::shuffle_up(sum[j], 1);
    before[j] = lane == 0 ? carry : M::combine(carry, left);
    carry = M::combine(carry, block::broadcast(sum[j], block::warp_size - 1));
  }
  if (lane == 0) totals[warp] = carry;
  __syncthreads();

  const Acc upto = block::inclusive_scan<M>(lane < Wave::warps ? totals[lane] : M::identity());
  const Acc before_warp = warp == 0 ? M::identity() : block::broadcast(upto, warp - 1);
  if (warp == 0) {
    block::wait_for_launch_before();
    if (lane == Wave::warps - 1 && blockIdx.x + 1 < gridDim.x) chain.tiles[blockIdx.x].publish(upto);
    const Acc sum = block::look_back<M, Wave::most_tiles>(chain, blockIdx.x, 0);
    if (lane == 0) before_tile = sum;
  }
  __syncthreads();

  const Acc base = M::combine(before_tile, before_warp);
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    const int64_t p = first + j * chunk;
    Acc running = M::combine(base, before[j]);
    block::Vector<typename E::Output, vector> y;
#pragma unroll
    for (int i = 0; i < vector; ++i) {
      const Acc next = M::combine(running, Acc(x[j].v[i]));
      y.v[i] = typename E::Output(exclusive ? running : next);
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

template <class E>
void scan_in_one_wave(const E& e, Context& context) {
  using Wave = OneWave<E>;
  const int64_t tiles = ceil_div(e.n, int64_t(Wave::items));
  const block::Vectors<const typename E::Input, Wave::vector> in(e.in, e.n, e.reverse);
  const block::Vectors<typename E::Output, Wave::vector> out(e.out, e.n, e.reverse);
  if (tiles == 1) {
    one_wave_kernel<E><<<1, Wave::threads, 0, cudaStream_t(context.stream)>>>(in, out, e.exclusive, {});
  } else {
    const auto chain = block::make_chain<typename E::Acc>(context, tiles, 0);
    block::launch_early(one_wave_kernel<E>, unsigned(tiles), Wave::threads, 0, context, in, out, e.exclusive, chain);
  }
  check_launch("decoupled_lookback");
}

}  // namespace tp::scan::lookback
