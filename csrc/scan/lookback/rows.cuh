// decoupled_lookback over contiguous rows. Position p of the whole array is element p % n of row p / n; in a reverse
// scan p counts from the far end of the array, and so does the index within each row. A tile is a range of positions.
//
// Rows may start anywhere in a tile; the first element of a row is called its head. A partial result combines the
// elements up to position p from the head of p's row on, or from the start of its lane, part, tile or group if that
// is later. So it is combined with what precedes that range exactly if the row began before the range. Heads follow
// from n, so no flags are stored. A layout of long rows is `headless`: each row is a chain of tiles of its own, a head
// can only be the first element of a tile, and nothing has to be tested.
//
// Of recurrences, the results times another array can be stored as well (scan::Args).
#pragma once
#include "block/load_store.cuh"
#include "scan/lookback/one_wave.cuh"
#include "scan/lookback/pipeline.cuh"

namespace tp::scan::lookback {

template <class E>
constexpr int vector_of =
    tp::max(sizeof(typename E::Input), sizeof(typename E::Output)) == 8   ? 2
    : tp::max(sizeof(typename E::Input), sizeof(typename E::Output)) == 4 ? 4
                                                                          : 8;  // elements per load

// How the scan gets what the results are multiplied by, if they are. In the stage, it arrives with the tile; without
// it, more stages fit in shared memory, so that more tiles wait for their prefix at a time.
enum class Times { none, in_stage, from_memory };

template <class E_, bool headless_, Times source = Times::none>
struct Rows {
  using E = E_;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Value = block::Pack<M, 1>;
  using Input = typename E::Input;
  static constexpr bool headless = headless_, affine = M::id == OpId::affine;
  static constexpr bool multiplies = source != Times::none, stages_times = source == Times::in_stage;
  static constexpr int width = 1, max_lanes = 1;
  static constexpr int parts = 8, sum_warps = 4, look_warps = 2;
  static constexpr int vector = vector_of<E>, chunks = affine ? 4 : 8, chunk = block::warp_size * vector;
  static constexpr int part_items = chunk * chunks, items = part_items * parts, cap = 1 << 30;
  static constexpr int tiles_per_group = multiplies ? 64 : 128, groups_per_supergroup = 1;
  static constexpr int array_bytes = items * int(sizeof(Input)) + 128;  // for any alignment of the first element
  using Vec = block::Vector<Input, vector>;

  E e;
  int64_t count, tiles, tiles_per_chain;  // a chain is one row if headless, else the whole array
  int n, step;  // n is at most cap; step is by how much the distance to the next head shrinks per chunk
  using Results = block::Vector<typename E::Output, vector>;
  block::Vectors<typename E::Output, vector> out, products;
  block::Vectors<const typename E::Output, vector> times;

  explicit Rows(const E& e)
      : e(e),
        count(e.rows * e.n),
        tiles_per_chain(ceil_div(headless ? e.n : count, int64_t(items))),
        n(int(tp::min(e.n, int64_t(cap)))),
        step(chunk % n),
        out(e.out, count, e.reverse),
        products(e.products, count, e.reverse),
        times(e.times, count, e.reverse) {
    tiles = tiles_per_chain * chains();
  }

  // Whether a chain of tiles per row wastes little: the last tile of a row is then partly empty, which may cost 1/8 of
  // n.
  static bool suits(const E& e) {
    return e.rows == 1 || (e.n % vector == 0 && ceil_div(e.n, int64_t(items)) * items <= e.n + e.n / 8);
  }

  TP_HD int64_t chains() const { return headless ? e.rows : 1; }
  TP_HD int lanes() const { return 1; }
  TP_HD int summing_lanes() const { return 1; }
  TP_HD int64_t groups() const { return ceil_div(tiles_per_chain, int64_t(tiles_per_group)); }
  // Whether no row continues from one tile into the next, so that no look-back is needed.
  TP_HD bool independent() const { return tiles_per_chain == 1 || (!headless && items % e.n == 0); }
  TP_HD int stage_bytes() const { return array_bytes * (1 + affine + stages_times); }

