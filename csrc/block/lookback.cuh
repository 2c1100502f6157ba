// Look-back between blocks: each tile publishes a value once, and later tiles wait for it.
//
// A value is published as 8-byte words, each of 4 bytes of the value and a flag. Hardware writes and reads such a word
// as a whole, so a reader that sees the flag has the data, and no fence is needed. All states are zero before
// the launch.
//
// look_back() combines the aggregates of all earlier tiles by a fixed tree, so results have the same bits in every run.
// look_back_any_order() serves operators for which the order makes no difference. Neither needs more than one level.
//
// Where there may be many more tiles than one warp can combine, there are three levels, and two look-backs of their own
// over them (scan/lookback/pipeline.cuh, segmented/lookback_segments.cuh): `tiles_per_group` consecutive tiles form a
// group, and `groups_per_supergroup` consecutive groups form a supergroup. Every tile publishes its aggregate, the last
// tile of a group the aggregate of the group, and the last tile of a supergroup the inclusive prefix at its end. So a
// tile combines the earlier tiles of its group, the earlier groups of its supergroup and one prefix, in a fixed order,
// and the only long chain of waits is that of the prefixes, one per supergroup.
#pragma once
#include <cstring>

#include "block/launch.cuh"
#include "block/warp.cuh"

namespace tp::block {

// `width` values of a monoid, combined element-wise.
template <class M, int width>
struct Pack {
  typename M::Acc v[width];

  TP_HD static Pack identity() {
    Pack x;
#pragma unroll
    for (int i = 0; i < width; ++i) x.v[i] = M::identity();
    return x;
  }
  TP_HD static Pack combine(const Pack& earlier, const Pack& later) {
    Pack x;
#pragma unroll
    for (int i = 0; i < width; ++i) x.v[i] = M::combine(earlier.v[i], later.v[i]);
    return x;
  }
};

// What one tile publishes.
template <class T>
struct TileState {
  static constexpr int words = int(sizeof(T) + 3) / 4;
  uint64_t word[words];

  TP_DEVICE void publish(const T& value) {
    unsigned data[words] = {};
    memcpy(data, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < words; ++i) {
      const uint64_t flagged = uint64_t(1) << 32 | data[i];
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word + i), "l"(flagged) : "memory");
    }
  }

  // Reads the current words; `valid` becomes false if one of them is not published yet.
  TP_DEVICE T try_load(bool& valid) const {
    unsigned data[words];
#pragma unroll
    for (int i = 0; i < words; ++i) {
      uint64_t seen;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word + i) : "memory");
      valid = valid && seen >> 32 != 0;
      data[i] = unsigned(seen);
    }
    T value;
    memcpy(&value, data, sizeof(T));
    return value;
  }

  TP_DEVICE T wait() const {
    for (;;) {
      bool valid = true;
      const T value = try_load(valid);
      if (valid) return value;
    }
  }
};

// Combines states[0] to states[n - 1], in order, where n is at most `most`. It reads all of them again until all are
// published, so that the loads overlap.
template <class M, int most>
TP_DEVICE typename M::Acc wait_all(const TileState<typename M::Acc>* states, int n) {
  for (;;) {
    typename M::Acc value[most], sum = M::identity();
    bool valid = true;
#pragma unroll
    for (int i = 0; i < most; ++i) value[i] = i < n ? states[i].try_load(valid) : M::identity();
    if (!valid) continue;
#pragma unroll
    for (int i = 0; i < most; ++i) sum = M::combine(sum, value[i]);
    return sum;
  }
}

// The tile states of one launch: the aggregates of tiles, and `groups` further states, whose meaning is the caller's:
// aggregates of groups and prefixes at the ends of supergroups, or one inclusive prefix per tile.
template <class Acc>
struct TileStates {
  TileState<Acc>*tiles, *groups;
  unsigned long long* tickets;  // null if no tile waits for another one: blocks then take tiles in any order
};

static __global__ void clear_words(uint64_t* words, int64_t n) {
  allow_next_launch();
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) words[i] = 0;
}

// Allocates `tiles` states of tiles and `groups` further ones, and starts to clear them. The next launch may begin
// meanwhile; it must wait before it uses them.
template <class Acc>
TileStates<Acc> make_tile_states(Context& context, int64_t tiles, int64_t groups) {
  const int64_t words = (tiles + groups) * TileState<Acc>::words + 1;
  auto* states = reinterpret_cast<TileState<Acc>*>(context.workspace<uint64_t>(words));
  const int64_t blocks = tp::min(ceil_div(words, int64_t(512)), int64_t(1024));
  clear_words<<<unsigned(blocks), 512, 0, cudaStream_t(context.stream)>>>(reinterpret_cast<uint64_t*>(states), words);
  return {states, states + tiles, reinterpret_cast<unsigned long long*>(states + tiles + groups)};
}

// Returns the tile of this block. When a block gets its ticket, the blocks with smaller tickets have already started,
// whatever the order in which the hardware starts blocks. So waiting for them cannot deadlock.
template <class Acc>
TP_DEVICE int64_t take_ticket(const TileStates<Acc>& states) {
  if (!states.tickets) return blockIdx.x;
  __shared__ unsigned long long ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(states.tickets, 1ull);
  __syncthreads();
  return int64_t(ticket);
}

// Look-back of at most `most` tiles: returns the combination of all tiles before `tile`, by a fixed tree. Warp 0 calls
// it, and lane 0 gets the result.
template <class M, int most, class Acc>
TP_DEVICE Acc look_back(const TileStates<Acc>& states, int tile) {
  constexpr int per_lane = most / warp_size;
  const int from = int(threadIdx.x) % warp_size * per_lane, to = tp::min(from + per_lane, tile);
  Acc sum = M::identity();
  if (from < to) sum = wait_all<M, per_lane>(states.tiles + from, to - from);
  return reduce<M>(sum);
}

// Look-back for operators whose result has the same bits however operands are grouped, such as integer addition. It may
// use whatever is published already (Merrill and Garland, 2016). There are as many states in `groups` as tiles, and
// groups[i] becomes the inclusive prefix up to the end of tile i. A warp looks at 32 tiles at a time, from `tile`
// backwards, until it finds a prefix or reaches tile `start`. Warp 0 calls it, and lane 0 gets the result.
template <class M, class Acc>
TP_DEVICE Acc look_back_any_order(const TileStates<Acc>& states, int64_t tile, int64_t start) {
  const int lane = int(threadIdx.x) % warp_size;
  Acc sum = M::identity();
  for (int64_t end = tile;; end -= warp_size) {
    const int64_t mine = end - 1 - lane;
    Acc value = M::identity();
    bool last = mine < start, valid = last;
    int needed = warp_size;  // the lanes up to the first that has a prefix, or lies before `start`
    do {
      if (!valid) {
        bool prefix = true;
        value = states.groups[mine].try_load(prefix);
        valid = last = prefix;
        if (!valid) {
          valid = true;
          value = states.tiles[mine].try_load(valid);
        }
      }
      const unsigned lasts = __ballot_sync(~0u, last);
      needed = lasts ? __ffs(int(lasts)) : warp_size;
    } while ((__ballot_sync(~0u, !valid) & (~0u >> (warp_size - needed))) != 0);
    if (lane >= needed) value = M::identity();
#pragma unroll
    for (int stride = 1; stride < warp_size; stride *= 2) value = M::combine(shuffle_down(value, stride), value);
    sum = M::combine(value, sum);
    if (__any_sync(~0u, last && lane < needed)) return sum;
  }
}

}  // namespace tp::block
