// decoupled_lookback over contiguous rows. Position p of the rows laid end to end is element p % n of row p / n; in a
// reverse scan p counts from the far end of everything, and so does each row.
//
// A value that covers the elements up to p starts at the head of p's row or at the start of its lane, warp, tile or
// group, whichever is later. So it combines with what precedes that span exactly if the row reaches beyond it: `k`, the
// element's place in its row, is all there is to ask, and no flags travel.
#pragma once
#include "block/load_store.cuh"
#include "scan/lookback_chain.cuh"

namespace tp::scan::lookback {

constexpr int tiles_a_group = 256;

template <class E>
struct RowTile {
  static constexpr int largest = int(
      sizeof(typename E::Input) > sizeof(typename E::Output) ? sizeof(typename E::Input) : sizeof(typename E::Output));
  static constexpr int vector = largest == 8 ? 2 : largest == 4 ? 4 : 8;               // elements a load
  static constexpr int chunks = E::Monoid::id == OpId::affine || largest < 4 ? 4 : 8;  // loads a thread
  static constexpr int chunk = block::warp_size * vector;                              // elements a warp loads at once
  static constexpr int warp_items = chunk * chunks, items = warp_items * warps;
};

// A lane's elements: chunk j holds `vector` of them from position `first + j * chunk` on.
template <class E>
struct LaneItems {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Tile = RowTile<E>;
  block::Vector<typename E::Input, Tile::vector> x[Tile::chunks];
  block::Vector<typename E::Input, M::id == OpId::affine ? Tile::vector : 1>
      a[M::id == OpId::affine ? Tile::chunks : 1];

  // Beyond the end stands the identity.
  TP_DEVICE void load(const E& e, int64_t first, bool aligned) {
#pragma unroll
    for (int j = 0; j < Tile::chunks; ++j) {
      const int64_t p = first + j * Tile::chunk, count = e.rows * e.n;
      x[j] = block::load<Tile::vector>(e.in, p, count, e.reverse, aligned);
      if constexpr (M::id == OpId::affine) a[j] = block::load<Tile::vector>(e.a, p, count, e.reverse, aligned);
      if (p + Tile::vector <= count) continue;
#pragma unroll
      for (int i = 0; i < Tile::vector; ++i) {
        if (p + i < count) continue;
        if constexpr (M::id == OpId::affine) {
          x[j].v[i] = typename E::Input(M::identity().b);
          a[j].v[i] = typename E::Input(M::identity().a);
        } else {
          x[j].v[i] = typename E::Input(M::identity());
        }
      }
    }
  }

  TP_DEVICE Acc operand(int j, int i) const {
    if constexpr (M::id == OpId::affine) {
      using A = decltype(Acc::a);
      return {A(a[j].v[i]), A(x[j].v[i])};
    } else {
      return Acc(x[j].v[i]);
    }
  }

  // The operand at the head of its row, at position p: nothing precedes it.
  TP_DEVICE Acc head(const E& e, int j, int i, int64_t p) const {
    const Acc x = operand(j, i);
    if constexpr (M::id == OpId::affine) {
      using A = decltype(Acc::a);
      if (!e.initial || p >= e.rows * e.n) return {A(0), x.b};
      const int64_t row = p / e.n;
      return {A(0), x.a * A(e.initial[e.reverse ? e.rows - 1 - row : row]) + x.b};
    } else {
      return x;
    }
  }