  TP_DEVICE TilePosition position(int64_t tile) const {
    if (headless) {
      const int64_t row = quotient(tile, tiles_per_chain), index = tile - row * tiles_per_chain;
      return {tile, row, index, 0, row * e.n + index * items, cap, 0, 0};
    }
    const int64_t first = tile * items, row = quotient(first, e.n), k = first - row * e.n;
    return {tile, 0, tile, quotient(first - k, items), first, k == 0 ? 0 : int(tp::min(e.n - k, int64_t(cap))), 0, 0};
  }
  TP_DEVICE int64_t row_in_memory(int64_t row) const { return e.reverse ? e.rows - 1 - row : row; }
  TP_DEVICE Value origin(const TilePosition& position, int) const {
    Value x = Value::identity();
    if constexpr (headless) {
      if (!e.initial) return x;
      const Input start = e.initial[row_in_memory(position.chain)];
      if constexpr (affine) {
        x.v[0] = {0, decltype(Acc::a)(start)};
      } else {
        x.v[0] = Acc(start);
      }
    }
    return x;
  }

  // ---- copies from memory to the stage, 16 bytes at a time; nothing outside the array is read

  // The address of a tile's first byte. It may lie outside the array, if the tile does in part.
  TP_DEVICE const unsigned char* tile_memory(const Input* data, const TilePosition& position) const {
    const int64_t first = e.reverse ? count - items - position.first : position.first;
    return reinterpret_cast<const unsigned char*>(data) + first * int64_t(sizeof(Input));
  }
  TP_DEVICE static int shift(const unsigned char* memory) { return int(reinterpret_cast<uintptr_t>(memory) % 16); }

  TP_DEVICE void load(const TilePosition& position, block::Barrier& full, unsigned char* stage, int warp,
                      int lane) const {
    if (warp == 0) load_array(e.in, e.in, position, full, stage, lane);
    if constexpr (affine) {
      if (warp == load_warps - 1) load_array(e.factors(), e.a, position, full, stage + array_bytes, lane);
    }
    if constexpr (stages_times) {
      if (warp == 0) load_array(e.next_times(), e.times, position, full, stage + 2 * array_bytes, lane);
    }
  }
  // `data` is the address of element 0, which for shifted factors may lie outside the array; `real` is where the array
  // begins.
  TP_DEVICE void load_array(const Input* data, const Input* real, const TilePosition& position, block::Barrier& full,
                            unsigned char* stage, int lane) const {
    const unsigned char* first = tile_memory(data, position);
    const auto* array = reinterpret_cast<const unsigned char*>(real);
    const auto* begin = tp::max(first, array);
    const auto* end = tp::min(first + items * sizeof(Input), array + count * int64_t(sizeof(Input)));
    block::copy_bulk(full, stage + shift(first) + (begin - first), begin, end, lane);
  }

  // ---- the elements of one lane in a part: chunk j has `vector` of them, from offset j * chunk + lane * vector on

  struct Items {
    Vec x[chunks];
    block::Vector<Input, affine ? vector : 1> a[affine ? chunks : 1];

    TP_DEVICE Acc operator()(int j, int i) const {
      if constexpr (affine) {
        using A = decltype(Acc::a);
        return {A(a[j].v[i]), A(x[j].v[i])};
      } else {
        return Acc(x[j].v[i]);
      }
    }
  };
  TP_DEVICE Items read(const TilePosition& position, const unsigned char* stage, int part, int lane) const {
    Items y;
    read_array(e.in, y.x, position, stage, part, lane);
    if constexpr (affine) {
      read_array(e.factors(), y.a, position, stage + array_bytes, part, lane);
      if (headless && position.index == 0 && part == 0 && lane == 0 && !e.initial)
        y.a[0].v[0] = Input(0);  // the first factor of a row is not used
    }
    return y;
  }
  TP_DEVICE void read_array(const Input* data, Vec (&y)[chunks], const TilePosition& position,
                            const unsigned char* stage, int part, int lane) const {
    const int shifted = shift(tile_memory(data, position));
    const int offset = part * part_items + lane * vector;
    const Input* first =
        reinterpret_cast<const Input*>(stage + shifted) + (e.reverse ? items - vector - offset : offset);
    const int step = e.reverse ? -chunk : chunk;
    if (shifted % int(alignof(Vec)) == 0) {
#pragma unroll
      for (int j = 0; j < chunks; ++j) y[j] = *reinterpret_cast<const Vec*>(first + j * step);
    } else {
#pragma unroll
      for (int j = 0; j < chunks; ++j) {
#pragma unroll
        for (int i = 0; i < vector; ++i) y[j].v[i] = first[j * step + i];
      }
    }
    if (e.reverse) {
#pragma unroll
      for (int j = 0; j < chunks; ++j) y[j].flip();
    }
  }

  // ---- heads: the first elements of rows

