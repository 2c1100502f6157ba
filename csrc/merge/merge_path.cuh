// The tiles of merge_path: where each begins, and how it is merged.
//
// A tile is `tile_items` consecutive outputs of a row, together with the two ranges of input from which they come. Its
// block copies both ranges to shared memory, asynchronously and 16 bytes at a time. Each lane finds its co-ranks there,
// merges `items` elements into registers, and writes them back to shared memory, from where the block stores them 16
// bytes at a time. A range has the same offset from a 16-byte boundary in shared memory as in global memory, so both
// ends of every copy are aligned. `items` is odd, so lanes that write their elements use different banks.
//
// Rows that are shorter than a tile share a tile, as many whole rows as fit, and need no search beforehand.
//
// Values are read from global memory, by indices that the lanes have stored in shared memory. The values of a tile come
// from two contiguous ranges in ascending order, so neighbouring lanes read neighbouring values.
#pragma once
#include "block/launch.cuh"
#include "merge/order.h"
#include "merge/staging.cuh"

namespace tp::merge {

template <int threads_, int items_>
struct TileShape {
  static constexpr int threads = threads_, items = items_, tile_items = threads * items;
};

// First launch: finds where each tile of a row begins in A. A block finds the splits of `search_threads / lanes`
// neighbouring tiles. All of them are between the first and the last one, for which two whole warps search first.
constexpr int search_threads = 128;

template <int lanes, class Order>
__global__ __launch_bounds__(search_threads) void find_splits(Order order, Sequences in, int64_t tile_items,
                                                              int64_t tiles, int64_t* splits) {
  using Word = typename Order::Word;
  constexpr int together = search_threads / lanes;
  __shared__ int64_t ends[2];
  block::allow_next_launch();
  const int64_t total = in.m + in.n, groups = ceil_div(tiles + 1, int64_t(together));
  for (int64_t id = blockIdx.x; id < in.rows * groups; id += gridDim.x) {
    const int64_t row = id / groups, first = id % groups * together, tile = first + threadIdx.x / lanes;
    const Word *a = static_cast<const Word*>(in.a) + row * in.m, *b = static_cast<const Word*>(in.b) + row * in.n;
    const auto among_first = [&](int64_t k) {
      return [=](int64_t i) { return order.image(a[i]) <= order.image(b[k - 1 - i]); };
    };
    const int64_t k = tp::min(tile * tile_items, total);
    int64_t lo = tp::max(int64_t(0), k - in.n), hi = tp::min(k, in.m);
    if (lanes < 32) {
      const int64_t k_first = first * tile_items, k_last = tp::min((first + together - 1) * tile_items, total);
      if (threadIdx.x < 64) {
        const int64_t end = threadIdx.x < 32 ? k_first : k_last;
        ends[threadIdx.x / 32] = search<32>(tp::max(int64_t(0), end - in.n), tp::min(end, in.m), among_first(end));
      }
      __syncthreads();
      lo = tp::max(ends[0], k - (k_last - ends[1]));
      hi = tp::min(ends[1], k - (k_first - ends[0]));
    }
    const int64_t split = search<lanes>(lo, hi, among_first(k));
    if (int(threadIdx.x) % lanes == 0 && tile <= tiles) splits[row * (tiles + 1) + tile] = split;
    __syncthreads();
  }
}

template <int threads, class V>
TP_DEVICE void follow(const uint16_t* from, int count, int of_a, const void* a_values, const void* b_values,
                      void* values) {
  const V *a = static_cast<const V*>(a_values), *b = static_cast<const V*>(b_values) - of_a;
#pragma unroll 4
  for (int k = int(threadIdx.x); k < count; k += threads) {
    const int e = from[k];
    static_cast<V*>(values)[k] = *(e < of_a ? a + e : b + e);
  }
}

template <int threads>
TP_DEVICE void follow(int bytes, const uint16_t* from, int count, int of_a, const void* a, const void* b, void* out) {
  if (bytes == 1) {
    follow<threads, uint8_t>(from, count, of_a, a, b, out);
  } else if (bytes == 2) {
    follow<threads, uint16_t>(from, count, of_a, a, b, out);
  } else if (bytes == 4) {
    follow<threads, uint32_t>(from, count, of_a, a, b, out);
  } else if (bytes == 8) {
    follow<threads, uint64_t>(from, count, of_a, a, b, out);
  } else {
    follow<threads, Word16>(from, count, of_a, a, b, out);
  }
}

// The inputs and outputs of a tile. If `whole`, the tile is as many whole rows as fit, stored end to end; otherwise it
// is a part of one row, between two splits.
struct Tile {
  int64_t a, b, out;  // offsets in elements
  int count, of_a;

