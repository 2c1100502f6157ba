// decoupled_lookback over contiguous rows. Position p of the rows laid end to end is element p % n of row p / n; in a
// reverse scan p counts from the far end of everything, and so does each row.
//
// A value that covers the elements up to p starts at the head of p's row or at the start of its lane, warp, tile or
// group, whichever is later. So it combines with what precedes that span exactly if the row reaches beyond it: `k`, the
// element's place in its row, is all there is to ask, and no flags travel. With a single row there is nothing to ask.
#pragma once
#include "block/load_store.cuh"
#include "block/lookback.cuh"
#include "scan/elements.h"

namespace tp::scan::lookback {

constexpr int tiles_a_group = 256;

// `chunks_` loads a thread, `threads_` threads; one_row_: the rows are a single one.
template <class E, int threads_, int chunks_, bool one_row_, int blocks_>
struct RowTile {
  using Elements = E;
  static constexpr bool one_row = one_row_;
  static constexpr int blocks = blocks_;  // that a multiprocessor should hold at once
  static constexpr int threads = threads_, warps = threads / block::warp_size, chunks = chunks_;
  static constexpr int largest = int(tp::max(sizeof(typename E::Input), sizeof(typename E::Output)));
  static constexpr int vector = largest == 8 ? 2 : largest == 4 ? 4 : 8;  // elements a load
  static constexpr int chunk = block::warp_size * vector;                 // elements a warp loads at once
  static constexpr int warp_items = chunk * chunks, items = warp_items * warps;

  // Whether an element at place k of its row has more than d elements of the row before it.
  TP_HD static bool beyond(int64_t k, int64_t d) { return one_row || k > d; }
  // The place in its row, d elements on.
  TP_HD static int64_t advance(int64_t k, int d, int64_t n) {
    k += d;
    return one_row || k < n ? k : d <= n ? k - n : k % n;
  }
};

// The arrays of the rows, laid end to end.
template <class Tile>
struct RowArrays {
  using E = typename Tile::Elements;
  block::Vectors<const typename E::Input, Tile::vector> in, a;
  block::Vectors<typename E::Output, Tile::vector> out;
  const typename E::Input* initial;
  int64_t rows, n;
  bool exclusive;

  explicit RowArrays(const E& e)
      : in(e.in, e.rows * e.n, e.reverse),
        a(e.a, e.rows * e.n, e.reverse),
        out(e.out, e.rows * e.n, e.reverse),
        initial(e.initial),
        rows(e.rows),
        n(e.n),
        exclusive(e.exclusive) {}
};

// A lane's elements: chunk j holds `vector` of them from position `first + j * chunk` on.
template <class Tile>
struct LaneItems {
  using E = typename Tile::Elements;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  static constexpr bool affine = M::id == OpId::affine;
  block::Vector<typename E::Input, Tile::vector> x[Tile::chunks];
  block::Vector<typename E::Input, affine ? Tile::vector : 1> a[affine ? Tile::chunks : 1];

  // `whole`: the tile lies inside the arrays, and vectors are aligned. Then all loads are in flight before any is used.
  TP_DEVICE void load(const RowArrays<Tile>& arrays, int64_t first, bool whole) {
    if (whole) {
#pragma unroll
      for (int j = 0; j < Tile::chunks; ++j) {
        x[j] = arrays.in.at(first + j * Tile::chunk);
        if constexpr (affine) a[j] = arrays.a.at(first + j * Tile::chunk);
      }
      if (arrays.in.reverse) {
#pragma unroll
        for (int j = 0; j < Tile::chunks; ++j) {
          x[j].flip();
          if constexpr (affine) a[j].flip();
        }
      }
    } else {
      const Acc identity = M::identity();
#pragma unroll
      for (int j = 0; j < Tile::chunks; ++j) {
        if constexpr (affine) {
          x[j] = arrays.in.load(first + j * Tile::chunk, typename E::Input(identity.b));
          a[j] = arrays.a.load(first + j * Tile::chunk, typename E::Input(identity.a));
        } else {
          x[j] = arrays.in.load(first + j * Tile::chunk, typename E::Input(identity));
        }
      }
    }
    if constexpr (affine) {
      if (Tile::one_row && first == 0 && !arrays.initial) a[0].v[0] = typename E::Input(0);  // unused there
    }
  }