  // The distance from the element at `offset` in a tile to the next head, 0 if it is a head itself.
  TP_DEVICE int to_head(const TilePosition& position, int offset) const {
    if (headless || offset <= position.to_head) return position.to_head - (headless ? 0 : offset);
    const int k = (offset - position.to_head) % n;
    return k == 0 ? 0 : n - k;
  }
  // The same one chunk further on.
  TP_DEVICE int next_chunk(int head) const {
    if (headless) return head;
    return head < step ? head - step + n : head - step;
  }
  // The operand at the head of a row, at position p. Only `initial` precedes it, so it takes that in.
  TP_DEVICE Acc at_head(Acc x, int64_t p) const {
    if constexpr (affine) {
      using A = decltype(Acc::a);
      if (!e.initial || p >= count) return {A(0), x.b};
      const int64_t row = p / e.n;
      return {A(0), x.a * A(e.initial[row_in_memory(row)]) + x.b};
    } else {
      return x;
    }
  }

  // ---- phase one, by the sum warps: the aggregate of a part, from its last head on

  TP_DEVICE Value sum(const TilePosition& position, const unsigned char* stage, int part, int lane, bool& whole) const {
    const Items x = read(position, stage, part, lane);
    const int64_t first = position.first + part * part_items;
    const int head = to_head(position, part * part_items);
    whole = headless || head >= part_items;
    const int begin = whole ? 0 : head + (part_items - 1 - head) / n * n;  // the offset of the last head in the part
    Value total = Value::identity();
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      if (!whole && begin >= (j + 1) * chunk) continue;
      Acc sum = M::identity();
      if (whole || begin < j * chunk) {
#pragma unroll
        for (int i = 0; i < vector; ++i) sum = append<M>(sum, x(j, i));
      } else {
#pragma unroll
        for (int i = 0; i < vector; ++i) {
          const int offset = j * chunk + lane * vector + i;
          if (offset >= begin) sum = offset == begin ? at_head(x(j, i), first + offset) : append<M>(sum, x(j, i));
        }
      }
      total.v[0] = M::combine(total.v[0], block::reduce<M>(sum));
    }
    return total;
  }

  // ---- phase two, by the scan warps: all elements of a part

  // Calls f(i, operand, is_head) for this lane's elements of chunk j. The first of them is at position p, and the next
  // head is `head` elements further on.
  template <class F>
  TP_DEVICE void each(const Items& x, int j, int64_t p, int head, F f) const {
    if (headless || head >= vector) {
#pragma unroll
      for (int i = 0; i < vector; ++i) f(i, x(j, i), false);
    } else {
#pragma unroll
      for (int i = 0; i < vector; ++i) {
        const bool starts = i == head;
        if (starts) head += n;
        f(i, starts ? at_head(x(j, i), p + i) : x(j, i), starts);
      }
    }
  }

  // Scans within a part. before[j] becomes the combination of the elements that precede the lane's chunk j within both
  // the part and the row. Returns a word whose bit j says that the row of before[j] began before the part. The lane's
  // elements begin at position `first`, `head` elements before the next head.
  TP_DEVICE __forceinline__ unsigned scan_part(const Items& x, int64_t first, int head, int lane,
                                               Acc (&before)[chunks]) const {
    Acc carry = M::identity();
    unsigned heads = 0, joined = 0;
#pragma unroll
    for (int j = 0; j < chunks; ++j, head = next_chunk(head)) {
      Acc sum = M::identity();
      each(x, j, first + j * chunk, head, [&](int, Acc v, bool starts) { sum = starts ? v : append<M>(sum, v); });
      const unsigned starts = headless ? 0 : __ballot_sync(~0u, head < vector), here = starts << (31 - lane);
      const int free = __clz(here);  // how many lanes, from this one downwards, have no head
#pragma unroll
      for (int stride = 1; stride < block::warp_size; stride *= 2) {
        const Acc left = block::shuffle_up(sum, stride);
        if (lane >= stride && (headless || free >= stride)) sum = M::combine(left, sum);
      }
      const Acc left = block::shuffle_up(sum, 1);
      const bool open = (here << 1) == 0;  // the lanes before this one have no head
      before[j] = lane == 0 ? carry : open ? M::combine(carry, left) : left;
      if (heads == 0 && open) joined |= 1u << j;
      const Acc total = block::broadcast(sum, block::warp_size - 1);
      carry = starts == 0 ? M::combine(carry, total) : total;
      heads |= starts;
    }
    return joined;
  }

