// Searches on CUDA that share work. co_rank uses one thread per search. In unmerge, neighbouring elements have
// neighbouring ranks: a block finds the ranks of the first and the last element of its chunk, and loads the part of the
// other sequence between them to shared memory, where its lanes search. If that part is too large, they search in
// global memory. Every element writes only its own value, so the result is the same in every run.
#include "merge/elements.h"
#ifdef __CUDACC__
#include "merge/order.h"
#include "merge/staging.cuh"

namespace tp::co_rank_ladder {
namespace {

constexpr int threads = 256;

template <class Order>
__global__ __launch_bounds__(threads) void co_ranks(Order order, Args args) {
  using Word = typename Order::Word;
  const int64_t m = args.in.m, n = args.in.n, step = int64_t(gridDim.x) * threads;
  for (int64_t q = int64_t(blockIdx.x) * threads + threadIdx.x; q < args.in.rows * args.queries; q += step) {
    const int64_t row = q / args.queries, k = tp::max(int64_t(0), tp::min(args.k[q], m + n));
    const Word *a = static_cast<const Word*>(args.in.a) + row * m, *b = static_cast<const Word*>(args.in.b) + row * n;
    args.ranks[q] = co_rank(k, m, n, [&](int64_t i, int64_t j) { return order.image(a[i]) > order.image(b[j]); });
  }
}

template <class Word>
struct Room {
  static constexpr int count = 32768 / int(sizeof(Word)), chunk = count / 2 < 4096 ? count / 2 : 4096;
};

// One side of a row, from the point of view of its elements.
template <class Word>
struct Side {
  const Word *own, *other;
  int64_t own_count, other_count;
  bool of_a;  // if so, equal elements of the other side come later
};

template <class Order>
__global__ __launch_bounds__(threads) void unmerge_chunks(Order order, Args args, merge::Unmerge unmerge,
                                                          int64_t chunks_a, int64_t chunks) {
  using Word = typename Order::Word;
  constexpr int chunk = Room<Word>::chunk, width = int(16 / sizeof(Word));
  __shared__ alignas(16) Word s[Room<Word>::count + width];
  __shared__ int64_t ends[2];
  const auto values = unmerge.bind(simt::Pointers{});
  const int64_t m = args.in.m, n = args.in.n;
  for (int64_t id = blockIdx.x; id < args.in.rows * chunks; id += gridDim.x) {
    const int64_t row = id / chunks, c = id % chunks;
    const Word *a = static_cast<const Word*>(args.in.a) + row * m, *b = static_cast<const Word*>(args.in.b) + row * n;
    const Side<Word> side = c < chunks_a ? Side<Word>{a, b, m, n, true} : Side<Word>{b, a, n, m, false};
    const int64_t first = (side.of_a ? c : c - chunks_a) * chunk, last = tp::min(first + chunk, side.own_count);
    const auto before = [&](Word other, Word own) {
      return side.of_a ? order.image(other) < order.image(own) : order.image(other) <= order.image(own);
    };
    if (threadIdx.x < 64) {
      const Word key = side.own[threadIdx.x < 32 ? first : last - 1];
      const auto global = [&](int64_t i) { return before(side.other[i], key); };
      ends[threadIdx.x / 32] = merge::search<32>(int64_t(0), side.other_count, global);
    }
    __syncthreads();
    const int64_t lo = ends[0], hi = tp::max(lo, ends[1]);
    const bool fits = hi - lo <= Room<Word>::count;
    Word* const near = s + merge::phase_of(side.other + lo);
    if (fits) merge::load<threads>(near, side.other + lo, int(hi - lo));
    merge::wait_for_loads();
    for (int64_t e = first + threadIdx.x; e < last; e += threads) {
      const Word key = side.own[e];
      int64_t rank;
      if (fits) {
        rank = lo + partition_point(0, int(hi - lo), [&](int i) { return before(near[i], key); });
      } else {
        rank = partition_point(lo, hi, [&](int64_t i) { return before(side.other[i], key); });
      }
      if (side.of_a) {
        values.give_a(row, e, e + rank);
      } else {
        values.give_b(row, e, e + rank);
      }
    }
    __syncthreads();  // shared memory can be reused
  }
}

}  // namespace

void staged(const Args& args, Context& context) {
  merge::with_order(args.in, [&](const auto& order) {
    using Word = typename std::decay_t<decltype(order)>::Word;
    const auto stream = cudaStream_t(context.stream);
    if (args.step == Step::co_rank) {
      const int64_t blocks = ceil_div(args.in.rows * args.queries, int64_t(threads));
      co_ranks<<<unsigned(tp::min(blocks, max_grid)), threads, 0, stream>>>(order, args);
    } else {
      const int64_t chunk = Room<Word>::chunk, chunks_a = ceil_div(args.in.m, chunk);
      const int64_t chunks = chunks_a + ceil_div(args.in.n, chunk);
      const int64_t blocks = tp::min(args.in.rows * chunks, max_grid);
      unmerge_chunks<<<unsigned(blocks), threads, 0, stream>>>(order, args, merge::Unmerge(args), chunks_a, chunks);
    }
    check_launch("staged");
  });
}

}  // namespace tp::co_rank_ladder
#endif
