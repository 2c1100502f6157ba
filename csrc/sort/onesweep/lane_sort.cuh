// The shortest segments: each is sorted by one lane, in registers. A warp takes 32 neighbouring segments. It loads and
// stores the keys of those that are short, 32 at a time and in order, through shared memory. Keys without payloads
// leave out shared memory if there are long segments between the short ones: these usually have few keys then, and it
// costs less that each lane loads and stores its own.
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
  const int64_t begin;
  int first, count;  // the number of keys in the segments of lower lanes, and of all lanes

 public:
  TP_DEVICE LaneSorter(const Moves<W>& moves, Shared& s, int lane, int64_t begin, int64_t length)
      : moves(moves), s(s), lane(lane), n(length > lane_most ? 0 : int(length)), begin(begin) {}

  // any_long: whether one of the warp's segments is long.
  TP_DEVICE void run(bool any_long) {
    if (!indexed && any_long) return sort_apart();
    const int upto = block::inclusive_scan<Sum<int>>(n);
    first = upto - n;
    count = block::broadcast(upto, block::warp_size - 1);
    if (count == 0) return;
    const unsigned filled = __ballot_sync(~0u, n > 0);
    const int64_t distance = begin - first, common = block::broadcast(distance, __ffs(int(filled)) - 1);
    if (__all_sync(~0u, n == 0 || distance == common)) return sort_rows<true>(common);
    if constexpr (indexed) {
      if (lane < lane_most) s.begins[lane] = 0;
      __syncwarp();
      if (n > 0) {
        atomicOr(s.begins + first / block::warp_size, 1u << first % block::warp_size);
        s.distances[__popc(filled & ((1u << lane) - 1))] = distance;
      }
      __syncwarp();
      sort_rows<false>(0);
    } else {
      sort_apart();
    }
  }

 private:
  // Calls f(u, distance) for the lane's keys, of which key u has the index u * 32 + lane. `distance` is how far the key
  // is in memory from where it is in shared memory. It is the same for all if the segments lie together.
  template <bool together, int unroll, class F>
  TP_DEVICE void each_key(int64_t common, F f) {
    int last = -1;
#pragma unroll unroll
    for (int u = 0; u < lane_most; ++u) {
      if (u % 4 == 0 && u * block::warp_size >= count) break;
      if constexpr (together) {
        if (u * block::warp_size < count - lane) f(u, common);
      } else {
        const unsigned begins = s.begins[u];
        if (u * block::warp_size < count - lane) f(u, s.distances[last + __popc(begins & (~0u >> (31 - lane)))]);
        last += __popc(begins);
      }
    }
  }

  template <bool together>
  TP_DEVICE void sort_rows(int64_t common) {
    W key[lane_most];
    const W* const source = moves.keys + lane;
    each_key<together, lane_most>(common, [&](int u, int64_t d) { key[u] = source[d + u * block::warp_size]; });
    W* const mine = s.keys + lane_slot(lane);
#pragma unroll
    for (int u = 0; u < lane_most; ++u) {
      if (u % 4 == 0 && u * block::warp_size >= count) break;
      if (u * block::warp_size < count - lane) mine[u * pitch] = moves.template window_of<!indexed>(key[u]);
    }
    __syncwarp();
    const bool any_long = __any_sync(~0u, n > lane_most / 2);
    any_long ? sort<lane_most>() : sort<lane_most / 2>();
    __syncwarp();
    if constexpr (indexed) {
      each_key<together, 4>(common, [&](int u, int64_t d) {
        const int i = u * block::warp_size + lane, index = s.indices[lane_slot(i)];
        moves.put(d + i, d, index, s.keys[lane_slot(index)]);
      });
    } else {
      W* const target = moves.keys_out + lane;
      each_key<together, lane_most>(common, [&](int u, int64_t d) {
        target[d + u * block::warp_size] = moves.template raw_of<true>(mine[u * pitch]);
      });
    }
    __syncwarp();
  }

  // Segments of up to 8 keys are sorted by one lane. There are few longer ones, which 16 lanes sort, one key per lane.
  TP_DEVICE void sort_apart() {
    using T = typename Item<W, false>::type;
    constexpr int items = lane_most / 2;
    const int own = n > items ? 0 : n;
    T x[items];
    const W* const source = moves.keys + begin;
#pragma unroll
    for (int v = 0; v < items; ++v) {
      x[v] = T::none();
      if (v < own) x[v] = T::of(moves.template window_of<true>(source[v]), 0);
    }
    sort_own<1, 1>(x);
    W* const target = moves.keys_out + begin;
#pragma unroll
    for (int v = 0; v < items; ++v) {
      if (v < own) target[v] = moves.template raw_of<true>(x[v].window());
    }
    const int index = lane % lane_most;
    for (unsigned longer = __ballot_sync(~0u, n > items); longer;) {
      const int one = __ffs(int(longer)) - 1;
      longer &= longer - 1;
      const int other = longer ? __ffs(int(longer)) - 1 : one;
      longer &= longer - 1;
      const int owner = lane < lane_most ? one : other;
      const int64_t at = block::broadcast(begin, owner) + index;
      const bool exists = index < block::broadcast(n, owner);
      T key[1] = {T::none()};
      if (exists) key[0] = T::of(moves.template window_of<true>(moves.keys[at]), 0);
      sort_lanes<lane_most>(key, lane);
      if (exists) moves.keys_out[at] = moves.template raw_of<true>(key[0].window());
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