  template <class Before>
  TP_DEVICE void scan(const TilePosition& position, const unsigned char* stage, int part, int lane,
                      Before wait_before) const {
    const Items x = read(position, stage, part, lane);
    const int offset = part * part_items + lane * vector, first_head = to_head(position, offset);
    const int64_t first = position.first + offset;
    Vec factors[multiplies ? chunks : 1];
    if constexpr (source == Times::from_memory) {
#pragma unroll
      for (int j = 0; j < chunks; ++j) factors[j] = times.load(first + j * chunk + 1, Input(0));
    }
    Acc before[chunks];
    const unsigned joined = scan_part(x, first, first_head, lane, before);

    // Wait for the prefix of the part, and complete the prefixes of the lane's chunks.
    const Acc before_part = wait_before().v[0];
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      if (headless || (joined >> j & 1)) before[j] = M::combine(before_part, before[j]);
    }

    if constexpr (stages_times) {
      read_array(e.next_times(), factors, position, stage + 2 * array_bytes, part, lane);
    }
    // A part that is whole is stored by loops that choose nothing per element.
    const int64_t end = headless ? (position.chain + 1) * e.n : count;
    if (!out.aligned || (multiplies && !products.aligned) || position.first + (part + 1) * part_items > end) {
      store_part<false>(position, part, lane, x, first_head, before, factors, e.exclusive);
    } else if (affine || !e.exclusive) {
      store_part<true>(position, part, lane, x, first_head, before, factors, std::false_type{});
    } else {
      store_part<true>(position, part, lane, x, first_head, before, factors, std::true_type{});
    }
  }

 private:
  // Scans each of the lane's chunks from what precedes it, and stores the results. `whole` says that all of them exist
  // and that vectors of them are aligned.
  template <bool whole, class Exclusive>
  TP_DEVICE __forceinline__ void store_part(const TilePosition& position, int part, int lane, const Items& x, int head,
                                            const Acc (&before)[chunks], const Vec (&factors)[multiplies ? chunks : 1],
                                            Exclusive exclusive) const {
    const int64_t first = position.first + part * part_items + lane * vector;
    const int64_t end = headless ? (position.chain + 1) * e.n : count;
#pragma unroll
    for (int j = 0; j < chunks; ++j, head = next_chunk(head)) {
      const int64_t p = first + j * chunk;
      Acc running = before[j];
      block::Vector<decltype(number(running)), vector> y;
      each(x, j, p, head, [&](int i, Acc v, bool starts) {
        const Acc next = starts ? v : append<M>(running, v);
        y.v[i] = number(!exclusive ? next : starts ? M::identity() : running);
        running = next;
      });
      store<whole>(out, p, end, y);
      if constexpr (multiplies) {
        using A = decltype(Acc::b);  // the factor is the result that was stored, rounded to the output's type
#pragma unroll
        for (int i = 0; i < vector; ++i) y.v[i] = A(typename E::Output(y.v[i])) * A(factors[j].v[i]);
        store<whole>(products, p, end, y);
      }
    }
  }

  // What is stored of an element's prefix.
  TP_DEVICE static auto number(const Acc& x) {
    if constexpr (affine) {
      return x.b;
    } else {
      return x;
    }
  }
  // Stores the results of a chunk. The row or the array ends at position `end`.
  template <bool whole, class Y>
  TP_DEVICE void store(const block::Vectors<typename E::Output, vector>& to, int64_t p, int64_t end, Y y) const {
    const bool at_once = whole || (to.aligned && p + vector <= end);
    if (at_once && e.reverse) y.flip();  // before the conversion, which takes two elements of half types at once
    Results z;
#pragma unroll
    for (int i = 0; i < vector; ++i) z.v[i] = typename E::Output(y.v[i]);
    if (at_once) {
      to.at(p) = z;
    } else if (p < end) {  // a vector that leaves its row also leaves the array
      to.store(p, z);
    }
  }
};

template <bool multiplies, class E>
void launch_rows(const E& e, Context& context) {
  constexpr Times times = multiplies ? Times::in_stage : Times::none;
  if (!Rows<E, true>::suits(e)) return launch_pipeline(Rows<E, false, times>(e), context);
  const Rows<E, true, times> rows(e);
  // A lane would load half types two bytes at a time, which takes longer.
  if constexpr (multiplies && sizeof(typename E::Input) >= 4) {
    if (!rows.independent()) return launch_pipeline(Rows<E, true, Times::from_memory>(e), context);
  }
  launch_pipeline(rows, context);
}

// Contiguous rows take one of three ways: one wave for a single row that fits on the chip, else the pipeline, headless
// for long rows.
template <class E>
void scan_rows(const E& e, Context& context) {
  if constexpr (E::Monoid::id == OpId::affine) {
    if (e.products) return launch_rows<true>(e, context);
  } else if (OneWave<E>::suits(e)) {
    return scan_in_one_wave(e, context);
  }
  launch_rows<false>(e, context);
}

}  // namespace tp::scan::lookback
