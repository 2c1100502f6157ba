// The histogram at the speed of memory: privatization with several copies per block.
//
// A thread loads 16 bytes at a time and has several loads in flight. A few warps share each copy of the counters in
// shared memory. The hardware adds up equal bins of a warp at once, so if most elements fall in one bin, only the warps
// of a copy wait for each other. If there are more bins than copies of 4-byte counters can hold, a block uses all the
// shared memory of a multiprocessor for one copy with counters of 2 bytes, and adds a counter to the result when it is
// half full. If there are still more bins, they are divided into windows, and all elements are read once per window.
// Few elements, or very many bins, are counted in global memory: the lanes of a warp that have the same bin first find
// each other, and one of them adds for all.
#include "histogram/extent.h"
#ifdef __CUDACC__
#include "block/launch.cuh"
#include "block/load_store.cuh"
#include "block/warp.cuh"

namespace tp::histogram {
namespace {

constexpr int threads = 256, warps = threads / block::warp_size, loads = 4;
constexpr int counters = 12288;  // of 4 bytes, in 48 KB
constexpr int many_threads = 1024, most_windows = 4;

// Calls f(elements, number of elements) for this thread's share of the elements. Whole warps call it together, and
// `ahead` loads are issued before the first is used.
template <int ahead, int threads, class T, class F>
TP_DEVICE void each_vector(const T* x, int64_t n, F f) {
  constexpr int width = int(16 / sizeof(T));
  using V = block::Vector<T, width>;
  const int lane = int(threadIdx.x) % block::warp_size;
  const int64_t id = int64_t(blockIdx.x) * threads + threadIdx.x, step = int64_t(gridDim.x) * threads;
  const int64_t odd = int64_t(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(T));
  const int64_t head = odd == 0 ? 0 : tp::min(width - odd, n), vectors = (n - head) / width;
  const V* body = reinterpret_cast<const V*>(x + head);
  int64_t first = id - lane;  // the first vector of the warp
  for (const int64_t last = vectors - vectors % (ahead * step); first < last; first += ahead * step) {
    V v[ahead];
#pragma unroll
    for (int j = 0; j < ahead; ++j) v[j] = block::load_once(body + first + lane + j * step);
#pragma unroll
    for (int j = 0; j < ahead; ++j) f(v[j], width);
  }
  for (; first < vectors; first += step) {
    const bool some = first + lane < vectors;
    f(some ? body[first + lane] : V{}, some ? width : 0);
  }
  const int64_t rest = n - vectors * width;  // elements before the first vector and after the last
  for (int64_t i = id; i - lane < rest; i += step) {
    V one{};
    if (i < rest) one.v[0] = x[i < head ? i : i + vectors * width];
    f(one, i < rest ? 1 : 0);
  }
}

// Calls f(element, whether it exists) for this thread's share of the elements.
template <int ahead, class T, class F>
TP_DEVICE void each_element(const T* x, int64_t n, F f) {
  constexpr int width = int(16 / sizeof(T));
  each_vector<ahead, threads>(x, n, [&](const block::Vector<T, width>& v, int some) {
#pragma unroll
    for (int k = 0; k < width; ++k) f(v.v[k], k < some);
  });
}

// `copies` copies of the counters in shared memory; the warps are distributed over them.
template <class Problem>
__global__ __launch_bounds__(threads) void count_in_copies(const Problem problem, const Extent* extent, int copies) {
  extern __shared__ unsigned copy[];
  const int bins = int(problem.bins);
  for (int i = int(threadIdx.x); i < bins * copies; i += threads) copy[i] = 0;
  const auto all_bins = problem.bins_over(extent ? *extent : Extent{});
  unsigned* mine = copy + int(threadIdx.x) / block::warp_size % copies * bins;
  __syncthreads();
  each_element<loads>(problem.in, problem.n, [&](typename Problem::Element x, bool some) {
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

// One block per multiprocessor; blockIdx.y selects a window of `window` bins, two per word. The thread whose addition
// makes a counter half full empties it. Threads that find it half full wait for that thread, so no counter overflows:
// 1024 threads add at most 4 each.
template <class Problem>
__global__ __launch_bounds__(many_threads, 1) void count_in_windows(const Problem problem, const Extent* extent,
                                                                    int window) {
  extern __shared__ unsigned pairs[];
  constexpr int width = int(16 / sizeof(typename Problem::Element)), together = tp::min(width, 4);
  constexpr unsigned half = 1u << 15;
  auto* counts = reinterpret_cast<unsigned long long*>(problem.counts);
  const int64_t first = int64_t(blockIdx.y) * window;
  const unsigned bins = unsigned(tp::min(problem.bins - first, int64_t(window)));
  for (unsigned i = threadIdx.x; i < (bins + 1) / 2; i += many_threads) pairs[i] = 0;
  const auto all_bins = problem.bins_over(extent ? *extent : Extent{});
  __syncthreads();
  each_vector<loads, many_threads>(problem.in, problem.n, [&](const auto& v, int some) {
#pragma unroll
    for (int begin = 0; begin < width; begin += together) {
      unsigned bin_of[together], before[together];
#pragma unroll
      for (int k = 0; k < together; ++k) {
        int64_t bin;
        const bool found = begin + k < some && all_bins.locate(v.v[begin + k], bin);
        bin_of[k] = found && uint64_t(bin - first) < bins ? unsigned(bin - first) : ~0u;
      }
#pragma unroll
      for (int k = 0; k < together; ++k) {
        before[k] = 0;
        if (bin_of[k] != ~0u) before[k] = atomicAdd(pairs + bin_of[k] / 2, bin_of[k] & 1 ? 1u << 16 : 1u);
      }
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const int shift = bin_of[k] & 1 ? 16 : 0;
        if ((before[k] >> shift & 0xffff) != half - 1) continue;
        atomicSub(pairs + bin_of[k] / 2, half << shift);
        atomicAdd(counts + first + bin_of[k], static_cast<unsigned long long>(half));
      }
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const unsigned full = bin_of[k] & 1 ? half << 16 : half;
        if (!(before[k] & full)) continue;
        while (*static_cast<volatile unsigned*>(pairs + bin_of[k] / 2) & full) {
        }
      }
    }
  });
  __syncthreads();
  for (unsigned i = threadIdx.x; i < bins; i += many_threads) {
    const unsigned count = pairs[i / 2] >> (i & 1 ? 16 : 0) & 0xffff;
    if (count > 0) atomicAdd(counts + first + i, static_cast<unsigned long long>(count));
  }
}

template <class Problem>
__global__ __launch_bounds__(threads) void count_by_warps(const Problem problem, const Extent* extent) {
  const auto bins = problem.bins_over(extent ? *extent : Extent{});
  const int lane = int(threadIdx.x) % block::warp_size;
  each_element<1>(problem.in, problem.n, [&](typename Problem::Element x, bool some) {
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
      return check_launch("replicated");
    }
    const int64_t blocks_at_once = block::device_attribute<cudaDevAttrMultiProcessorCount>();
    const int64_t most = block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() / 2 / 64 * 64;
    const int64_t windows = ceil_div(problem.bins, most), window = ceil_div(problem.bins, windows * 2) * 2;
    if (windows <= most_windows && problem.n >= blocks_at_once / 2 * problem.bins) {
      const int bytes = int(window * 2);
      block::allow_shared_memory(count_in_windows<P>, bytes);
      count_in_windows<<<dim3(unsigned(blocks_at_once), unsigned(windows)), many_threads, bytes, stream>>>(
          problem, extent, int(window));
    } else {
      count_by_warps<<<unsigned(blocks), threads, 0, stream>>>(problem, extent);
    }
    check_launch("replicated");
  });
}

}  // namespace tp::histogram
#endif
