// Stretches of up to 1024 keys that take something along: a warp sorts one at a time, by words of 32 bits that hold a
// part of a key and, below it, the key's place. So no two are equal, the order is stable, and a network compares and
// exchanges two of them in two instructions.
//
// The part is the highest of the bits that differ at all. Keys that are equal in it are most often so few that they are
// put in order one by one; where they are not, the warp starts again, and sorts from the least part up.
#pragma once
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/network.cuh"

namespace tp::sort::device {

// Puts places[slot(i)], first <= i < end, in order of key(place), by insertion.
template <class Slot, class Key>
TP_DEVICE void insert_places(uint16_t* places, int first, int end, Slot slot, Key key) {
  for (int i = first + 1; i < end; ++i) {
    const uint16_t place = places[slot(i)];
    int to = i;
    for (; to > first && key(places[slot(to - 1)]) > key(place); --to) places[slot(to)] = places[slot(to - 1)];
    places[slot(to)] = place;
  }
}

constexpr int warp_sort_threads = 128;

template <class W, int items>
class WarpSorter {
  static constexpr int most = items * block::warp_size, pitch = items + 1;
  static constexpr int place_bits = items == 8 ? 8 : items == 16 ? 9 : 10, part_bits = 32 - place_bits;
  static_assert(1 << place_bits == most, "places fit");
  using T = Packed<uint32_t, uint32_t, place_bits>;

 public:
  struct Shared {
    W keys[most];
    uint16_t places[most + most / items];
  };

 private:
  Shared& s;
  const int lane, n;

 public:
  TP_DEVICE WarpSorter(Shared& s, int lane, int n) : s(s), lane(lane), n(n) {}

  TP_DEVICE void run(const Moves<W>& moves, int64_t begin) {
    const uint64_t differ = load(moves, begin);
    if (differ) sort(differ);
#pragma unroll 4
    for (int i = lane; i < n; i += block::warp_size) {
      const int place = s.places[slot(i)];
      moves.put(begin + i, begin, place, s.keys[place]);
    }
    __syncwarp();
  }

 private:
  // Lanes that go through neighbouring places side by side, or each through its own, meet in few banks.
  TP_DEVICE static int slot(int i) { return i + i / items; }
  TP_DEVICE static int row(int u) { return u * block::warp_size; }
  TP_DEVICE static int row_slot(int u) { return row(u) + row(u) / items; }

  // Returns the bits in which keys differ.
  TP_DEVICE uint64_t load(const Moves<W>& moves, int64_t begin) {
    const W* const from = moves.keys + begin + lane;
    const W first = moves.keys[begin];
    W key[items];
#pragma unroll
    for (int u = 0; u < items; ++u) key[u] = row(u) < n - lane ? from[row(u)] : first;
    const W first_window = moves.order.window(first);
    W differ = 0;
#pragma unroll
    for (int u = 0; u < items; ++u) {
      const W window = moves.order.window(key[u]);
      s.keys[row(u) + lane] = window;
      differ |= W(window ^ first_window);
    }
    reset();
    const uint64_t wide = differ;
    const unsigned low = __reduce_or_sync(~0u, unsigned(wide)), high = __reduce_or_sync(~0u, unsigned(wide >> 32));
    return uint64_t(high) << 32 | low;
  }

  TP_DEVICE void reset() {
#pragma unroll
    for (int u = 0; u < items; ++u) s.places[row_slot(u) + slot(lane)] = uint16_t(row(u) + lane);
    __syncwarp();
  }

  TP_DEVICE void sort(uint64_t differ) {
    const int low = __ffsll(static_cast<long long>(differ)) - 1, top = 64 - __clzll(static_cast<long long>(differ));
    int shift = tp::max(low, top - part_bits);
    for (bool again = false; shift < top; shift += part_bits) {
      const unsigned ties = sort_part(shift);
      if (again) continue;
      if (shift == low || settle(ties)) return;
      reset();
      again = true;
      shift = low - part_bits;
    }
  }

  // By one part of the keys; returns which of the lane's items are equal in it to the next.
  TP_DEVICE unsigned sort_part(int shift) {
    T x[items];
#pragma unroll
    for (int u = 0; u < items; ++u) {
      const W key = s.keys[s.places[row_slot(u) + slot(lane)]];
      x[u] = row(u) < n - lane ? T::of(uint32_t(key >> shift), row(u) + lane) : T::none();
    }
    sort_lanes(x, lane, block::warp_size);
    const unsigned next = __shfl_down_sync(~0u, x[0].word, 1);
    unsigned ties = 0;
#pragma unroll
    for (int v = 0; v < items; ++v) {
      const unsigned after = v + 1 < items ? x[(v + 1) % items].word : next;
      if ((x[v].word ^ after) >> place_bits == 0) ties |= 1u << v;
    }
    uint16_t from[items];
#pragma unroll
    for (int v = 0; v < items; ++v) from[v] = s.places[slot(x[v].place())];
    __syncwarp();
#pragma unroll
    for (int v = 0; v < items; ++v) s.places[lane * pitch + v] = from[v];
    __syncwarp();
    const int pairs = tp::max(0, n - 1 - lane * items);
    return pairs < items ? ties & ((1u << pairs) - 1) : ties;
  }

  // Each lane puts the ties in order that begin among its items, unless there are long ones.
  TP_DEVICE bool settle(unsigned ties) {
    if (__any_sync(~0u, ties & ties >> 1 & ties >> 2 & ties >> 3)) return false;
    const unsigned before = __shfl_up_sync(~0u, ties, 1) >> (items - 1), after = __shfl_down_sync(~0u, ties, 1);
    const uint64_t both = uint64_t(after) << items | ties;
    const auto key = [&](int place) { return s.keys[place]; };
    for (unsigned heads = ties & ~(ties << 1 | (lane ? before : 0)); heads; heads &= heads - 1) {
      const int head = __ffs(int(heads)) - 1, first = lane * items + head;
      const int end = first + __ffsll(static_cast<long long>(~(both >> head)));
      insert_places(s.places, first, end, slot, key);
    }
    __syncwarp();
    return true;
  }
};

template <class W, int items>
__global__ __launch_bounds__(warp_sort_threads,
                             sizeof(W) == 8 ? 4 : 7) void warp_sort_kernel(const __grid_constant__ BlockSort<W> a) {
  constexpr int warps = warp_sort_threads / block::warp_size;
  using Sorter = WarpSorter<W, items>;
  __shared__ typename Sorter::Shared pool[warps];
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  block::wait_for_launch_before();
  block::allow_next_launch();
  const int64_t count = a.stretches.size();
  for (int64_t i = int64_t(blockIdx.x) * warps + warp; i < count; i += int64_t(gridDim.x) * warps) {
    const auto range = a.stretches.at(i);
    Sorter(pool[warp], lane, range.n).run(a.moves, range.begin);
  }
}

}  // namespace tp::sort::device
