// The shortest segments: each is sorted by one lane, in registers. A warp takes 32 neighbouring segments. It loads and
// stores the keys of those that are short, 32 at a time and in order, through shared memory.
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
    unsigned begins[lane_most];           // one bit per key, which is set if a segment begins there
    int64_t distances[block::warp_size];  // of the segments that have keys
  };

 private:
  const Moves<W>& moves;
  Shared& s;
  const int lane, n;  // n: the number of keys in this lane's segment, 0 if it is long
  int first, count;   // the number of keys in the segments of lower lanes, and of all lanes
  int64_t distance;   // how far the keys of this lane's segment are in memory from where they are in shared memory

 public:
  TP_DEVICE LaneSorter(const Moves<W>& moves, Shared& s, int lane, int64_t begin, int length)
      : moves(moves), s(s), lane(lane), n(length > lane_most ? 0 : length) {
    const int upto = block::inclusive_scan<Sum<int>>(n);
    first = upto - n;
    count = block::broadcast(upto, block::warp_size - 1);
    distance = begin - first;
  }

  TP_DEVICE void run() {
    if (count == 0) return;
    const unsigned filled = __ballot_sync(~0u, n > 0);
    const int64_t common = block::broadcast(distance, __ffs(int(filled)) - 1);
    const bool together = __all_sync(~0u, n == 0 || distance == common);
    if (together) {
      distance = common;
      load<true>();
    } else {
      if (lane < lane_most) s.begins[lane] = 0;
      __syncwarp();
      if (n > 0) {
        atomicOr(s.begins + first / block::warp_size, 1u << first % block::warp_size);
        s.distances[__popc(filled & ((1u << lane) - 1))] = distance;
      }
      __syncwarp();
      load<false>();
    }
    __syncwarp();
    if (__any_sync(~0u, n > lane_most / 2)) {
      sort<lane_most>();
    } else {
      sort<lane_most / 2>();
    }
    __syncwarp();
    together ? store<true>() : store<false>();
    __syncwarp();
  }

 private:
  // Calls f(u, distance) for the lane's keys, of which key u has the index u * 32 + lane. In memory the segments lie
  // together if there is no long one between them; then all have the same distance.
  template <bool together, int unroll, class F>
  TP_DEVICE void each_key(F f) {
    int last = -1;
#pragma unroll unroll
    for (int u = 0; u < lane_most; ++u) {
      if (u % 4 == 0 && u * block::warp_size >= count) break;
      if constexpr (together) {
        if (u * block::warp_size < count - lane) f(u, distance);
      } else {
        const unsigned begins = s.begins[u];
        if (u * block::warp_size < count - lane) f(u, s.distances[last + __popc(begins & (~0u >> (31 - lane)))]);
        last += __popc(begins);
      }
    }
  }

  template <bool together>
  TP_DEVICE void load() {
    W key[lane_most];
    const W* const source = moves.keys + lane;
    each_key<together, lane_most>([&](int u, int64_t d) { key[u] = source[d + u * block::warp_size]; });
    W* const target = s.keys + lane_slot(lane);
#pragma unroll
    for (int u = 0; u < lane_most; ++u) {
      if (u % 4 == 0 && u * block::warp_size >= count) break;
      if (u * block::warp_size < count - lane) target[u * pitch] = moves.template window_of<!indexed>(key[u]);
    }
  }

  template <bool together>
  TP_DEVICE void store() {
    if constexpr (indexed) {
      each_key<together, 4>([&](int u, int64_t d) {
        const int i = u * block::warp_size + lane, index = s.indices[lane_slot(i)];
        moves.put(d + i, d, index, s.keys[lane_slot(index)]);
      });
    } else {
      const W* const source = s.keys + lane_slot(lane);
      W* const target = moves.keys_out + lane;
      each_key<together, lane_most>(
          [&](int u, int64_t d) { target[d + u * block::warp_size] = moves.template raw_of<true>(source[u * pitch]); });
    }
  }

  // Each lane sorts its segment, in registers.
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
