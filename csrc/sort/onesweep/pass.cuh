// One pass of onesweep (after Adinets and Merrill, 2022): moves every key to the position that its digit gives it,
// stably, reading and writing each key once.
//
// A block takes tiles by ticket. Each warp holds a part of the tile in registers. It first counts the digits of its
// keys, so that the tile aggregates of all digits are published before any key is ranked, and later tiles that look
// back wait less. Then each warp ranks its keys, 32 at a time: lanes with the same digit find each other by ballots,
// and one of them advances the warp's counter. Finally the keys are ordered by digit in shared memory, so that they are
// written in contiguous runs.
#pragma once
#include "sort/onesweep/digits.cuh"

namespace tp::sort::device {

// The payload of a key is empty (keys-only sort), a value of `value_bytes` bytes, or the key's original index.
struct NoPayload {};

template <class W>
struct Pass {
  Problems problems;
  State state;
  int index, passes;
  KeyOrder<W> order;
  int shift;
  unsigned mask;
  const W* keys;
  // Double buffer: passes write to current and alternate in turn; the last one reads alternate and writes keys_out,
  // unless that is null. The same holds for the payloads.
  W *keys_out, *current_keys, *alternate_keys;
  const void* values;
  void *values_out, *current_values, *alternate_values;
  int value_bytes, out_bytes;  // value_bytes is 0 if the payload is the original index
};

// Which buffers a pass reads and writes. A pass moves nothing if its digit is the same for all keys; if that holds for
// all digits, pass 0 still runs, as a copy.
struct Route {
  bool moves, first, last, to_current;
  int rank;  // the number of earlier passes that move keys

  // found[0] has one bit per pass whose digit differs between keys. If found[1] is 0, the keys are in order already:
  // one pass over the most significant of these digits then keeps them in order, and is enough.
  TP_DEVICE Route(const unsigned* found, int index) {
    unsigned active = found[0] ? found[0] : 1;
    if (!found[1]) active = 1u << (31 - __clz(int(active)));
    moves = active >> index & 1;
    rank = __popc(active & ((1u << index) - 1));
    const int after = __popc(active >> index >> 1);
    first = rank == 0;
    last = after == 0;
    to_current = after % 2 == 0;
  }
};

// The tile state of one digit: a count below two flag bits that distinguish a tile aggregate from an inclusive prefix.
template <class Word>
struct TileState {
  static constexpr int value_bits = int(8 * sizeof(Word)) - 2;
  static constexpr Word aggregate = Word(1) << value_bits, inclusive_prefix = Word(2) << value_bits,
                        value_mask = aggregate - 1;

  TP_DEVICE static void store(Word* p, Word word) {
    if constexpr (sizeof(Word) == 4) {
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(word) : "memory");
    } else {
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
    }
  }
  TP_DEVICE static Word load(const Word* p) {
    Word word;
    if constexpr (sizeof(Word) == 4) {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
    }
    return word;
  }
  // Look-back: returns the exclusive prefix of digit `column` for `tile`, reading a few earlier tile states at a time.
  // The first tile of a segment publishes an inclusive prefix at once; it includes the start position of the digit, so
  // every prefix is a position in the segment.
  TP_DEVICE static Word look_back(const Word* tile_states, int64_t tile, int column) {
    constexpr int batch = 4;
    const Word* at = tile_states + (tile - 1) * radix + column;
    Word sum = 0;
    for (;;) {
      Word seen[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) seen[i] = tile - 1 - i >= 0 ? load(at - i * radix) : Word(0);
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (seen[i] == 0) break;
        sum += seen[i] & value_mask;
        if (seen[i] >= inclusive_prefix) return sum;
        at -= radix;
        --tile;
      }
    }
  }
};

constexpr int shared_alignment = radix * 8;

template <int threads_, int items_, int blocks_>
struct PassShape {
  static constexpr int threads = threads_, items = items_, blocks = blocks_, warps = threads / block::warp_size;
  static constexpr int tile_items = threads * items;
  static_assert(threads >= radix, "one thread per digit is needed to scan the histogram");
  template <class W, class Payload>
  static constexpr int shared_bytes() {
    return shared_alignment + radix * 8 + warps * radix * 4 +
           tile_items * int(sizeof(W) + (std::is_empty<Payload>::value ? 0 : sizeof(Payload)));
  }
};

// Half of a 16-byte value. Such values are moved by two sorts, one per half.
struct Half {
  uint64_t word, other;
  TP_DEVICE explicit operator uint64_t() const { return word; }
};
template <class V, class Payload>
TP_DEVICE void store(V* to, Payload payload) {
  *to = V(payload);
}
TP_DEVICE inline void store(Half* to, uint64_t payload) { to->word = payload; }

