// Running extrema with their places on a device, in one launch: each element is read once and each result written once.
//
// Lines that lie end to end are cut into tiles, whatever their length. What covers some elements starts at the last
// head of a line among them, if there is one, and then does not combine with what precedes it. A tile publishes its
// leader and looks back upon the tiles before (block/lookback.cuh).
#ifdef __CUDACC__
#include "block/load_store.cuh"
#include "block/lookback.cuh"
#include "core/op.h"
#include "core/simt.h"
#include "scan/extrema.h"

namespace tp::scan {
namespace {

constexpr int threads = 256, warps = threads / block::warp_size, chunks = 4;
constexpr int tiles_a_group = 128;

template <class A>
struct Leader {
  A value;
  int place;  // in scan order
};

template <class A, bool least>
struct Leading {
  using Acc = Leader<A>;
  // No element leads it that does not lead what precedes it: as a partial result its place is never seen.
  TP_HD static Acc identity() { return {least ? detail::highest<A>() : detail::lowest<A>(), 0}; }
  TP_HD static Acc combine(Acc earlier, Acc later) { return leads(later.value, earlier.value) ? later : earlier; }
  TP_HD static bool leads(A x, A held) { return (least ? !(x >= held) : !(x <= held)) && held == held; }
};

// `n` elements a line, `count` in all.
template <class T, bool least>
struct Lines {
  using Element = T;
  using A = acc_t<T>;
  using M = Leading<A, least>;
  static constexpr int vector = sizeof(T) == 8 ? 2 : 4, chunk = block::warp_size * vector;
  static constexpr int tile_items = threads * chunks * vector;
  block::Vectors<const T, vector> in;
  block::Vectors<T, vector> out;
  block::Vectors<int64_t, vector> index;
  int64_t count;
  unsigned n, step;  // a chunk is `step` places further in its line
  bool whole;        // all vectors are aligned

  TP_DEVICE unsigned next(unsigned place, unsigned by) const { return place >= n - by ? place - (n - by) : place + by; }

  // Stores a full chunk. A lane's places are 16 or 32 bytes: two lanes exchange halves, so that neighbours write
  // neighbouring words.
  TP_DEVICE void store_places(int64_t p, const int (&places)[vector], int lane) const {
    using Two = block::Vector<int64_t, 2>;
    int64_t* mine = index.data + (index.reverse ? count - vector - p : p);
    if constexpr (vector == 2) {
      *reinterpret_cast<Two*>(mine) = {{places[0], places[1]}};
    } else {
      const bool low = (lane & 1) == int(index.reverse);
      const int first = __shfl_xor_sync(~0u, low ? places[2] : places[0], 1);
      const int second = __shfl_xor_sync(~0u, low ? places[3] : places[1], 1);
      int64_t* pair = low ? mine : mine - vector + 2;
      *reinterpret_cast<Two*>(pair) = low ? Two{{places[0], places[1]}} : Two{{first, second}};
      *reinterpret_cast<Two*>(pair + vector) = low ? Two{{first, second}} : Two{{places[2], places[3]}};
    }
  }
};

template <class L>
__global__ __launch_bounds__(threads, 3) void extrema_kernel(const L lines,
                                                             const block::Chain<Leader<typename L::A>> chain) {
  using T = typename L::Element;
  using M = typename L::M;
  using A = typename L::A;
  using Acc = Leader<A>;
  constexpr int vector = L::vector, chunk = L::chunk, tile_items = L::tile_items;
  __shared__ Acc totals[warps], before_tile;
  __shared__ bool starts_in[warps];
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  block::wait_for_launch_before();
  const int64_t tile = block::take_ticket(chain), tile_first = tile * tile_items;
  const int64_t first = tile_first + (warp * chunks * block::warp_size + lane) * vector;

  block::Vector<T, vector> x[chunks];
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    const int64_t p = first + j * chunk;
    if (lines.whole && p + vector <= lines.count) {
      x[j] = lines.in.at(p);
      if (lines.in.reverse) x[j].flip();
    } else {
      x[j] = lines.in.load(p, {});
    }
  }
  const bool narrow = lines.count >> 32 == 0;
  const unsigned first_place = unsigned(narrow ? unsigned(first) % lines.n : unsigned(first % lines.n));

