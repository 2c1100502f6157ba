// Look-back between blocks: each tile publishes a value once, and later tiles wait for it.
//
// A value is published as 8-byte words, each of 4 bytes of the value and a flag. Such a word is written and read as a
// whole, so a reader that sees the flag has the data, and no fence is needed. All cells are zero before the launch.
//
// A chain of `n` tiles is looked up in two fixed levels, so that the order of combination depends on n only and results
// are the same bits in every run: tile i combines the aggregates of its group's earlier tiles by a fixed tree, and
// prepends the prefix of all earlier groups, which the last tile of each group publishes.
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

// Combines cells[0] to cells[n - 1], in order, n at most `most`. It reads all of them at once until all are published.
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

// The tile states of one launch: an aggregate per tile, and the inclusive prefix at the end of every group of tiles.
template <class Acc>
struct Chain {
  Cell<Acc>*tiles, *groups;
  unsigned long long* tickets;  // null if no tile precedes another: blocks then need no order
};

static __global__ void clear_words(uint64_t* words, int64_t n) {
  allow_next_launch();
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) words[i] = 0;
}

// Allocates the states of `tiles` tiles in `groups` groups and clears them. The next launch may start meanwhile.
template <class Acc>
Chain<Acc> make_chain(Context& context, int64_t tiles, int64_t groups) {
  const int64_t words = (tiles + groups) * Cell<Acc>::words + 1;
  auto* cells = reinterpret_cast<Cell<Acc>*>(context.workspace<uint64_t>(words));
  const int64_t blocks = tp::min(ceil_div(words, int64_t(512)), int64_t(1024));
  clear_words<<<unsigned(blocks), 512, 0, cudaStream_t(context.stream)>>>(reinterpret_cast<uint64_t*>(cells), words);
  return {cells, cells + tiles, reinterpret_cast<unsigned long long*>(cells + tiles + groups)};
}

// Returns this block's tile. Blocks that hold smaller tickets have started, whatever order the hardware chose.
template <class Acc>
TP_DEVICE int64_t take_ticket(const Chain<Acc>& chain) {
  if (!chain.tickets) return blockIdx.x;
  __shared__ unsigned long long ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(chain.tickets, 1ull);
  __syncthreads();
  return int64_t(ticket);
}

// Look-back: returns the combination of the tiles from `start` up to `tile`, exclusive: the aggregates of the group's
// earlier tiles by a fixed tree, after the prefix of the groups before. Called by warp 0; lane 0 gets the result.
template <class M, int tiles_per_group, class Acc>
TP_DEVICE Acc look_back(const Chain<Acc>& chain, int64_t tile, int64_t start) {
  constexpr int run = tiles_per_group / warp_size;
  const int64_t group = tile / tiles_per_group, first = group * tiles_per_group;
  const int64_t mine = first + int64_t(threadIdx.x) % warp_size * run;
  const int64_t from = tp::max(mine, start), to = tp::min(mine + run, tile);
  Acc sum = M::identity();
  if (from < to) sum = wait_all<M, run>(chain.tiles + from, int(to - from));
  sum = reduce<M>(sum);
  if (start < first && threadIdx.x == 0) sum = M::combine(chain.groups[group - 1].wait(), sum);
  return sum;
}

// The same for an operator that gives the same bits however its operands are grouped, so that whatever has been
// published can be used (Merrill and Garland, 2016): the chain has as many groups as tiles, and groups[i] becomes the
// prefix up to the end of tile i. Takes totals backwards, 32 tiles at a time, up to the first that has its prefix, or
// to tile `start`. By warp 0; lane 0 gets it.
template <class M, class Acc>
TP_DEVICE Acc look_back_at_once(const Chain<Acc>& chain, int64_t tile, int64_t start) {
  const int lane = int(threadIdx.x) % warp_size;
  Acc sum = M::identity();
  for (int64_t end = tile;; end -= warp_size) {
    const int64_t mine = end - 1 - lane;
    Acc value = M::identity();
    bool last = mine < start, there = last;
    int needed = warp_size;  // lanes up to the first that needs no other
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
