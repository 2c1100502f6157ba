// merge_path for one column. Each warp takes one tile, in steps of a few hundred entries. The warp multiplies the
// entries of a step, with many coalesced loads in flight, and puts the products into its own shared memory, where the
// last entry of each row is marked. Then each lane sums a run of neighbouring products and starts again after each
// mark; meanwhile the entries of the next step are loaded. No warp waits for another.
#pragma once
#include "sparse/csr/shares.cuh"

namespace tp::sparse {

// How the entries of a step are distributed over a warp. Each lane has `size` entries, in `vectors` groups of `width`
// neighbours, so that the widest of the arrays is loaded 16 bytes at a time.
template <class T, class I>
struct Steps {
  static constexpr int width = 16 / int(sizeof(T) > sizeof(I) ? sizeof(T) : sizeof(I)), vectors = 4;
  static constexpr int size = width * vectors, entries = size * warp_size;
  static constexpr int warps = 2, blocks = 10, items = 2048;
};

// The entries of one lane in a step.
template <class B, class S, bool planned>
struct StepEntries {
  using T = typename B::Value;
  using I = typename B::Position;
  static constexpr int size = S::size, width = S::width;
  I column[size];
  T value[size];

  // to[j] = array[i], where i is the index of the lane's entry j in the step, if low <= i < high; otherwise filler.
  template <class E>
  TP_DEVICE static void fetch(const E* array, bool aligned, int low, int high, E filler, E (&to)[size]) {
    using V = block::Vector<E, width>;
#pragma unroll
    for (int j = 0; j < size; j += width) {
      const int at = j * warp_size + int(threadIdx.x) % warp_size * width;
      V v;
      if (aligned && at >= low && at + width <= high) {
        v = read_once(reinterpret_cast<const V*>(array + at));
      } else {
#pragma unroll
        for (int l = 0; l < width; ++l) v.v[l] = at + l >= low && at + l < high ? array[at + l] : filler;
      }
#pragma unroll
      for (int l = 0; l < width; ++l) to[j + l] = v.v[l];
    }
  }
  // Loads entries low to high - 1 of the step that begins at entry `at`. column[j] is -1 if entry j does not exist.
  TP_DEVICE void load(const B& b, bool aligned, int64_t at, int low, int high) {
    if constexpr (planned) {
      I entry[size];
      fetch(b.perm + at, aligned, low, high, I(-1), entry);
      if (!b.a.perm_indexes) fetch(b.col_idx + at, aligned, low, high, I(-1), column);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const bool is_entry = inside(entry[j], b.a.entries);
        value[j] = is_entry ? b.values[entry[j]] : T(0);
        if (b.a.perm_indexes && is_entry) column[j] = b.col_idx[entry[j]];
        if (!is_entry) column[j] = I(-1);
      }
    } else {
      fetch(b.col_idx + at, aligned, low, high, I(-1), column);
      fetch(b.values + at, aligned, low, high, T(0), value);
    }
  }
  // Multiplies each entry by its element of x. The product of an entry that does not exist is 0.
  TP_DEVICE void multiply(const B& b, typename B::Acc (&product)[size]) const {
    using Acc = typename B::Acc;
    using U = typename std::make_unsigned<I>::type;
    const U cols = U(tp::min(b.a.cols, int64_t(std::numeric_limits<I>::max())));
    T x[size];
#pragma unroll
    for (int j = 0; j < size; ++j) x[j] = U(column[j]) < cols ? b.x[column[j]] : T(0);
#pragma unroll
    for (int j = 0; j < size; ++j) product[j] = U(column[j]) < cols ? Acc(value[j]) * Acc(x[j]) : Acc(0);
  }
};

// The products of a step in shared memory, and one bit per product that says whether it is the last of its row. Each
// lane sums a run of `size` neighbouring products.
template <class Acc, class S>
struct StepProducts {
  static constexpr int size = S::size, width = S::width, vectors = S::vectors;
  using V = block::Vector<Acc, width>;
  V vector[(vectors + 1) * warp_size];  // a gap after each run avoids bank conflicts between lanes
  unsigned marks[size];