// Calls f(Type<V>{}) for the type V of values of that many bytes, which move as a Payload.
template <class Payload, class F>
TP_DEVICE void with_value(int bytes, F f) {
  if constexpr (sizeof(Payload) == 8) {
    return bytes == 8 ? f(Type<uint64_t>{}) : f(Type<Half>{});
  } else {
    if (bytes == 1) return f(Type<uint8_t>{});
    if (bytes == 2) return f(Type<uint16_t>{});
    bytes == 4 ? f(Type<uint32_t>{}) : f(Type<uint64_t>{});
  }
}

// Loads a lane's items of a warp's part of the tile. Item u of a lane has index u * 32 + lane; `left` items remain from
// the lane's first one on.
template <bool full, int items, class T, class Payload>
TP_DEVICE void load_items(const T* from, int left, Payload (&to)[items]) {
#pragma unroll
  for (int u = 0; u < items; ++u) {
    to[u] = full || u * block::warp_size < left ? Payload(from[u * block::warp_size]) : Payload(0);
  }
}

// One block of a pass. If not `stable`, keys with the same digit may change their order, and counting a key also ranks
// it.
template <class Shape, class W, bool floating, class Payload, bool stable>
class PassBlock {
  static constexpr int threads = Shape::threads, items = Shape::items, warps = Shape::warps;
  static constexpr bool has_payload = !std::is_empty<Payload>::value;
  using Stored = typename std::conditional<has_payload, Payload, char>::type;

  const Pass<W>& a;
  const Route route;
  const int thread = int(threadIdx.x), warp = thread / block::warp_size, lane = thread % block::warp_size;
  // [radix]: where the keys of a digit go, minus their position in the sorted tile; an address if there is no payload.
  int64_t* starts;
  unsigned* bins;  // [warps, radix]
  W* keys;         // [tile_items]; payloads come after the keys, or before them if payloads are wider
  Stored* payloads;
  unsigned* warp_sums;  // [radix / 32]
  const Entry<2, W, floating> bin_of;
  const Entry<3, W, floating> start_entry;

 public:
  // `pool` is aligned to shared_alignment.
  TP_DEVICE PassBlock(const Pass<W>& a, const Route& route, char* pool, unsigned* warp_sums)
      : a(a),
        route(route),
        starts(reinterpret_cast<int64_t*>(pool)),
        bins(reinterpret_cast<unsigned*>(starts + radix)),
        warp_sums(warp_sums),
        bin_of(a.order, a.shift, a.mask, shared_address(bins + warp * radix)),
        start_entry(a.order, a.shift, a.mask, shared_address(starts)) {
    char* items_at = reinterpret_cast<char*>(bins + warps * radix);
    constexpr bool payloads_first = has_payload && sizeof(Stored) > sizeof(W);
    keys = reinterpret_cast<W*>(items_at + (payloads_first ? Shape::tile_items * int(sizeof(Stored)) : 0));
    payloads = reinterpret_cast<Stored*>(items_at + (payloads_first ? 0 : Shape::tile_items * int(sizeof(W))));
  }

  // Takes tiles until none are left. A tile that has been taken but not yet counted keeps all later tiles waiting, so
  // the ticket of the next tile is drawn only when this tile is about to be written. Only the last pass moves the keys
  // of divided segments.
  TP_DEVICE void run(Tile (&tiles)[2]) {
    if (thread == 0) take_tile(tiles[0]);
    clear_bins();
    for (int now = 0;; now = 1 - now) {
      __syncthreads();
      const Tile& t = tiles[now];
      if (t.count == 0) return;
      if (t.divided && !route.last) {
        if (thread == 0) take_tile(tiles[1 - now]);
        if (thread < radix) clear_next_state(t);
      } else if (t.count == Shape::tile_items) {
        run_tile<true>(t, tiles[1 - now]);
      } else {
        run_tile<false>(t, tiles[1 - now]);
      }
    }
  }

 private:
  struct Totals {
    unsigned own, before;  // the tile's keys with this thread's digit, and with smaller digits
  };

  TP_DEVICE void take_tile(Tile& tile) const {
    const int64_t id = int64_t(atomicAdd(a.state.tickets + a.index, 1ull));
    tile.count = 0;
    if (id < a.problems.tiles()) tile = a.problems.find(id);
  }
  TP_DEVICE void clear_bins() {
#pragma unroll
    for (int i = 0; i < radix / block::warp_size; ++i) bins[warp * radix + i * block::warp_size + lane] = 0;
    __syncwarp();
  }
  TP_DEVICE int first_item() const { return warp * items * block::warp_size + lane; }

