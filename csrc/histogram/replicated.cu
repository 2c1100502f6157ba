// The histogram at the speed of memory: privatized, with several copies per block.
//
// A thread loads 16 bytes at a time, several such loads ahead. Every few warps have their own copy of the counters in
// shared memory, where the hardware combines equal bins of a warp, so that one full bin only makes warps wait for each
// other. Bins that do not fit in shared memory are counted in global memory: the lanes of a warp with the same bin find
// each other first, and one of them adds for all.
#include "histogram/extent.h"
#ifdef __CUDACC__
#include "block/load_store.cuh"
#include "block/warp.cuh"

namespace tp::histogram {
namespace {

constexpr int threads = 256, warps = threads / block::warp_size, loads = 4;
constexpr int counters = 12288;  // of 4 bytes, in 48 KB

// Calls f(element, whether there is one) for this thread's share of the elements; whole warps call it together.
template <class T, class F>
TP_DEVICE void each_element(const T* x, int64_t n, F f) {
  constexpr int width = int(16 / sizeof(T));
  using V = block::Vector<T, width>;
  const int lane = int(threadIdx.x) % block::warp_size;
  const int64_t id = int64_t(blockIdx.x) * threads + threadIdx.x, step = int64_t(gridDim.x) * threads;
  const int64_t odd = int64_t(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
  const int64_t head = odd == 0 ? 0 : tp::min(width - odd, n), vectors = (n - head) / width;
  const V* body = reinterpret_cast<const V*>(x + head);
  int64_t first = id - lane;  // of the warp
  for (const int64_t last = vectors - vectors % (loads * step); first < last; first += loads * step) {
    V v[loads];
#pragma unroll
    for (int j = 0; j < loads; ++j) v[j] = body[first + lane + j * step];
#pragma unroll
    for (int j = 0; j < loads; ++j) {
#pragma unroll
      for (int k = 0; k < width; ++k) f(v[j].v[k], true);
    }
  }
  for (; first < vectors; first += step) {
    const bool some = first + lane < vectors;
    const V v = some ? body[first + lane] : V{};
#pragma unroll
    for (int k = 0; k < width; ++k) f(v.v[k], some);
  }
  const int64_t rest = n - vectors * width;  // before the first vector and after the last
  for (int64_t i = id; i - lane < rest; i += step) {
    const bool some = i < rest;
    f(some ? x[i < head ? i : i + vectors * width] : T{}, some);
  }
}

// `copies` copies of the counters in shared memory, distributed over the warps.
template <class Problem>
__global__ __launch_bounds__(threads) void count_in_copies(const Problem problem, const Extent* extent, int copies) {
  extern __shared__ unsigned copy[];
  const int bins = int(problem.bins);
  for (int i = int(threadIdx.x); i < bins * copies; i += threads) copy[i] = 0;
  const auto all_bins = problem.bins_over(extent ? *extent : Extent{});
  unsigned* mine = copy + int(threadIdx.x) / block::warp_size % copies * bins;
  __syncthreads();
  each_element(problem.in, problem.n, [&](typename Problem::Element x, bool some) {
    int64_t bin;
    if (some && all_bins.locate(x, bin)) atomicAdd(mine + int(bin), 1u);
  });
  __syncthreads();
  for (int i = int(threadIdx.x); i < bins; i += threads) {
    unsigned long long sum = 0;
    for (int k = 0; k < copies; ++k) sum += copy[k * bins + i];
    if (sum > 0) atomicAdd(reinterpret_cast<unsigned long long*>(problem.counts + i), sum);
  }
}

template <class Problem>
__global__ __launch_bounds__(threads) void count_by_warps(const Problem problem, const Extent* extent) {
  const auto bins = problem.bins_over(extent ? *extent : Extent{});
  const int lane = int(threadIdx.x) % block::warp_size;
  each_element(problem.in, problem.n, [&](typename Problem::Element x, bool some) {
    int64_t bin;
    const bool counts = bins.locate(x, bin) && some;
    const unsigned same = __match_any_sync(~0u, static_cast<long long>(counts ? bin : -1));
    if (counts && lane == __ffs(int(same)) - 1) {
      atomicAdd(reinterpret_cast<unsigned long long*>(problem.counts + bin), (unsigned long long)(__popc(same)));
    }
  });
}

}  // namespace

void replicated(const Args& args, Context& context) {
  with_problem(args, [&](const auto& problem) {
    using P = std::decay_t<decltype(problem)>;
    const Extent* extent = find_extent(problem, "replicated", context);
    context.clear(problem.counts, problem.bins * int64_t(sizeof(int64_t)));
    const int64_t share = threads * loads * int64_t(16 / sizeof(typename P::Element));
    const int64_t blocks = tp::min(ceil_div(problem.n, share), most_blocks);
    if (blocks == 0) return;
    const auto stream = cudaStream_t(context.stream);
    if (problem.bins <= counters) {
      const int copies = int(tp::min(int64_t(warps), counters / 2 / problem.bins));
      const int used = tp::max(copies, 1);
      count_in_copies<<<unsigned(blocks), threads, sizeof(unsigned) * used * problem.bins, stream>>>(problem, extent,
                                                                                                     used);
    } else {
      count_by_warps<<<unsigned(blocks), threads, 0, stream>>>(problem, extent);
    }
    check_launch("replicated");
  });
}

}  // namespace tp::histogram
#endif
