// Short segments: each is sorted by a group of lanes, in registers, by Batcher's networks. If a key and its original
// index fit in one word, they are packed, so that no two words are equal and the order is stable.
//
// Each lane first sorts its own items by odd-even merges. Then runs of doubling length are merged: the first step
// compares an item with its mirror image in the merged run, so that in all steps the lower position gets the smaller
// item. Strides within a lane need no shuffle.
#pragma once
#include "block/warp.cuh"
#include "sort/onesweep/digits.cuh"
#include "sort/onesweep/segments.cuh"

namespace tp::sort::device {

// A window and an original index packed into one word; without payload (shift 0), only the window.
template <class W, class Word, int shift>
struct Packed {
  Word word;
  TP_DEVICE static Packed of(W window, int index) { return {Word(Word(window) << shift | Word(shift ? index : 0))}; }
  TP_DEVICE static Packed none() { return {Word(-1)}; }
  TP_DEVICE W window() const { return W(word >> shift); }
  TP_DEVICE int index() const { return int(word & ((Word(1) << shift) - 1)); }
  TP_DEVICE bool operator<(const Packed& other) const { return word < other.word; }
};
struct Pair {
  uint64_t key;
  unsigned at;
  TP_DEVICE static Pair of(uint64_t window, int index) { return {window, unsigned(index)}; }
  TP_DEVICE static Pair none() { return {~uint64_t(0), ~0u}; }
  TP_DEVICE uint64_t window() const { return key; }
  TP_DEVICE int index() const { return int(at); }
  TP_DEVICE bool operator<(const Pair& other) const { return key < other.key || (key == other.key && at < other.at); }
};
template <class W, bool indexed>
struct Item {
  using type = Packed<W, uint32_t, 16>;
};
template <>
struct Item<uint32_t, true> {
  using type = Packed<uint32_t, uint64_t, 32>;
};
template <>
struct Item<uint64_t, true> {
  using type = Pair;
};
template <class W>
struct Item<W, false> {
  using type = Packed<W, typename std::conditional<sizeof(W) == 8, uint64_t, uint32_t>::type, 0>;
};

template <class T>
TP_DEVICE void exchange(T& a, T& b) {
  const bool swaps = b < a;
  const T low = swaps ? b : a;
  b = swaps ? a : b;
  a = low;
}
template <class W, int shift>
TP_DEVICE void exchange(Packed<W, uint32_t, shift>& a, Packed<W, uint32_t, shift>& b) {
  const uint32_t low = ::min(a.word, b.word);
  b.word = ::max(a.word, b.word);
  a.word = low;
}

// One step of the odd-even merges of runs of `run` items, and all steps after it.
template <int run, int stride, class T, int items>
TP_DEVICE void sort_own(T (&x)[items]) {
#pragma unroll
  for (int i = 0; i + stride < items; ++i) {
    const int j = i - stride % run;
    if (j >= 0 && j / stride % 2 == 0 && i / (2 * run) == (i + stride) / (2 * run)) exchange(x[i], x[i + stride]);
  }
  if constexpr (stride > 1) {
    sort_own<run, stride / 2>(x);
  } else if constexpr (2 * run < items) {
    sort_own<2 * run, 2 * run>(x);
  }
}
// The last steps of a merge, in which an item and its partner are in the same lane.
template <int stride, class T, int items>
TP_DEVICE void merge_own(T (&x)[items]) {
#pragma unroll
  for (int v = 0; v < items; ++v) {
    if ((v & stride) == 0) exchange(x[v], x[v + stride]);
  }
  if constexpr (stride > 1) merge_own<stride / 2>(x);
}

// The smaller of two items in the lower position, the greater one in the upper.
template <class T>
TP_DEVICE T keep(const T& mine, const T& other, bool lower) {
  return (other < mine) == lower ? other : mine;
}
// Compares the items with those of the lane whose number differs in the bits of `mask`: with the same ones, or with
// their mirror images. Shuffles of eight items are in flight at once.
template <bool mirrored, class T, int items>
TP_DEVICE void exchange_lanes(T (&x)[items], int mask, bool lower) {
  constexpr int together = items < 8 ? items : 8;
#pragma unroll
  for (int first = 0; first < items; first += together) {
    T other[together];
    const auto item = [=](int u) { return u % 2 ? items - 1 - (first + u) / 2 : (first + u) / 2; };
#pragma unroll
    for (int u = 0; u < together; ++u) {
      other[u] = block::shuffle_xor(x[mirrored ? items - 1 - item(u) : item(u)], mask);
    }
#pragma unroll
    for (int u = 0; u < together; ++u) x[item(u)] = keep(x[item(u)], other[u], lower);
  }
}

// Sorts the items of each group of `lanes` neighbouring lanes. Afterwards the items are in order lane by lane, each
// lane holding consecutive ones.
template <int lanes, class T, int items>
TP_DEVICE void sort_lanes(T (&x)[items], int lane) {
  constexpr int unroll = items > 8 ? 1 : 8;
  sort_own<1, 1>(x);
#pragma unroll unroll
  for (int merged = 2; merged <= lanes; merged *= 2) {
    exchange_lanes<true>(x, merged - 1, (lane & (merged / 2)) == 0);
#pragma unroll unroll
    for (int stride = merged / 4; stride >= 1; stride /= 2) exchange_lanes<false>(x, stride, (lane & stride) == 0);
    if constexpr (items > 1) merge_own<items / 2>(x);
  }
}

// The number of the warp within the block. The broadcast tells the compiler that it is the same for all lanes, which
// therefore take the same turns; only then does it keep several shuffles in flight.
TP_DEVICE inline int network_warp() { return block::broadcast(int(threadIdx.x) / block::warp_size, 0); }

constexpr int network_threads = 128, network_warps = network_threads / block::warp_size;

constexpr int most_classes = 3;
template <int items>
constexpr int network_blocks = items > 8 ? 7 : 8;  // per multiprocessor

template <class W>
struct Network {
  Moves<W> moves;
  Segments segments[most_classes];  // list i has segments of up to items << (log_lanes + i) keys
  int log_lanes, lists;
};

// Sorts segments of up to items * lanes keys, each by a group of `lanes` neighbouring lanes.
template <class W, int items, int lanes, bool indexed>
class GroupSorter {
  using T = typename Item<W, indexed>::type;
  static constexpr int groups = block::warp_size / lanes,
                       pitch = items + 1;  // the padding avoids bank conflicts between lanes

