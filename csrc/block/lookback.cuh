// Look-back between blocks: each publishes a value once, others wait for it.
//
// A value travels as 8-byte words, each of 4 bytes of it and a flag. One such word is written and read whole, so a
// reader that sees the flag has the data, and no fence is needed. All cells are zero before the launch.
//
// A chain over `n` positions is looked up in two fixed levels, so that the order of combination depends on nothing but
// n and the bits are the same in every run: position i combines the values of its group's earlier members by a fixed
// tree and adds the prefix of all groups before, which the last member of each group hands on.
#pragma once
#include <cstring>

#include "block/launch.cuh"
#include "block/warp.cuh"

namespace tp::block {

// `width` values of a monoid, combined one by one.
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

  // What is there now, by words; `flagged` turns false where one is missing.
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

// Combines cells[0] to cells[n - 1], in order, n at most `most`: all are asked for at once, until all have been
// published.
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

// The published values of one launch: a total a tile, and the running total at the end of every group of tiles.
template <class Acc>
struct Chain {
  Cell<Acc>*tiles, *groups;
  unsigned long long* tickets;  // null where no tile has one before it: then blocks need no order
};

static __global__ void clear_words(uint64_t* words, int64_t n) {
  allow_next_launch();
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) words[i] = 0;
}

// Cleared state for `tiles` tiles in `groups` groups. The next launch may begin while it is being cleared.
template <class Acc>
Chain<Acc> make_chain(Context& context, int64_t tiles, int64_t groups) {
  const int64_t words = (tiles + groups) * Cell<Acc>::words + 1;
  auto* cells = reinterpret_cast<Cell<Acc>*>(context.workspace<uint64_t>(words));
  const int64_t blocks = tp::min(ceil_div(words, int64_t(512)), int64_t(1024));
  clear_words<<<unsigned(blocks), 512, 0, cudaStream_t(context.stream)>>>(reinterpret_cast<uint64_t*>(cells), words);
  return {cells, cells + tiles, reinterpret_cast<unsigned long long*>(cells + tiles + groups)};
}

// The tile of this block: whoever holds a smaller one has started, whatever order the hardware chose.
template <class Acc>
TP_DEVICE int64_t take_ticket(const Chain<Acc>& chain) {
  if (!chain.tickets) return blockIdx.x;
  __shared__ unsigned long long ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(chain.tickets, 1ull);
  __syncthreads();
  return int64_t(ticket);
}

// What precedes a tile, from tile `start` on: the totals of its group's earlier tiles by a fixed tree, after the
// running total of the groups before. By warp 0; lane 0 gets it.
template <class M, int tiles_a_group, class Acc>
TP_DEVICE Acc look_back(const Chain<Acc>& chain, int64_t tile, int64_t start) {
  constexpr int run = tiles_a_group / warp_size;
  const int64_t group = tile / tiles_a_group, first = group * tiles_a_group;
  const int64_t mine = first + int64_t(threadIdx.x) % warp_size * run;
  const int64_t from = tp::max(mine, start), to = tp::min(mine + run, tile);
  Acc sum = M::identity();
  if (from < to) sum = wait_all<M, run>(chain.tiles + from, int(to - from));
  sum = reduce<M>(sum);
  if (start < first && threadIdx.x == 0) sum = M::combine(chain.groups[group - 1].wait(), sum);
  return sum;
}

}  // namespace tp::block