  template <bool full>
  TP_DEVICE void run_tile(const Tile& t, Tile& next) {
    // Load the keys and count their digits per warp.
    const int left = t.count - first_item();
    const W* const from = route.first || t.divided ? a.keys : route.to_current ? a.alternate_keys : a.current_keys;
    W key[items];
    unsigned position[items];
    load_items<full>(from + t.begin + first_item(), left, key);
#pragma unroll
    for (int u = 0; u < items; ++u) {
      if (stable) {
        count_shared(bin<full>(key[u], u, left));
      } else {
        position[u] = add_shared(bin<full>(key[u], u, left), 1);
      }
    }
    __syncthreads();
    // Publish the tile aggregates, and turn the counts into the position at which each warp's keys of each digit begin.
    const Totals totals = scan_bins(t);
// Rank the keys: find the position of each in the sorted tile.
#pragma unroll
    for (int u = 0; u < items; ++u) {
      block::forget(key[u]);
      const unsigned at = bin<full>(key[u], u, left);
      if (stable) {
        position[u] = rank(lane, match(at >> 2), at);
      } else {
        position[u] += load_shared(at);
      }
    }
// Order the keys by digit in shared memory, and clear the bins for the next tile.
#pragma unroll
    for (int u = 0; u < items; ++u) keys[position[u]] = key[u];
    __syncwarp();
    clear_bins();
    // While the payloads are being loaded, look back for the exclusive prefixes of the tile. Then order the payloads,
    // too.
    if constexpr (has_payload) {
      Stored payload[items];
      read_payloads<full>(t, left, payload);
      if (thread < radix) find_start(t, totals);
#pragma unroll
      for (int u = 0; u < items; ++u) payloads[position[u]] = payload[u];
    } else {
      if (thread < radix) find_start(t, totals);
    }
    __syncthreads();
    // Write the keys, in runs of equal digits; thread 0 takes the next tile meanwhile.
    if (thread == 0) take_tile(next);
    write<full>(t);
  }

  // The counter of a key's digit in this warp's bins. Items beyond the end of the tile count as the last digit, so they
  // end up last.
  template <bool full>
  TP_DEVICE unsigned bin(W key, int u, int left) const {
    return full || u * block::warp_size < left ? bin_of(key) : shared_address(bins + warp * radix + radix - 1);
  }

  // Publishes the tile aggregates, and turns the counts into the position in the sorted tile at which each warp's keys
  // of each digit begin. Each of the first `radix` threads handles one digit.
  TP_DEVICE Totals scan_bins(const Tile& t) {
    unsigned total = 0;
    if (thread < radix) {
#pragma unroll
      for (int w = 0; w < warps; ++w) total += bins[w * radix + thread];
    }
    unsigned own = total;
    if (thread == radix - 1) own -= unsigned(Shape::tile_items - t.count);
    if (thread < radix) publish(t, own);
    const unsigned before = sum_before(total, warp_sums);
    if (thread < radix) {
      unsigned sum = before;
#pragma unroll
      for (int w = 0; w < warps; ++w) {
        const unsigned count = bins[w * radix + thread];
        bins[w * radix + thread] = sum;
        sum += count;
      }
    }
    __syncthreads();
    return {own, before};
  }

  TP_DEVICE unsigned long long start_of(const Tile& t) const {
    return a.state.starts[(t.segment * a.passes + a.index) * radix + thread];
  }
  // Passes that move keys use two arrays of tile states in turn.
  template <class Word>
  TP_DEVICE Word* tile_states(int rank) const {
    return static_cast<Word*>(rank % 2 ? a.state.alternate_tile_states : a.state.tile_states);
  }
  // Clears the tile state of this thread's digit that the next pass will use.
  template <class Word>
  TP_DEVICE void clear_next_state_as(const Tile& t) {
    if (!route.last) tile_states<Word>(route.rank + 1)[t.id * radix + thread] = 0;
  }
  TP_DEVICE void clear_next_state(const Tile& t) {
    if (a.state.wide) return clear_next_state_as<unsigned long long>(t);
    clear_next_state_as<unsigned>(t);
  }
  // Publishes the aggregate of this thread's digit.
  template <class Word>
  TP_DEVICE void publish_as(const Tile& t, unsigned own) {
    using P = TileState<Word>;
    const Word word = t.id == t.first ? P::inclusive_prefix | Word(start_of(t) + own) : P::aggregate | Word(own);
    P::store(tile_states<Word>(route.rank) + t.id * radix + thread, word);
    clear_next_state_as<Word>(t);
  }
  TP_DEVICE void publish(const Tile& t, unsigned own) {
    if (a.state.wide) return publish_as<unsigned long long>(t, own);
    publish_as<unsigned>(t, own);
  }
  // Returns where the tile's keys of this thread's digit begin in the segment, and publishes the inclusive prefix.
  template <class Word>
  TP_DEVICE Word before_tile(const Tile& t, unsigned own) {
    using P = TileState<Word>;
    if (t.id == t.first) return Word(start_of(t));
    Word* mine = tile_states<Word>(route.rank) + t.id * radix + thread;
    const Word before = P::look_back(tile_states<Word>(route.rank), t.id, thread);
    P::store(mine, P::inclusive_prefix | Word(before + own));
    return before;
  }
  // Stores where the keys of this thread's digit go, relative to their positions in the sorted tile.
  TP_DEVICE void find_start(const Tile& t, const Totals& totals) {
    const int64_t before = a.state.wide ? int64_t(before_tile<unsigned long long>(t, totals.own))
                                        : int64_t(before_tile<unsigned>(t, totals.own));
    const int64_t start = t.row_begin + before - int64_t(totals.before);
    starts[thread] = has_payload ? start : reinterpret_cast<int64_t>(keys_to() + start);
  }