 public:
  using Shared = T[block::warp_size * pitch];

  // Every warp takes the next `groups` segments in turn. It reads where the segments of `lanes` turns are at once, one
  // per lane, and those of as many more in advance. If there are registers for it, it also loads the keys of the next
  // turn before it sorts those it has.
  TP_DEVICE static void run(const Moves<W>& moves, const Segments& segments, Shared& shared, int warp, int lane) {
    constexpr bool ahead = items <= 8;
    const int64_t count = segments.size(), step = int64_t(gridDim.x) * network_warps * groups;
    int64_t next = (int64_t(blockIdx.x) * network_warps + warp) * groups;
    const auto find = [&](int64_t first) {
      const int64_t mine =
          first + lane / groups * step + lane % groups;  // of group lane % groups, in turn lane / groups
      return mine < count ? segments.at(mine) : Range{0};
    };
    if (next >= count) return;
    Range found = find(next), later = find(next + lanes * step);
    Loaded now;
    if (ahead) now.load(moves, found, 0, lane);
#pragma unroll 1
    for (int turn = 0; next < count; next += step) {
      Loaded following;
      if (!ahead) now.load(moves, found, turn, lane);
      if (++turn == lanes) {
        turn = 0;
        found = later;
        later = find(next + (lanes + 1) * step);
      }
      if (ahead) following.load(moves, found, turn, lane);
      sort(moves, now, shared, lane);
      if (ahead) now = following;
    }
  }