  TP_DEVICE Acc operand(int j, int i) const {
    if constexpr (affine) {
      using A = decltype(Acc::a);
      return {A(a[j].v[i]), A(x[j].v[i])};
    } else {
      return Acc(x[j].v[i]);
    }
  }

  // The operand at the head of its row, at position p: nothing precedes it but `initial`.
  TP_DEVICE Acc head(const RowArrays<Tile>& e, int j, int i, int64_t p) const {
    const Acc x = operand(j, i);
    if constexpr (affine) {
      using A = decltype(Acc::a);
      if (!e.initial || p >= e.in.count) return {A(0), x.b};
      const int64_t row = p / e.n;
      return {A(0), x.a * A(e.initial[e.in.reverse ? e.rows - 1 - row : row]) + x.b};
    } else {
      return x;
    }
  }

  // f(i, operand, at the head of a row) for the elements of chunk j, whose first is at place k of its row and position
  // p.
  template <class F>
  TP_DEVICE void each(const RowArrays<Tile>& e, int j, int64_t p, int64_t k, F f) const {
    if (Tile::one_row || (k > 0 && k + Tile::vector <= e.n)) {
#pragma unroll
      for (int i = 0; i < Tile::vector; ++i) f(i, operand(j, i), false);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::vector; ++i) {
        f(i, k == 0 ? head(e, j, i, p + i) : operand(j, i), k == 0);
        if (++k == e.n) k = 0;
      }
    }
  }
};

template <class Tile>
__global__ __launch_bounds__(Tile::threads,
                             Tile::blocks) void rows_kernel(const RowArrays<Tile> e,
                                                            const block::Chain<typename Tile::Elements::Acc> chain,
                                                            int64_t tiles) {
  using E = typename Tile::Elements;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  constexpr int vector = Tile::vector, chunk = Tile::chunk, chunks = Tile::chunks, warps = Tile::warps;
  __shared__ Acc warp_total[warps], before_tile;
  __shared__ int warp_reach[warps];  // how many elements of its row precede a warp's last one, at most warp_items
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  const int64_t tile = block::take_ticket(chain), n = e.n;
  const int64_t tile_first = tile * Tile::items, warp_first = tile_first + warp * Tile::warp_items;
  const int64_t lane_first = warp_first + lane * vector, lane_k = Tile::one_row ? lane_first : lane_first % n;

  const bool inside = tile_first + Tile::items <= e.in.count, out_whole = inside && e.out.aligned;
  LaneItems<Tile> items;
  items.load(e, lane_first, inside && e.in.aligned && e.a.aligned);

  // Scan the warp: before[j] is what precedes the lane's chunk j within the warp and the row.
  Acc before[chunks], carry = M::identity();
  int reach = Tile::warp_items;
  int64_t k = lane_k;
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    Acc sum = M::identity();
    items.each(e, j, lane_first + j * chunk, k, [&](int, Acc x, bool head) { sum = head ? x : M::combine(sum, x); });
    const int last_k = int(tp::min(Tile::advance(k, vector - 1, n), int64_t(Tile::warp_items)));
#pragma unroll
    for (int stride = 1; stride < block::warp_size; stride *= 2) {
      const Acc left = block::shuffle_up(sum, stride);
      if (lane >= stride && Tile::beyond(last_k, stride * vector - 1)) sum = M::combine(left, sum);
    }
    const Acc left = block::shuffle_up(sum, 1);
    before[j] = lane == 0 ? carry : Tile::beyond(k, lane * vector) ? M::combine(carry, left) : left;
    const Acc total = block::broadcast(sum, block::warp_size - 1);
    if (!Tile::one_row) reach = block::broadcast(last_k, block::warp_size - 1);
    carry = reach >= chunk ? M::combine(carry, total) : total;
    k = Tile::advance(k, chunk, n);
  }
  if (lane == 0) {
    warp_total[warp] = carry;
    warp_reach[warp] = reach;
  }
  __syncthreads();

  // The warps before mine, and the whole tile: published at once.
  Acc total = M::identity(), before_warp = M::identity();
  if constexpr (M::id == OpId::affine) {
    if (Tile::one_row && tile == 0 && e.initial) total = {0, decltype(Acc::a)(e.initial[0])};
  }
  bool whole = true;  // no row starts in the tile
