// The tiles of merge_path: where each begins, and how one is merged.
//
// A tile is `section` consecutive outputs of a row and exactly the two stretches of input that they come from. Its
// block copies the stretches to shared memory by 16 bytes, asynchronously; each lane finds its co-ranks there, merges
// `items` elements into registers, and hands them back through shared memory, from where they leave by 16 bytes. A
// stretch lies in shared memory as far from a 16-byte boundary as in global memory, so both ends of every copy are
// aligned. `items` is odd: lanes that write their elements side by side then hit different banks.
//
// Values follow from global memory, by the places that the lanes have left in shared memory: those of a tile come from
// two stretches again, in ascending order, so that neighbours read neighbours.
#pragma once
#include <cuda_pipeline.h>

#include "merge/order.h"

namespace tp::merge {

template <int threads_, int items_>
struct TileShape {
  static constexpr int threads = threads_, items = items_, section = threads * items;
};

// Two launches overlap: the blocks of the second may come up while the first still runs, and wait for it there.
TP_DEVICE inline void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
TP_DEVICE inline void wait_for_last_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// The first launch: lanes of a group search for the co-rank at a tile's beginning, `lanes` probes at a time, so that a
// search waits for memory less often.
template <int lanes, class Order>
__global__ __launch_bounds__(128) void find_splits(Order order, Sequences in, int64_t section, int64_t tiles,
                                                   int64_t* splits) {
  using Word = typename Order::Word;
  allow_next_kernel();
  const int lane = int(threadIdx.x) % lanes, shift = int(threadIdx.x) % 32 / lanes * lanes;
  const unsigned group = (lanes == 32 ? ~0u : (1u << lanes % 32) - 1u) << shift;
  const int64_t count = in.rows * (tiles + 1), step = int64_t(gridDim.x) * (128 / lanes);
  for (int64_t id = int64_t(blockIdx.x) * (128 / lanes) + threadIdx.x / lanes; id < count; id += step) {
    const int64_t row = id / (tiles + 1), k = tp::min(id % (tiles + 1) * section, in.m + in.n);
    const Word *a = static_cast<const Word*>(in.a) + row * in.m, *b = static_cast<const Word*>(in.b) + row * in.n;
    int64_t lo = tp::max(int64_t(0), k - in.n), hi = tp::min(k, in.m);
    while (lo < hi) {
      const int64_t span = hi - lo;
      const auto probe = [&](int l) { return lo + span * (l + 1) / (lanes + 1); };
      const int64_t i = probe(lane);
      const bool later = order.image(a[i]) > order.image(b[k - 1 - i]);
      const unsigned found = __ballot_sync(group, later) >> shift;
      const int first = found ? __ffs(int(found)) - 1 : lanes;  // the first lane whose element is not among the k
      const int64_t begin = first == 0 ? lo : probe(first - 1) + 1;
      hi = first == lanes ? hi : probe(first);
      lo = begin;
    }
    if (lane == 0) splits[id] = lo;
  }
}

// How many elements after a 16-byte boundary p lies.
template <class Word>
TP_DEVICE int phase_of(const Word* p) {
  return int(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(Word));
}

// copy16 for the whole vectors of to[0..count) = from[0..count), copy1 for the elements before and after them. Both
// have the same phase.
template <int threads, class Word, class Copy16, class Copy1>
TP_DEVICE void copy_by_16(Word* to, const Word* from, int count, Copy16 copy16, Copy1 copy1) {
  constexpr int width = int(16 / sizeof(Word));
  const int head = tp::min((width - phase_of(from)) % width, count), vectors = (count - head) / width;
  const int tail = count - head - vectors * width, t = int(threadIdx.x);
  for (int v = t; v < vectors; v += threads) copy16(to + head + v * width, from + head + v * width);
  if (t < head + tail) {
    const int e = t < head ? t : count - tail + t - head;
    copy1(to + e, from + e);
  }
}

struct Wide {
  uint64_t low, high;
};

template <int threads, class V>
TP_DEVICE void follow(const uint16_t* from, int count, int of_a, const void* a_values, const void* b_values,
                      void* values) {
  const V *a = static_cast<const V*>(a_values), *b = static_cast<const V*>(b_values) - of_a;
#pragma unroll 4
  for (int k = int(threadIdx.x); k < count; k += threads) {
    const int e = from[k];
    static_cast<V*>(values)[k] = *(e < of_a ? a + e : b + e);
  }
}

template <int threads>
TP_DEVICE void follow(int bytes, const uint16_t* from, int count, int of_a, const void* a, const void* b, void* out) {
  if (bytes == 1) {
    follow<threads, uint8_t>(from, count, of_a, a, b, out);
  } else if (bytes == 2) {
    follow<threads, uint16_t>(from, count, of_a, a, b, out);
  } else if (bytes == 4) {
    follow<threads, uint32_t>(from, count, of_a, a, b, out);
  } else if (bytes == 8) {
    follow<threads, uint64_t>(from, count, of_a, a, b, out);
  } else {
    follow<threads, Wide>(from, count, of_a, a, b, out);
  }
}

template <class Shape, bool pairs, class Order>
__global__ __launch_bounds__(Shape::threads) void merge_tiles(Order order, Args args, int64_t tiles,
                                                              const int64_t* splits) {
  using Word = typename Order::Word;
  constexpr int threads = Shape::threads, items = Shape::items, section = Shape::section;
  constexpr int width = int(16 / sizeof(Word));
  __shared__ alignas(16) Word s[section + 3 * width];
  __shared__ uint16_t places[pairs ? section : 1];
  const int64_t m = args.in.m, n = args.in.n, total = m + n;
  wait_for_last_kernel();
  for (int64_t id = blockIdx.x; id < args.in.rows * tiles; id += gridDim.x) {
    const int64_t row = id / tiles, tile = id % tiles, begin = tile * section;
    const int count = int(tp::min(int64_t(section), total - begin));
    const int64_t i = splits[id + row], next = splits[id + row + 1], j = begin - i;
    const int of_a = int(tp::max(int64_t(0), tp::min(next - i, int64_t(count)))), of_b = count - of_a;
    const Word *a = static_cast<const Word*>(args.in.a) + row * m + i,
               *b = static_cast<const Word*>(args.in.b) + row * n + j;
    Word* const s_a = s + phase_of(a);
    Word* const s_b = s + (phase_of(a) + of_a + width - 1) / width * width + phase_of(b);
    const auto load16 = [](Word* to, const Word* from) { __pipeline_memcpy_async(to, from, 16); };
    const auto load1 = [](Word* to, const Word* from) { *to = *from; };
    copy_by_16<threads>(s_a, a, of_a, load16, load1);
    copy_by_16<threads>(s_b, b, of_b, load16, load1);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();

    const int c = tp::min(int(threadIdx.x) * items, count);
    int p = co_rank(c, of_a, of_b, [&](int u, int v) { return order.image(s_a[u]) > order.image(s_b[v]); }), q = c - p;
    Word key[items];
    uint16_t from[pairs ? items : 1];
    Word x = s_a[p], y = s_b[q];
#pragma unroll
    for (int r = 0; r < items; ++r) {  // what is beyond `count` is never stored
      const bool of_b_next = q < of_b && (p >= of_a || order.image(x) > order.image(y));
      key[r] = of_b_next ? y : x;
      if (pairs) from[r] = uint16_t(of_b_next ? of_a + q : p);
      if (of_b_next) {
        y = s_b[++q];
      } else {
        x = s_a[++p];
      }
    }
    __syncthreads();
    Word* const out = static_cast<Word*>(args.keys) + row * total + begin;
    Word* const s_out = s + phase_of(out);
#pragma unroll
    for (int r = 0; r < items; ++r) {
      const int k = int(threadIdx.x) * items + r;
      s_out[k] = key[r];
      if (pairs) places[k] = from[r];
    }
    __syncthreads();
    copy_by_16<threads>(
        s_out, out, count,
        [&](Word* at, const Word* to) {
          __stcs(reinterpret_cast<uint4*>(const_cast<Word*>(to)), *reinterpret_cast<const uint4*>(at));
        },
        [](Word* at, const Word* to) { *const_cast<Word*>(to) = *at; });
    if (pairs) {
      const int bytes = args.value_bytes;
      const auto at = [&](const void* values, int64_t place) {
        return static_cast<const char*>(values) + place * bytes;
      };
      follow<threads>(bytes, places, count, of_a, at(args.a_values, row * m + i), at(args.b_values, row * n + j),
                      static_cast<char*>(args.values) + (row * total + begin) * bytes);
    }
    if (id + gridDim.x < args.in.rows * tiles) __syncthreads();  // shared memory is free again
  }
}

// Launches a kernel that calls wait_for_last_kernel().
template <class... Parameters, class... Arguments>
void launch_behind(Context& context, int64_t blocks, int threads, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.stream = cudaStream_t(context.stream);
  config.attrs = &early;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);
  check_launch("merge_path");
}

template <class Shape, int lanes, class Order>
void merge_by_tiles(const Args& args, const Order& order, Context& context) {
  const int64_t tiles = ceil_div(args.in.m + args.in.n, int64_t(Shape::section)), splits = args.in.rows * (tiles + 1);
  constexpr int64_t max_grid = 2147483647;
  int64_t* split = context.workspace<int64_t>(splits);
  const int64_t blocks = tp::min(ceil_div(splits, int64_t(128 / lanes)), max_grid);
  find_splits<lanes><<<unsigned(blocks), 128, 0, cudaStream_t(context.stream)>>>(order, args.in,
                                                                                 int64_t(Shape::section), tiles, split);
  check_launch("merge_path");
  const auto kernel = args.value_bytes ? merge_tiles<Shape, true, Order> : merge_tiles<Shape, false, Order>;
  launch_behind(context, tp::min(args.in.rows * tiles, max_grid), Shape::threads, kernel, order, args, tiles,
                static_cast<const int64_t*>(split));
}

}  // namespace tp::merge