  template <bool whole>
  static TP_DEVICE Tile at(int64_t id, const Sequences& in, int tile_items, int64_t tiles, const int64_t* splits) {
    const int64_t total = in.m + in.n;
    if (whole) {
      const int64_t rows = tile_items / total, first = id * rows, here = tp::min(rows, in.rows - first);
      return {first * in.m, first * in.n, first * total, int(here * total), int(here * in.m)};
    }
    const int64_t row = id / tiles, begin = id % tiles * tile_items, i = splits[id + row], next = splits[id + row + 1];
    const int count = int(tp::min(int64_t(tile_items), total - begin));
    const int of_a = int(
        tp::max(int64_t(0), tp::min(next - i, int64_t(count))));  // splits may be anywhere if the input is not sorted
    return {row * in.m + i, row * in.n + begin - i, row * total + begin, count, of_a};
  }
};

// Merges `items` elements from output c of the tile on into registers. Elements beyond the tile are never stored.
template <bool whole, int items, bool pairs, class Order, class Word>
TP_DEVICE void merge_items(const Order& order, const Sequences& in, const Tile& tile, const Word* a, const Word* b,
                           int c, Word* key, uint16_t* from) {
  const int m = whole ? int(in.m) : tile.of_a, n = whole ? int(in.n) : tile.count - tile.of_a;
  const int row = whole ? c / (m + n) : 0, k = whole ? c % (m + n) : c;
  const auto later = [&](int i, int j) { return order.image(a[row * m + i]) > order.image(b[row * n + j]); };
  const int i = co_rank(k, m, n, later);
  int p = row * m + i, q = row * n + k - i, a_end = row * m + m, b_end = row * n + n;
  Word x = a[p], y = b[q];
#pragma unroll
  for (int r = 0; r < items; ++r) {
    const bool take_b = q < b_end && (p >= a_end || order.image(x) > order.image(y));
    key[r] = take_b ? y : x;
    if (pairs) from[r] = uint16_t(take_b ? tile.of_a + q : p);
    if (take_b) {
      y = b[++q];
    } else {
      x = a[++p];
    }
    if (whole && p == a_end && q == b_end) a_end += m, b_end += n;
  }
}

template <class Shape, bool whole, bool pairs, class Order>
__global__ __launch_bounds__(Shape::threads) void merge_tiles(Order order, Args args, int64_t tiles, int64_t count,
                                                              const int64_t* splits) {
  using Word = typename Order::Word;
  constexpr int threads = Shape::threads, items = Shape::items, tile_items = Shape::tile_items;
  constexpr int width = int(16 / sizeof(Word));
  __shared__ alignas(16) Word s[tile_items + 3 * width];
  __shared__ uint16_t indices[pairs ? tile_items : 1];
  if (!whole) block::wait_for_launch_before();
  for (int64_t id = blockIdx.x; id < count; id += gridDim.x) {
    const Tile tile = Tile::at<whole>(id, args.in, tile_items, tiles, splits);
    const Word *a = static_cast<const Word*>(args.in.a) + tile.a, *b = static_cast<const Word*>(args.in.b) + tile.b;
    Word* const out = static_cast<Word*>(args.keys) + tile.out;
    Word* const s_a = s + phase_of(a);
    Word* const s_b = s + (phase_of(a) + tile.of_a + width - 1) / width * width + phase_of(b);
    load<threads>(s_a, a, tile.of_a);
    load<threads>(s_b, b, tile.count - tile.of_a);
    wait_for_loads();

    Word key[items];
    uint16_t from[pairs ? items : 1];
    const int c = tp::min(int(threadIdx.x) * items, tile.count);
    merge_items<whole, items, pairs>(order, args.in, tile, s_a, s_b, c, key, from);
    __syncthreads();
    Word* const s_out = s + phase_of(out);
#pragma unroll
    for (int r = 0; r < items; ++r) {
      const int k = int(threadIdx.x) * items + r;
      s_out[k] = key[r];
      if (pairs) indices[k] = from[r];
    }
    __syncthreads();
    store<threads>(out, s_out, tile.count);
    if (pairs) {
      const int bytes = args.value_bytes;
      follow<threads>(bytes, indices, tile.count, tile.of_a, static_cast<const char*>(args.a_values) + tile.a * bytes,
                      static_cast<const char*>(args.b_values) + tile.b * bytes,
                      static_cast<char*>(args.values) + tile.out * bytes);
    }
    if (id + gridDim.x < count) __syncthreads();  // shared memory can be reused
  }
}

template <int lanes, class Order>
void launch_search(const Order& order, const Sequences& in, int tile_items, int64_t tiles, int64_t* splits,
                   Context& context) {
  const int64_t blocks = in.rows * ceil_div(tiles + 1, int64_t(search_threads / lanes));
  find_splits<lanes><<<unsigned(tp::min(blocks, max_grid)), search_threads, 0, cudaStream_t(context.stream)>>>(
      order, in, tile_items, tiles, splits);
  check_launch("merge_path");
}

// With few tiles, searches use many lanes to finish sooner; with many tiles, all lanes are needed anyway.
template <class Order>
int64_t* launch_search(const Order& order, const Sequences& in, int tile_items, int64_t tiles, Context& context) {
  const int64_t count = in.rows * (tiles + 1);
  int64_t* const splits = context.workspace<int64_t>(count);
  const auto launch = count <= 1024   ? launch_search<32, Order>
                      : count <= 8192 ? launch_search<8, Order>
                                      : launch_search<2, Order>;
  launch(order, in, tile_items, tiles, splits, context);
  return splits;
}

template <class Shape, bool pairs, class Order>
void merge_by_tiles(const Args& args, const Order& order, Context& context) {
  constexpr int tile_items = Shape::tile_items;
  const int64_t total = args.in.m + args.in.n, rows = args.in.rows, tiles = ceil_div(total, int64_t(tile_items));
  const bool whole = total <= tile_items;
  const int64_t count = whole ? ceil_div(rows, tile_items / total) : rows * tiles;
  const int64_t* splits = whole ? nullptr : launch_search(order, args.in, tile_items, tiles, context);
  const auto kernel = whole ? merge_tiles<Shape, true, pairs, Order> : merge_tiles<Shape, false, pairs, Order>;
  const auto blocks = unsigned(tp::min(count, max_grid));
  if (whole) {
    kernel<<<blocks, Shape::threads, 0, cudaStream_t(context.stream)>>>(order, args, tiles, count, splits);
  } else {
    block::launch_early(kernel, blocks, Shape::threads, 0, context, order, args, tiles, count, splits);
  }
  check_launch("merge_path");
}

}  // namespace tp::merge