  // f(i, operand, at the head of a row) for the elements of chunk j, whose first is at place k of its row and position
  // p.
  template <class F>
  TP_DEVICE void each(const E& e, int j, int64_t p, int64_t k, F f) const {
    if (k > 0 && k + Tile::vector <= e.n) {
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

// The place in its row, d elements on.
TP_DEVICE inline int64_t advance(int64_t k, int d, int64_t n) {
  k += d;
  return k < n ? k : d <= n ? k - n : k % n;
}

// What precedes a tile in its row: the totals of its group's earlier tiles by a fixed tree, after the running total of
// the groups before. By one warp; lane 0 gets it. `start`: the first tile that the row touches.
template <class M, class Acc>
TP_DEVICE Acc look_back(const Chain<Acc>& chain, int64_t tile, int64_t start) {
  constexpr int run = tiles_a_group / block::warp_size;
  const int64_t group = tile / tiles_a_group, first = group * tiles_a_group;
  const int64_t mine = first + int64_t(threadIdx.x) % block::warp_size * run;
  Acc sum = M::identity();
#pragma unroll
  for (int i = 0; i < run; ++i) {
    if (mine + i >= start && mine + i < tile) sum = M::combine(sum, chain.tiles[mine + i].wait());
  }
  sum = block::reduce<M>(sum);
  if (start < first && threadIdx.x == 0) sum = M::combine(chain.groups[group - 1].wait(), sum);
  return sum;
}

template <class E>
__global__ __launch_bounds__(threads) void rows_kernel(const E e, const Chain<typename E::Acc> chain, int64_t tiles,
                                                       bool in_aligned, bool out_aligned) {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Tile = RowTile<E>;
  constexpr int vector = Tile::vector, chunk = Tile::chunk, chunks = Tile::chunks;
  __shared__ Acc warp_total[warps], before_tile;
  __shared__ int warp_reach[warps];  // how many elements of its row precede a warp's last one, at most warp_items
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  const int64_t tile = take_ticket(chain), n = e.n, count = e.rows * n;
  const int64_t tile_first = tile * Tile::items, warp_first = tile_first + warp * Tile::warp_items;
  const int64_t lane_first = warp_first + lane * vector, lane_k = e.rows == 1 ? lane_first : lane_first % n;

  LaneItems<E> items;
  items.load(e, lane_first, in_aligned);

  // Scan the warp: before[j] is what precedes the lane's chunk j within the warp and the row.
  Acc before[chunks], carry = M::identity();
  int reach = 0;
  int64_t k = lane_k;
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    Acc sum = M::identity();
    items.each(e, j, lane_first + j * chunk, k, [&](int, Acc x, bool head) { sum = head ? x : M::combine(sum, x); });
    const int last_k = int(tp::min(advance(k, vector - 1, n), int64_t(Tile::warp_items)));
#pragma unroll
    for (int stride = 1; stride < block::warp_size; stride *= 2) {
      const Acc left = block::shuffle_up(sum, stride);
      if (lane >= stride && last_k >= stride * vector) sum = M::combine(left, sum);
    }
    const Acc left = block::shuffle_up(sum, 1);
    before[j] = lane == 0 ? carry : k > lane * vector ? M::combine(carry, left) : left;
    reach = block::broadcast(last_k, block::warp_size - 1);
    const Acc total = block::broadcast(sum, block::warp_size - 1);
    carry = reach >= chunk ? M::combine(carry, total) : total;
    k = advance(k, chunk, n);
  }
  if (lane == 0) {
    warp_total[warp] = carry;
    warp_reach[warp] = reach;
  }
  __syncthreads();

  // The warps before mine, and the whole tile: published at once.
  Acc total = M::identity(), before_warp = M::identity();
  int tile_reach = 0;
  for (int w = 0; w < warps; ++w) {
    if (w == warp) before_warp = total;
    const bool headless = warp_reach[w] >= Tile::warp_items;
    total = headless ? M::combine(total, warp_total[w]) : warp_total[w];
    tile_reach = headless ? tile_reach + 1 : 0;
  }
  if (chain.tickets) {
    if (threadIdx.x == 0) chain.tiles[tile].publish(total);
    if (warp == 0) {
      const int64_t tile_k = block::broadcast(lane_k, 0), start = (tile_first - tile_k) / Tile::items;
      const Acc previous = tile_k > 0 ? look_back<M>(chain, tile, start) : M::identity();
      if (lane == 0) {
        before_tile = previous;
        if (tile % tiles_a_group == tiles_a_group - 1 && tile + 1 < tiles) {
          const bool whole = tile_reach == warps;
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
    Acc running = k > p - warp_first ? M::combine(before_warp, before[j]) : before[j];
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
    block::store<vector>(e.out, p, count, e.reverse, out_aligned, y);
    k = advance(k, chunk, n);
  }
}

template <class E>
void scan_rows(const E& e, Context& context) {
  using Tile = RowTile<E>;
  const int64_t count = e.rows * e.n, tiles = ceil_div(count, int64_t(Tile::items));
  require(tiles <= 2147483647, "decoupled_lookback: ", count, " elements are too many for one launch");
  Chain<typename E::Acc> chain{};
  const bool independent = tiles == 1 || Tile::items % e.n == 0;  // no row crosses from a tile into the next
  if (!independent) chain = make_chain<typename E::Acc>(context, tiles, ceil_div(tiles, int64_t(tiles_a_group)));
  bool in_aligned = block::is_aligned<Tile::vector>(e.in, count, e.reverse);
  if (e.a) in_aligned = in_aligned && block::is_aligned<Tile::vector>(e.a, count, e.reverse);
  const bool out_aligned = block::is_aligned<Tile::vector>(e.out, count, e.reverse);
  rows_kernel<<<unsigned(tiles), threads, 0, cudaStream_t(context.stream)>>>(e, chain, tiles, in_aligned, out_aligned);
  check_launch();
}

}  // namespace tp::scan::lookback