 private:
  // The keys of the segment that the lane's group sorts in a turn, striped over its lanes.
  struct Loaded {
    int64_t begin;  // of the lane's first key
    int left;       // the number of keys of the segment from there on
    W keys[items];

    TP_DEVICE void load(const Moves<W>& moves, const Range& found, int turn, int lane) {
      const int in_group = lane % lanes;
      const Range range = block::broadcast(found, turn * groups + lane / lanes);
      begin = range.begin() + in_group;
      left = range.n() - in_group;
      const W* const source = moves.of(range) + in_group;
      const W padding = moves.template raw_of<!indexed>(W(-1));
#pragma unroll
      for (int v = 0; v < items; ++v) keys[v] = v * lanes < left ? source[v * lanes] : padding;
    }
  };

  TP_DEVICE static void sort(const Moves<W>& moves, const Loaded& loaded, Shared& shared, int lane) {
    const int in_group = lane % lanes, left = loaded.left;
    const int64_t begin = loaded.begin;
    T x[items];
#pragma unroll
    for (int v = 0; v < items; ++v) {
      x[v] = T::of(moves.template window_of<!indexed>(loaded.keys[v]), v * lanes + in_group);
      if (indexed && v * lanes >= left) x[v] = T::none();
    }
    // Afterwards each lane holds consecutive keys.
    sort_lanes<lanes>(x, lane);
    // Transpose them through shared memory, and store them striped again, so that stores coalesce.
#pragma unroll
    for (int v = 0; v < items; ++v) shared[lane * pitch + v] = x[v];
    __syncwarp();
    const T* const sorted = shared + (lane - in_group + in_group / items) * pitch + in_group % items;
#pragma unroll
    for (int v = 0; v < items; ++v) {
      const int to = v * lanes;
      if (to >= left) break;
      const T y = sorted[to / items * pitch + to % items];
      if constexpr (indexed) {
        moves.put(begin + to, begin - in_group, y.index(), y.window());
      } else {
        moves.keys_out[begin + to] = moves.template raw_of<true>(y.window());
      }
    }
    __syncwarp();
  }
};

// Sorts segments by groups of 2^log_lanes lanes.
template <class W, int items, int lanes, int most_lanes, bool indexed>
TP_DEVICE void sort_groups(const Moves<W>& moves, const Segments& segments, int log_lanes, char* shared, int warp,
                           int lane) {
  if constexpr (lanes < most_lanes) {
    if (1 << log_lanes != lanes) {
      return sort_groups<W, items, 2 * lanes, most_lanes, indexed>(moves, segments, log_lanes, shared, warp, lane);
    }
  }
  using Sorter = GroupSorter<W, items, lanes, indexed>;
  Sorter::run(moves, segments, reinterpret_cast<typename Sorter::Shared*>(shared)[warp], warp, lane);
}

// Sorts the segments of all lists, those of the longest first.
template <class W, int items, int least_lanes, int most_lanes, bool indexed>
__global__ __launch_bounds__(network_threads,
                             network_blocks<items>) void network_kernel(const __grid_constant__ Network<W> a) {
  using Shared = typename GroupSorter<W, items, least_lanes, indexed>::Shared;
  __shared__ __align__(16) char shared[network_warps * sizeof(Shared)];
  const int warp = network_warp(), lane = int(threadIdx.x) % block::warp_size;
  block::allow_next_launch();
#pragma unroll 1
  for (int i = a.lists - 1; i >= 0; --i) {
    sort_groups<W, items, least_lanes, most_lanes, indexed>(a.moves, a.segments[i], a.log_lanes + i, shared, warp,
                                                            lane);
  }
  block::wait_for_launch_before();
}

// group_most is the most keys with payloads that a group of lanes sorts; warp_most is the most that a warp sorts.
constexpr int64_t group_most = 128, warp_most = 1024;

}  // namespace tp::sort::device