  TP_DEVICE static int lane() { return int(threadIdx.x) % warp_size; }
  TP_DEVICE void clear_marks() {
    if (lane() < size) marks[lane()] = 0;
  }
  TP_DEVICE void mark(int index) { atomicOr(marks + index / warp_size, 1u << index % warp_size); }
  TP_DEVICE Acc& at(int index) { return reinterpret_cast<Acc*>(vector)[index + index / size * width]; }
  TP_DEVICE void put(const Acc (&product)[size]) {
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      const int index = i * warp_size + lane();
      V v;
#pragma unroll
      for (int l = 0; l < width; ++l) v.v[l] = product[i * width + l];
      vector[index + index / vectors] = v;
    }
  }
  // Replaces the last product of each row by the sum of the row. On entry, `open` is the sum of the row that was left
  // open before these products; on return, of the one that is open after them.
  TP_DEVICE void sum(Acc& open) {
    // Each lane sums its own run, and starts again after each mark.
    const unsigned mine = marks[lane() * size / warp_size] >> lane() * size % warp_size & ~0u >> (warp_size - size);
    V* const run = vector + lane() * (vectors + 1);
    Acc running(0);
#pragma unroll
    for (int i = 0; i < vectors; ++i) {
      V v = run[i];
#pragma unroll
      for (int l = 0; l < width; ++l) {
        running += v.v[l];
        v.v[l] = running;
        running = mine >> (i * width + l) & 1 ? Acc(0) : running;
      }
      run[i] = v;
    }
    if (lane() == 0 && mine == 0) running += open;
    // Scan over the lanes: running becomes the sum since the last mark before the end of the lane's run, which may be
    // in an earlier lane. `newest` is the nearest lane at or before this one that has a mark, or -1.
    const int newest = warp_size - 1 - __clz(__ballot_sync(~0u, mine != 0) & ~0u >> (warp_size - 1 - lane()));
#pragma unroll
    for (int distance = 1; distance < warp_size; distance *= 2) {
      const Acc left = block::shuffle_up(running, distance);
      if (lane() - distance >= tp::max(newest, 0)) running += left;
    }
    // The first row that ends in a lane's run may have begun in an earlier lane: add its earlier part.
    const Acc left = block::shuffle_up(running, 1);
    if (mine != 0) at(lane() * size + __ffs(mine) - 1) += lane() == 0 ? open : left;
    open = block::broadcast(running, warp_size - 1);
  }
};

// The rows of a tile that have not ended before the current step. Entries are numbered from `first` entries before the
// tile, where the warp's accesses are aligned.
template <class B>
struct RowsToCome {
  const B& b;
  const Tile& tile;
  int first, row, begin, end;  // the first such row and where it begins; in lane l, the end of the l-th such row

  TP_DEVICE RowsToCome(const B& b, const Tile& tile, int first) : b(b), tile(tile), first(first), row(0), begin(first) {
    end = end_of(lane());
  }
  TP_DEVICE static int lane() { return int(threadIdx.x) % warp_size; }
  TP_DEVICE int end_of(int r) const { return tile.end(b, r) + first; }
  // Calls f(r, begin, end) for each of these rows that ends at or before `limit`, one lane per row. Returns the index
  // of the first row that does not.
  template <class F>
  TP_DEVICE int each(int limit, F f) const {
    int r = row, start = begin, stop = end;
    while (true) {
      const unsigned ended = __ballot_sync(~0u, stop <= limit);
      const int left = __shfl_up_sync(~0u, stop, 1);
      if (stop <= limit) f(r + lane(), lane() == 0 ? start : left, stop);
      if (ended != ~0u) return r + __popc(ended);
      r += warp_size;
      start = __shfl_sync(~0u, stop, warp_size - 1);
      stop = end_of(r + lane());
    }
  }
  TP_DEVICE void go_on_from(int r) {
    if (r > row) begin = end_of(r - 1);
    if (r > row) end = end_of(r + lane());
    row = r;
  }
};

