// Look-back between blocks: each tile publishes a value once, and later tiles wait for it.
//
// A value is published as 8-byte words, each of 4 bytes of the value and a flag. Hardware writes and reads such a word
// as a whole, so a reader that sees the flag has the data, and no fence is needed. All cells are zero before the
// launch.
//
// look_back() combines the aggregates of all earlier tiles by a fixed tree, so results have the same bits in every run.
// look_back_at_once() serves operators for which the order makes no difference. Chains of other shapes, such as the
// pipeline of scans, have a look-back of their own over these cells.
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
struct Cell {
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

  // Reads the current words; `flagged` becomes false if one of them is not published yet.
  TP_DEVICE T peek(bool& flagged) const {
    unsigned data[words];
#pragma unroll
    for (int i = 0; i < words; ++i) {
      uint64_t seen;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word + i) : "memory");
      flagged = flagged && seen >> 32 != 0;
      data[i] = unsigned(seen);
    }
    T value;
    memcpy(&value, data, sizeof(T));
    return value;
  }

  TP_DEVICE T wait() const {
    for (;;) {
      bool flagged = true;
      const T value = peek(flagged);
      if (flagged) return value;
    }
  }
};

// Combines cells[0] to cells[n - 1], in order, where n is at most `most`. It reads all of them again until all are
// published, so that the loads overlap.
template <class M, int most>
TP_DEVICE typename M::Acc wait_all(const Cell<typename M::Acc>* cells, int n) {
  for (;;) {
    typename M::Acc value[most], sum = M::identity();
    bool flagged = true;
#pragma unroll
    for (int i = 0; i < most; ++i) value[i] = i < n ? cells[i].peek(flagged) : M::identity();
    if (!flagged) continue;
#pragma unroll
    for (int i = 0; i < most; ++i) sum = M::combine(sum, value[i]);
    return sum;
  }
}

// The tile states of one launch: the aggregates of tiles, and the inclusive prefixes at the ends of `groups` of them.
template <class Acc>
struct Chain {
  Cell<Acc>*tiles, *groups;
  unsigned long long* tickets;  // null if no tile waits for another one: blocks then take tiles in any order
};

static __global__ void clear_words(uint64_t* words, int64_t n) {
  allow_next_launch();
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) words[i] = 0;
}

// Allocates the states of `tiles` tiles and `groups` groups, and starts to clear them. The next launch may begin
// meanwhile; it must wait before it uses them.
template <class Acc>
Chain<Acc> make_chain(Context& context, int64_t tiles, int64_t groups) {
  const int64_t words = (tiles + groups) * Cell<Acc>::words + 1;
  auto* cells = reinterpret_cast<Cell<Acc>*>(context.workspace<uint64_t>(words));
  const int64_t blocks = tp::min(ceil_div(words, int64_t(512)), int64_t(1024));
  clear_words<<<unsigned(blocks), 512, 0, cudaStream_t(context.stream)>>>(reinterpret_cast<uint64_t*>(cells), words);
  return {cells, cells + tiles, reinterpret_cast<unsigned long long*>(cells + tiles + groups)};
}

// Returns the tile of this block. When a block gets its ticket, the blocks with smaller tickets have already started,
// whatever the order in which the hardware starts blocks. So waiting for them cannot deadlock.
template <class Acc>
TP_DEVICE int64_t take_ticket(const Chain<Acc>& chain) {
  if (!chain.tickets) return blockIdx.x;
  __shared__ unsigned long long ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(chain.tickets, 1ull);
  __syncthreads();
  return int64_t(ticket);
}

// Look-back of at most `most` tiles: returns the combination of all tiles before `tile`, by a fixed tree. Warp 0 calls
// it, and lane 0 gets the result.
template <class M, int most, class Acc>
TP_DEVICE Acc look_back(const Chain<Acc>& chain, int tile) {
  constexpr int run = most / warp_size;
  const int from = int(threadIdx.x) % warp_size * run, to = tp::min(from + run, tile);
  Acc sum = M::identity();
  if (from < to) sum = wait_all<M, run>(chain.tiles + from, to - from);
  return reduce<M>(sum);
}

// Look-back for operators whose result has the same bits however operands are grouped, such as integer addition. It may
// use whatever is published already (Merrill and Garland, 2016). The chain has as many groups as tiles, and groups[i]
// becomes the prefix up to the end of tile i. A warp looks at 32 tiles at a time, from `tile` backwards, until it finds
// a prefix or reaches tile `start`. Warp 0 calls it, and lane 0 gets the result.
template <class M, class Acc>
TP_DEVICE Acc look_back_at_once(const Chain<Acc>& chain, int64_t tile, int64_t start) {
  const int lane = int(threadIdx.x) % warp_size;
  Acc sum = M::identity();
  for (int64_t end = tile;; end -= warp_size) {
    const int64_t mine = end - 1 - lane;
    Acc value = M::identity();
    bool last = mine < start, there = last;
    int needed = warp_size;  // the lanes up to the first that has a prefix, or lies before `start`
    do {
      if (!there) {
        bool prefix = true;
        value = chain.groups[mine].peek(prefix);
        there = last = prefix;
        if (!there) {
          there = true;
          value = chain.tiles[mine].peek(there);
        }
      }
      const unsigned lasts = __ballot_sync(~0u, last);
      needed = lasts ? __ffs(int(lasts)) : warp_size;
    } while ((__ballot_sync(~0u, !there) & (~0u >> (warp_size - needed))) != 0);
    if (lane >= needed) value = M::identity();
#pragma unroll
    for (int stride = 1; stride < warp_size; stride *= 2) value = M::combine(shuffle_down(value, stride), value);
    sum = M::combine(value, sum);
    if (__any_sync(~0u, last && lane < needed)) return sum;
  }
}

}  // namespace tp::block
