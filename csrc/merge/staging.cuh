// Copies ranges of keys between global and shared memory 16 bytes at a time, and searches by several lanes.
#pragma once
#include <cuda_pipeline.h>

#include "core/macros.h"

namespace tp::merge {

// The number of elements between a 16-byte boundary and p.
template <class Word>
TP_DEVICE int phase_of(const Word* p) {
  return int(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(Word));
}

// Copies between shared memory at x and global memory at y, which have the same phase: copy16(x, y) for whole vectors,
// copy1 for the elements before and after them.
template <int threads, class X, class Y, class Copy16, class Copy1>
TP_DEVICE void copy_by_16(X* x, Y* y, int count, Copy16 copy16, Copy1 copy1) {
  constexpr int width = int(16 / sizeof(X));
  const int head = tp::min((width - phase_of(y)) % width, count), vectors = (count - head) / width;
  const int tail = count - head - vectors * width, t = int(threadIdx.x);
  for (int v = t; v < vectors; v += threads) copy16(x + head + v * width, y + head + v * width);
  if (t < head + tail) {
    const int e = t < head ? t : count - tail + t - head;
    copy1(x + e, y + e);
  }
}

// Starts to load a range, which is complete after wait_for_loads().
template <int threads, class Word>
TP_DEVICE void load(Word* shared, const Word* global, int count) {
  copy_by_16<threads>(
      shared, global, count, [](Word* to, const Word* from) { __pipeline_memcpy_async(to, from, 16); },
      [](Word* to, const Word* from) { *to = *from; });
}

// Must be called by all threads of the block.
TP_DEVICE inline void wait_for_loads() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
}

template <int threads, class Word>
TP_DEVICE void store(Word* global, const Word* shared, int count) {
  copy_by_16<threads>(
      shared, global, count,
      [](const Word* from, Word* to) { __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(from)); },
      [](const Word* from, Word* to) { *to = *from; });
}

// partition_point by a group of `lanes` lanes: each step tests that many positions at once, so the search waits for
// memory fewer times. All lanes get the result.
template <int lanes, class Before>
TP_DEVICE int64_t search(int64_t lo, int64_t hi, Before before) {
  const int lane = int(threadIdx.x) % lanes, shift = int(threadIdx.x) % 32 / lanes * lanes;
  const unsigned group = (lanes == 32 ? ~0u : (1u << lanes % 32) - 1u) << shift;
  while (lo < hi) {
    const int64_t span = hi - lo;
    const auto probe = [&](int l) { return lo + span * (l + 1) / (lanes + 1); };
    const unsigned found = __ballot_sync(group, !before(probe(lane))) >> shift;
    const int first = found ? __ffs(int(found)) - 1 : lanes;  // the first lane for which before() is false
    const int64_t begin = first == 0 ? lo : probe(first - 1) + 1;
    hi = first == lanes ? hi : probe(first);
    lo = begin;
  }
  return lo;
}

}  // namespace tp::merge