#pragma unroll
  for (int w = 0; w < warps; ++w) {
    if (w == warp) before_warp = total;
    const bool headless = Tile::one_row || warp_reach[w] >= Tile::warp_items;
    total = headless ? M::combine(total, warp_total[w]) : warp_total[w];
    whole = whole && headless;
  }
  if (chain.tickets) {
    if (threadIdx.x == 0) chain.tiles[tile].publish(total);
    if (warp == 0) {
      const int64_t tile_k = block::broadcast(lane_k, 0), start = (tile_first - tile_k) / Tile::items;
      const Acc previous = tile_k > 0 ? block::look_back<M, tiles_a_group>(chain, tile, start) : M::identity();
      if (lane == 0) {
        before_tile = previous;
        if (tile % tiles_a_group == tiles_a_group - 1 && tile + 1 < tiles) {
          chain.groups[tile / tiles_a_group].publish(whole ? M::combine(previous, total) : total);
        }
      }
    }
    __syncthreads();
    const int64_t warp_k = block::broadcast(lane_k, 0);
    if (warp_k > warp_first - tile_first) before_warp = M::combine(before_tile, before_warp);
  }

  // Complete the elements.
  k = lane_k;
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    const int64_t p = lane_first + j * chunk;
    Acc running = Tile::beyond(k, p - warp_first) ? M::combine(before_warp, before[j]) : before[j];
    block::Vector<typename E::Output, vector> y;
    items.each(e, j, p, k, [&](int i, Acc x, bool head) {
      const Acc next = head ? x : M::combine(running, x);
      const Acc result = !e.exclusive ? next : head ? M::identity() : running;
      if constexpr (M::id == OpId::affine) {
        y.v[i] = typename E::Output(result.b);
      } else {
        y.v[i] = typename E::Output(result);
      }
      running = next;
    });
    if (out_whole) {
      if (e.out.reverse) y.flip();
      e.out.at(p) = y;
    } else {
      e.out.store(p, y);
    }
    k = Tile::advance(k, chunk, n);
  }
}

template <class Tile>
void launch_rows(const typename Tile::Elements& e, Context& context) {
  using Acc = typename Tile::Elements::Acc;
  const int64_t count = e.rows * e.n, tiles = ceil_div(count, int64_t(Tile::items));
  require(tiles <= 2147483647, "decoupled_lookback: ", count, " elements are too many for one launch");
  block::Chain<Acc> chain{};
  const bool independent = tiles == 1 || Tile::items % e.n == 0;  // no row crosses from a tile into the next
  if (!independent) chain = block::make_chain<Acc>(context, tiles, ceil_div(tiles, int64_t(tiles_a_group)));
  rows_kernel<Tile>
      <<<unsigned(tiles), Tile::threads, 0, cudaStream_t(context.stream)>>>(RowArrays<Tile>(e), chain, tiles);
  check_launch("decoupled_lookback");
}

// Threads, loads a thread and blocks a multiprocessor: the quickest of those tried on an H200.
template <class E, bool one_row>
struct TunedTile {
  static constexpr bool affine = E::Monoid::id == OpId::affine;
  static constexpr bool narrow = sizeof(typename E::Input) < 4 && sizeof(typename E::Output) < 4;
  using type = RowTile<E, 512, affine ? 4 : 8, one_row, affine || narrow ? 1 : 2>;
};

template <class E>
void scan_rows(const E& e, Context& context) {
  if (e.rows == 1) {
    launch_rows<typename TunedTile<E, true>::type>(e, context);
  } else {
    launch_rows<typename TunedTile<E, false>::type>(e, context);
  }
}

}  // namespace tp::scan::lookback