// Multiplies the tiles, one warp per tile.
template <class S, bool planned, class M>
__global__ __launch_bounds__(S::warps* warp_size, S::blocks) void multiply_tiles(const M matrix, const block::Path path,
                                                                                 const OpenEnds<typename M::Acc> ends,
                                                                                 bool aligned) {
  using Acc = typename M::Acc;
  __shared__ StepProducts<Acc, S> memory[S::warps];
  block::allow_next_launch();
  const auto b = matrix.bind(simt::Pointers{});
  using B = std::decay_t<decltype(b)>;
  const int lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size;
  const int64_t number = int64_t(blockIdx.x) * S::warps + warp;
  if (number >= path.tiles) return;
  auto& products = memory[warp];
  products.clear_marks();
  block::wait_for_launch_before();
  // Find the tile's entries and rows, and load the entries of the first step. Steps begin at multiples of 32 entries,
  // so that the warp's accesses are aligned.
  Tile tile(b, path, ends.splits, number);
  const int64_t origin = tile.entry / warp_size * warp_size;
  const int first = int(tile.entry - origin), last = first + tile.entries;
  RowsToCome<B> rows(b, tile, first);
  StepEntries<B, S, planned> entries;
  entries.load(b, aligned, origin, first, last);
  Acc open(0);
  int at = 0;
  do {
    // Multiply the entries of this step, and start to load those of the next.
    Acc product[S::size];
    entries.multiply(b, product);
    products.put(product);
    entries.load(b, aligned, origin + at + S::entries, 0, last - at - S::entries);
    __syncwarp();
    // Mark the last entries of the rows that end in this step.
    const int limit = tp::min(at + S::entries, last);
    const int ended = rows.each(limit, [&](int, int begin, int end) {
      tile.bad |= end < begin;
      if (begin < end && at < end) products.mark(end - 1 - at);
    });
    __syncwarp();
    // Replace the product at each mark by the sum of its row.
    products.sum(open);
    __syncwarp();
    products.clear_marks();
    // Store the rows that ended. If row 0 began in an earlier tile, its sum is only a part, which the last launch
    // completes.
    rows.each(limit, [&](int r, int begin, int end) {
      const Acc sum = begin < end ? products.at(tp::max(0, end - 1 - at)) : Acc(0);
      if (r == 0 && tile.cut) {
        ends.heads[number] = sum;
      } else {
        b.store(tile.row + r, 0, sum);
      }
    });
    rows.go_on_from(ended);
    __syncwarp();
    at += S::entries;
  } while (at < last);
  // Keep the sum of the entries after the last row end for the last launch, and report bad pointers.
  if (lane == 0) ends.tails[number] = open;
  if (tile.bad || rows.row != tile.rows) *ends.bad = 1;
}

template <class M>
void multiply_vector_by_path(const M& matrix, Context& context) {
  using S = Steps<typename M::T, typename M::I>;
  const CsrArgs& a = matrix.a;
  const auto is_aligned = [](const void* array) { return reinterpret_cast<uintptr_t>(array) % 16 == 0; };
  const bool aligned = is_aligned(a.values) && is_aligned(a.col_idx) && is_aligned(a.perm);
  // Small matrices have smaller tiles, so that more warps load at a time.
  constexpr int64_t busy_warps = 132 * S::warps * S::blocks;
  int items = S::items;
  while (items > S::entries && (a.entries + a.rows) / items < busy_warps) items /= 2;
  const block::Path path(a.entries, a.rows, items, 1);
  by_path(matrix, path, context, [&](const auto& ends) {
    with_plan(a, [&](auto planned) {
      block::launch_early(multiply_tiles<S, decltype(planned)::value, M>, ceil_div(path.tiles, int64_t(S::warps)),
                          S::warps * warp_size, 0, context, matrix, path, ends, aligned);
    });
    check_launch("merge_path");
  });
}

}  // namespace tp::sparse
