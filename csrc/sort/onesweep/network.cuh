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

template <class T>
TP_DEVICE T keep(const T& mine, const T& other, bool lower) {
  return (other < mine) == lower ? other : mine;
}
template <class T>
TP_DEVICE T from_lane(const T& x, int lane) {
  return block::detail::by_words(x, [=](unsigned w) { return __shfl_sync(~0u, w, lane); });
}

// Sorts the items of each group of `lanes` neighbouring lanes. Afterwards the items are in order lane by lane, each
// lane holding consecutive ones.
template <class T, int items>
TP_DEVICE void sort_lanes(T (&x)[items], int lane, int lanes) {
  sort_own<1, 1>(x);
#pragma unroll 1
  for (int merged = 2; merged <= lanes; merged *= 2) {
    const int mirror = lane ^ (merged - 1);
    const bool low_half = (lane & (merged / 2)) == 0;
#pragma unroll
    for (int v = 0; v < items / 2; ++v) {
      const T a = from_lane(x[items - 1 - v], mirror), b = from_lane(x[v], mirror);
      x[v] = keep(x[v], a, low_half);
      x[items - 1 - v] = keep(x[items - 1 - v], b, low_half);
    }
#pragma unroll 1
    for (int stride = merged / 4; stride >= 1; stride /= 2) {
      const bool lower = (lane & stride) == 0;
#pragma unroll
      for (int v = 0; v < items; ++v) x[v] = keep(x[v], from_lane(x[v], lane ^ stride), lower);
    }
    merge_own<items / 2>(x);
  }
}

constexpr int network_threads = 128;
constexpr int most_classes = 3;

template <class W>
struct Network {
  Moves<W> moves;
  Segments segments[most_classes];  // classes first_class and on; a segment of class c has up to items << c keys
  int first_class, classes;
};

template <class W, int items, bool indexed>
__global__ __launch_bounds__(network_threads) void network_kernel(const __grid_constant__ Network<W> a) {
  using T = typename Item<W, indexed>::type;
  constexpr int warps = network_threads / block::warp_size,
                pitch = items + 1;  // the padding avoids bank conflicts between lanes
  __shared__ T sorted[warps][block::warp_size * pitch];
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  T* const mine = sorted[warp];
  block::allow_next_launch();
#pragma unroll 1
  for (int c = 0; c < a.classes; ++c) {
    const Segments& segments = a.segments[c];
    const int lanes = 1 << (a.first_class + c), groups = block::warp_size / lanes;
    const int group = lane / lanes, in_group = lane % lanes;
    const int64_t count = segments.size(), step = int64_t(gridDim.x) * warps * groups;
    for (int64_t i = (int64_t(blockIdx.x) * warps + warp) * groups; i < count; i += step) {
      // Load the segment of each group, striped over its lanes.
      Segments::Range range{0, 0};
      if (i + group < count) range = segments.at(i + group);
      T x[items];
#pragma unroll
      for (int v = 0; v < items; ++v) {
        const int index = v * lanes + in_group;
        x[v] = index < range.n ? T::of(a.moves.template window_of<!indexed>(a.moves.keys[range.begin + index]), index)
                               : T::none();
      }
      // Sort it. Afterwards each lane holds consecutive keys.
      sort_lanes(x, lane, lanes);
// Transpose through shared memory, and store the keys striped again, so that stores coalesce.
#pragma unroll
      for (int v = 0; v < items; ++v) mine[lane * pitch + v] = x[v];
      __syncwarp();
#pragma unroll
      for (int v = 0; v < items; ++v) {
        const int to = v * lanes + in_group;
        if (to >= range.n) break;
        const T& y = mine[group * lanes * pitch + to / items * pitch + to % items];
        if constexpr (indexed) {
          a.moves.put(range.begin + to, range.begin, y.index(), y.window());
        } else {
          a.moves.keys_out[range.begin + to] = a.moves.template raw_of<true>(y.window());
        }
      }
      __syncwarp();
    }
  }
  block::wait_for_launch_before();
}

// group_most is the most keys with payloads that a group of lanes sorts; warp_most is the most that a warp sorts.
constexpr int64_t group_most = 128, warp_most = 1024;

}  // namespace tp::sort::device