  // leader[j] is of chunk j up to this lane's elements, from the last head on.
  Acc leader[chunks], before[chunks], carry = M::identity();
  unsigned heads[chunks];  // the lanes that hold one
  unsigned place = first_place;
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    Acc running = M::identity();
    unsigned k = place;
    bool starts = false;
#pragma unroll
    for (int i = 0; i < vector; ++i) {
      const Acc here{A(x[j].v[i]), int(k)};
      running = k == 0 ? here : M::combine(running, here);
      starts = starts || k == 0;
      if (++k == lines.n) k = 0;
    }
    leader[j] = running;
    heads[j] = __ballot_sync(~0u, starts);
    place = lines.next(place, lines.step);
  }
#pragma unroll
  for (int stride = 1; stride < block::warp_size; stride *= 2) {
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      const Acc left = block::shuffle_up(leader[j], stride);
      const int open = __clz(int(heads[j] << (31 - lane)));  // lanes from mine down without a head
      if (lane >= stride && open >= stride) leader[j] = M::combine(left, leader[j]);
    }
  }
  // before[j] is what precedes the lane's chunk j in its warp and line; `joined`: the line began before the warp.
  unsigned joined = 0;
  bool starts = false;
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    const Acc left = block::shuffle_up(leader[j], 1), total = block::broadcast(leader[j], block::warp_size - 1);
    const bool open = (heads[j] & ((1u << lane) - 1)) == 0;
    before[j] = lane == 0 ? carry : open ? M::combine(carry, left) : left;
    if (!starts && open) joined |= 1u << j;
    carry = heads[j] ? total : M::combine(carry, total);
    starts = starts || heads[j];
  }
  if (lane == 0) totals[warp] = carry, starts_in[warp] = starts;
  __syncthreads();

  // Of the tile before this warp, and of all.
  Acc before_warp = M::identity(), all = M::identity();
  bool warp_joined = true, tile_starts = false;
#pragma unroll
  for (int w = 0; w < warps; ++w) {
    if (w == warp) before_warp = all, warp_joined = !tile_starts;
    all = starts_in[w] ? totals[w] : M::combine(all, totals[w]);
    tile_starts = tile_starts || starts_in[w];
  }
  if (warp == 0 && chain.tickets) {
    const bool last = tile_first + tile_items >= lines.count, ends_group = tile % tiles_a_group == tiles_a_group - 1;
    if (lane == 0 && !last) chain.tiles[tile].publish(all);
    const int64_t head = tile_first - int64_t(block::broadcast(first_place, 0));  // of the line that reaches here
    const int64_t start = int64_t(head) / tile_items;
    Acc sum = M::identity();
    if (head < tile_first) sum = block::look_back<M, tiles_a_group>(chain, tile, start);
    if (lane == 0) {
      before_tile = sum;
      if (ends_group && !last) chain.groups[tile / tiles_a_group].publish(tile_starts ? all : M::combine(sum, all));
    }
  }
  if (!chain.tickets && threadIdx.x == 0) before_tile = M::identity();
  __syncthreads();

  const Acc base = warp_joined ? M::combine(before_tile, before_warp) : before_warp;
  place = first_place;
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    const int64_t p = first + j * chunk;
    Acc running = joined >> j & 1 ? M::combine(base, before[j]) : before[j];
    block::Vector<T, vector> y;
    int places[vector];
    unsigned k = place;
#pragma unroll
    for (int i = 0; i < vector; ++i) {
      const Acc here{A(x[j].v[i]), int(k)};
      running = k == 0 ? here : M::combine(running, here);
      y.v[i] = T(running.value);
      places[i] = lines.in.reverse ? int(lines.n) - 1 - running.place : running.place;
      if (++k == lines.n) k = 0;
    }
    place = lines.next(place, lines.step);
    const int64_t end = p + (block::warp_size - lane) * vector;  // of the warp's chunk
    if (lines.whole && end <= lines.count) {
      if (lines.out.reverse) {
        y.flip();
#pragma unroll
        for (int i = 0; i < vector / 2; ++i) {
          const int held = places[i];
          places[i] = places[vector - 1 - i];
          places[vector - 1 - i] = held;
        }
      }
      lines.out.at(p) = y;
      lines.store_places(p, places, lane);
    } else {
      block::Vector<int64_t, vector> wide;
#pragma unroll
      for (int i = 0; i < vector; ++i) wide.v[i] = places[i];
      lines.out.store(p, y);
      lines.index.store(p, wide);
    }
  }
}

template <class T, bool least>
void launch(const ExtremaArgs& args, Context& context) {
  using L = Lines<T, least>;
  const int64_t count = args.outer * args.n, tiles = ceil_div(count, int64_t(L::tile_items));
  require(tiles <= 2147483647, "scan_with_indices: ", count, " elements are too many for one launch");
  L lines{{static_cast<const T*>(args.in), count, args.reverse},
          {static_cast<T*>(args.out), count, args.reverse},
          {args.index, count, args.reverse},
          count,
          unsigned(args.n),
          unsigned(L::chunk % args.n),
          false};
  lines.whole = lines.in.aligned && lines.out.aligned && lines.index.aligned;
  block::Chain<Leader<acc_t<T>>> chain{};
  if (tiles == 1) {
    extrema_kernel<L><<<1, threads, 0, cudaStream_t(context.stream)>>>(lines, chain);
  } else {
    chain = block::make_chain<Leader<acc_t<T>>>(context, tiles, ceil_div(tiles, int64_t(tiles_a_group)));
    block::launch_early(extrema_kernel<L>, unsigned(tiles), threads, 0, context, lines, chain);
  }
  check_launch("scan_with_indices");
}

}  // namespace

void running_extrema_on_device(const ExtremaArgs& args, Context& context) {
  dispatch(AllTypes{}, args.dtype, "scan_with_indices", [&](auto type) {
    using T = typename decltype(type)::type;
    args.least ? launch<T, true>(args, context) : launch<T, false>(args, context);
  });
}

}  // namespace tp::scan
#endif