  template <bool full>
  TP_DEVICE void read_payloads(const Tile& t, int left, Stored (&payload)[items]) const {
    const int mine = first_item();
    if (!route.first) {
      const void* from = route.to_current ? a.alternate_values : a.current_values;
      load_items<full>(static_cast<const Stored*>(from) + t.begin + mine, left, payload);
    } else if (a.value_bytes == 0) {
      const Stored position = Stored(t.begin - t.row_begin) + Stored(mine);
#pragma unroll
      for (int u = 0; u < items; ++u) payload[u] = position + Stored(u * block::warp_size);
    } else {
      with_value<Payload>(a.value_bytes, [&](auto type) {
        using V = typename decltype(type)::type;
        const V* from = static_cast<const V*>(a.values) + t.begin + mine;
        if constexpr (sizeof(Payload) == 8 || sizeof(V) <= 4) load_items<full>(from, left, payload);
      });
    }
  }

  // The buffer that this pass writes keys to.
  TP_DEVICE W* keys_to() const {
    return route.last ? a.keys_out : route.to_current ? a.current_keys : a.alternate_keys;
  }

  template <bool full>
  TP_DEVICE void write(const Tile& t) const {
    if constexpr (!has_payload) {
      each<full>(t, [&](int i, int64_t start, W key) { store_global(start + i * int64_t(sizeof(W)), key); });
    } else if (!route.last) {
      W* const to = keys_to();
      Stored* const values = static_cast<Stored*>(route.to_current ? a.current_values : a.alternate_values);
      each<full>(t, [&](int i, int64_t start, W key) {
        (to + start)[i] = key;
        (values + start)[i] = payloads[i];
      });
    } else {
      with_value<Payload>(a.out_bytes, [&](auto type) {
        using V = typename decltype(type)::type;
        V* const values = static_cast<V*>(a.values_out);
        each<full>(t, [&](int i, int64_t start, W key) {
          if (a.keys_out) (a.keys_out + start)[i] = key;
          store(values + start + i, payloads[i]);
        });
      });
    }
  }
  // Calls f(i, start, key) for the thread's keys: i is the position in the sorted tile, and start the entry of the
  // key's digit in `starts`.
  template <bool full, class F>
  TP_DEVICE void each(const Tile& t, F f) const {
    if constexpr (full) {
#pragma unroll
      for (int u = 0; u < items; ++u) {
        const int i = u * threads + thread;
        const W key = keys[i];
        f(i, load_shared_long(start_entry(key)), key);
      }
    } else {
#pragma unroll 1
      for (int i = thread; i < t.count; i += threads) f(i, load_shared_long(start_entry(keys[i])), keys[i]);
    }
  }
};

template <class Shape, class W, bool floating, class Payload, bool stable>
__global__ __launch_bounds__(Shape::threads, Shape::blocks) void pass_kernel(const __grid_constant__ Pass<W> a) {
  extern __shared__ char unaligned[];
  __shared__ Tile tiles[2];
  __shared__ unsigned warp_sums[radix / block::warp_size];
  char* pool = unaligned + (shared_alignment - shared_address(unaligned) % shared_alignment) % shared_alignment;
  block::wait_for_launch_before();
  block::allow_next_launch();
  const Route route(a.state.active, a.index);
  if (route.moves) PassBlock<Shape, W, floating, Payload, stable>(a, route, pool, warp_sums).run(tiles);
}

}  // namespace tp::sort::device
