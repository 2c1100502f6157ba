// The shortest segments: each is sorted by one lane, in registers. A warp handles 32 neighbouring segments. Those of
// them that are short form contiguous runs of keys, between the long segments; the warp loads and stores each run
// coalesced, through shared memory.
#pragma once
#include "core/op.h"
#include "sort/onesweep/warp_sort.cuh"

namespace tp::sort::device {

constexpr int lane_most = 16;

// Padding: lanes that access neighbouring keys, or keys that are 16 apart, never conflict on a bank.
TP_HD constexpr int lane_slot(int i) { return i + i / lane_most; }

// Sorts those of a warp's 32 neighbouring segments that have at most lane_most keys.
template <class W, bool indexed>
class LaneSorter {
  static constexpr int most = lane_most * block::warp_size, pitch = lane_slot(block::warp_size);

 public:
  struct Shared {
    W keys[lane_slot(most + lane_most)];
    uint16_t indices[indexed ? lane_slot(most + lane_most) : 1];
  };

 private:
  const Moves<W>& moves;
  Shared& s;
  const int lane;
  int64_t begin;
  int n, first;    // the number of keys in this lane's segment (0 if it is long) and in those of lower lanes
  unsigned heads;  // the lanes whose segment begins a run
  unsigned ends;   // the lanes whose segment is not a continuation of the run before it

 public:
  TP_DEVICE LaneSorter(const Moves<W>& moves, Shared& s, int lane, int64_t begin, int length)
      : moves(moves), s(s), lane(lane), begin(begin), n(length > lane_most ? 0 : length) {
    const int64_t end_before = block::shuffle_up(begin + n, 1);
    const unsigned shorts = __ballot_sync(~0u, length <= lane_most);
    heads = shorts & ~(shorts << 1 & __ballot_sync(~0u, lane > 0 && begin == end_before));
    ends = heads | ~shorts;
    first = block::inclusive_scan<Sum<int>>(n) - n;
  }

  TP_DEVICE void run() {
    // Load every run, 32 neighbouring keys at a time.
    each_run([&](int64_t from, int to, int count) {
      const W* const source = moves.keys + from + lane;
      W* const target = s.keys + lane_slot(to + lane);
      W key[lane_most];
#pragma unroll
      for (int u = 0; u < lane_most; ++u) {
        if (u % 4 == 0 && u * block::warp_size >= count) break;
        if (u * block::warp_size < count - lane) key[u] = source[u * block::warp_size];
      }
#pragma unroll
      for (int u = 0; u < lane_most; ++u) {
        if (u % 4 == 0 && u * block::warp_size >= count) break;
        if (u * block::warp_size < count - lane) target[u * pitch] = moves.template window_of<!indexed>(key[u]);
      }
    });
    // Each lane sorts its segment, in registers.
    __syncwarp();
    if (__any_sync(~0u, n > lane_most / 2)) {
      sort<lane_most>();
    } else {
      sort<lane_most / 2>();
    }
    __syncwarp();
    // Store every run.
    each_run([&](int64_t from, int to, int count) {
      if constexpr (indexed) {
#pragma unroll 4
        for (int i = lane; i < count; i += block::warp_size) {
          const int index = s.indices[lane_slot(to + i)];
          moves.put(from + i, from - to, index, s.keys[lane_slot(index)]);
        }
      } else {
        const W* const source = s.keys + lane_slot(to + lane);
        W* const target = moves.keys_out + from + lane;
#pragma unroll
        for (int u = 0; u < lane_most; ++u) {
          if (u % 4 == 0 && u * block::warp_size >= count) break;
          if (u * block::warp_size < count - lane) {
            target[u * block::warp_size] = moves.template raw_of<true>(source[u * pitch]);
          }
        }
      }
    });
    __syncwarp();
  }

 private:
  // Calls f(begin in memory, begin in shared memory, number of keys) for each run.
  template <class F>
  TP_DEVICE void each_run(F f) {
    for (unsigned left = heads; left; left &= left - 1) {
      const int head = __ffs(int(left)) - 1;
      const unsigned after = ends & (~1u << head);
      const int last = after ? __ffs(int(after)) - 2 : block::warp_size - 1;
      const int to = block::broadcast(first, head);
      f(block::broadcast(begin, head), to, block::broadcast(first + n, last) - to);
    }
  }

  template <int items>
  TP_DEVICE void sort() {
    if constexpr (indexed) {
      sort_indices<items>();
    } else {
      sort_keys<items>();
    }
  }

  template <int items>
  TP_DEVICE void sort_keys() {
    using T = typename Item<W, false>::type;
    T x[items];
#pragma unroll
    for (int v = 0; v < items; ++v) {
      const W window = s.keys[lane_slot(first + v)];
      x[v] = v < n ? T::of(window, 0) : T::none();
    }
    sort_own<1, 1>(x);
#pragma unroll
    for (int v = 0; v < items; ++v) {
      if (v < n) s.keys[lane_slot(first + v)] = x[v].window();
    }
  }

  // Sorts words that hold a key part and an index, as WarpSorter does.
  template <int items>
  TP_DEVICE void sort_indices() {
    constexpr int index_bits = 4;
    static_assert(1 << index_bits == lane_most, "indices fit below the key part");
    using T = Packed<uint32_t, uint32_t, index_bits>;
    const W head = s.keys[lane_slot(first)];
    W differ = 0;
#pragma unroll
    for (int v = 1; v < items; ++v) {
      const W window = s.keys[lane_slot(first + v)];
      if (v < n) differ |= W(window ^ head);
    }
    const int shift = tp::max(0, 32 + index_bits - __clzll(static_cast<long long>(uint64_t(differ))));
    T x[items];
#pragma unroll
    for (int v = 0; v < items; ++v) {
      const W window = s.keys[lane_slot(first + v)];
      x[v] = v < n ? T::of(uint32_t(window >> shift), v) : T::none();
    }
    sort_own<1, 1>(x);
    bool ties = false;
#pragma unroll
    for (int v = 0; v < items; ++v) {
      if (v < n) s.indices[lane_slot(first + v)] = uint16_t(first + x[v].index());
      if (v > 0 && v < n) ties |= (x[v].word ^ x[v - 1].word) >> index_bits == 0;
    }
    if (shift > 0 && ties) {
      insert_indices(s.indices, first, first + n, lane_slot, [&](int index) { return s.keys[lane_slot(index)]; });
    }
  }
};

}  // namespace tp::sort::device
