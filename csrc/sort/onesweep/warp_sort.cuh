// Segments of up to 1024 keys with payloads, one warp per segment at a time. The warp sorts 32-bit words that hold a
// part of a key and, below it, the key's index. No two words are equal, so the order is stable, and a network compares
// and exchanges two words in two instructions.
//
// The part consists of the highest bits in which the keys differ. Usually only a few keys are equal in this part, and
// insertion puts them in order. Otherwise the warp starts again, and sorts by one part after another, from the lowest
// bits up.
#pragma once
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/network.cuh"

namespace tp::sort::device {

// Sorts indices[slot(first)] to indices[slot(end - 1)] by key(index), by insertion.
template <class Slot, class Key>
TP_DEVICE void insert_indices(uint16_t* indices, int first, int end, Slot slot, Key key) {
  for (int i = first + 1; i < end; ++i) {
    const uint16_t index = indices[slot(i)];
    int to = i;
    for (; to > first && key(indices[slot(to - 1)]) > key(index); --to) indices[slot(to)] = indices[slot(to - 1)];
    indices[slot(to)] = index;
  }
}

constexpr int warp_sort_threads = 128;

template <class W, int items>
class WarpSorter {
  static constexpr int most = items * block::warp_size, pitch = items + 1;
  static constexpr int index_bits = items == 8 ? 8 : items == 16 ? 9 : 10, part_bits = 32 - index_bits;
  static_assert(1 << index_bits == most, "indices fit below the key part");
  using T = Packed<uint32_t, uint32_t, index_bits>;

 public:
  struct Shared {
    W keys[most];
    uint16_t indices[most + most / items];
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
      const int index = s.indices[slot(i)];
      moves.put(begin + i, begin, index, s.keys[index]);
    }
    __syncwarp();
  }

 private:
  // The slot of item i. One word of padding after every `items` items avoids most bank conflicts, both when
  // neighbouring lanes access neighbouring items and when they access items that are `items` apart.
  TP_DEVICE static int slot(int i) { return i + i / items; }
  TP_DEVICE static int row(int u) { return u * block::warp_size; }
  TP_DEVICE static int row_slot(int u) { return row(u) + row(u) / items; }

  // Loads the windows of the keys and returns the bits in which they differ.
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
    for (int u = 0; u < items; ++u) s.indices[row_slot(u) + slot(lane)] = uint16_t(row(u) + lane);
    __syncwarp();
  }

  // Sorts by the highest part of the keys, then settles ties. If there are too many, sorts by all parts from the lowest
  // up.
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

  // Sorts by one part of the keys. Returns a mask of the lane's items that equal their successor in this part.
  TP_DEVICE unsigned sort_part(int shift) {
    T x[items];
#pragma unroll
    for (int u = 0; u < items; ++u) {
      const W key = s.keys[s.indices[row_slot(u) + slot(lane)]];
      x[u] = row(u) < n - lane ? T::of(uint32_t(key >> shift), row(u) + lane) : T::none();
    }
    sort_lanes<block::warp_size>(x, lane);
    const unsigned next = __shfl_down_sync(~0u, x[0].word, 1);
    unsigned ties = 0;
#pragma unroll
    for (int v = 0; v < items; ++v) {
      const unsigned after = v + 1 < items ? x[(v + 1) % items].word : next;
      if ((x[v].word ^ after) >> index_bits == 0) ties |= 1u << v;
    }
    uint16_t from[items];
#pragma unroll
    for (int v = 0; v < items; ++v) from[v] = s.indices[slot(x[v].index())];
    __syncwarp();
#pragma unroll
    for (int v = 0; v < items; ++v) s.indices[lane * pitch + v] = from[v];
    __syncwarp();
    const int pairs = tp::max(0, n - 1 - lane * items);
    return pairs < items ? ties & ((1u << pairs) - 1) : ties;
  }

  // Each lane sorts the runs of ties that begin among its items. If there are long runs it does nothing and returns
  // false.
  TP_DEVICE bool settle(unsigned ties) {
    if (__any_sync(~0u, ties & ties >> 1 & ties >> 2 & ties >> 3)) return false;
    const unsigned before = __shfl_up_sync(~0u, ties, 1) >> (items - 1), after = __shfl_down_sync(~0u, ties, 1);
    const uint64_t both = uint64_t(after) << items | ties;
    const auto key = [&](int index) { return s.keys[index]; };
    for (unsigned heads = ties & ~(ties << 1 | (lane ? before : 0)); heads; heads &= heads - 1) {
      const int head = __ffs(int(heads)) - 1, first = lane * items + head;
      const int end = first + __ffsll(static_cast<long long>(~(both >> head)));
      insert_indices(s.indices, first, end, slot, key);
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
  const int warp = network_warp(), lane = int(threadIdx.x) % block::warp_size;
  block::allow_next_launch();
  const int64_t count = a.segments.size();
  for (int64_t i = int64_t(blockIdx.x) * warps + warp; i < count; i += int64_t(gridDim.x) * warps) {
    const Range range = a.segments.at(i);
    Sorter(pool[warp], lane, range.n()).run(a.moves, range.begin());
  }
  block::wait_for_launch_before();
}

}  // namespace tp::sort::device
