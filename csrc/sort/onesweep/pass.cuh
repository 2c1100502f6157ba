// One pass of onesweep (after Adinets and Merrill, 2022): keys go to where their digit belongs, stably, and every key
// is read once and written once.
//
// A block takes tiles by ticket. Each of its warps holds a part of the tile and counts its digits; so the tile's total
// of every digit is out before any key is ranked, and the tiles after it, which look back for it, wait the less. A warp
// ranks 32 keys at a time: lanes of the same digit find each other by ballots, and the first of them advances the
// warp's counter. In shared memory the keys lie by digit, so that they leave in runs.
#pragma once
#include "sort/onesweep/digits.cuh"

namespace tp::sort::device {

// What moves with a key: nothing, or a word, of which the memory at both ends of the sort holds as many bytes as it
// will, or the position that the key came from.
struct None {};

template <class W>
struct Pass {
  Problems problems;
  State state;
  int index, passes;
  KeyOrder<W> order;
  int shift;
  unsigned mask;
  const W* keys;
  W *keys_out, *near_keys, *far_keys;  // the last pass writes keys_out, unless it is null; others the near and the far
  const void* values;                  // buffer by turns, so that the last reads the far one
  void *values_out, *near_values, *far_values;
  int value_bytes, out_bytes;  // 0 bytes: positions
};

// Where a pass reads and writes, given which ones move keys. Should none, the first one does.
struct Route {
  bool moves, first, last, to_near;
  int rank;  // among those that move

  TP_DEVICE Route(unsigned active, int index) {
    if (active == 0) active = 1;
    moves = active >> index & 1;
    rank = __popc(active & ((1u << index) - 1));
    const int after = __popc(active >> index >> 1);
    first = rank == 0;
    last = after == 0;
    to_near = after % 2 == 0;
  }
};

// Words that tiles publish: a number below two bits that say what it counts.
template <class Word>
struct Published {
  static constexpr int value_bits = int(8 * sizeof(Word)) - 2;
  static constexpr Word own = Word(1) << value_bits, all_up_to = Word(2) << value_bits, value_mask = own - 1;

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
  // The sum over the tiles before `tile`, from word `column` of each. The first tile of a stretch has published what
  // lies before it, too.
  TP_DEVICE static Word look_back(const Word* words, int64_t tile, int column) {
    constexpr int batch = 4;
    const Word* at = words + (tile - 1) * radix + column;
    Word sum = 0;
    for (;;) {
      Word seen[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) seen[i] = tile - 1 - i >= 0 ? load(at - i * radix) : Word(0);
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (seen[i] == 0) break;
        sum += seen[i] & value_mask;
        if (seen[i] >= all_up_to) return sum;
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
  static_assert(threads >= radix, "a thread a digit");
  template <class W, class Load>
  static constexpr int shared_bytes() {
    return shared_alignment + radix * 8 + warps * radix * 4 +
           tile_items * int(sizeof(W) + (std::is_empty<Load>::value ? 0 : sizeof(Load)));
  }
};

// Half of a value of 16 bytes: such values move by halves, in two sorts.
struct Half {
  uint64_t word, other;
  TP_DEVICE explicit operator uint64_t() const { return word; }
};
template <class V, class Load>
TP_DEVICE void store(V* to, Load load) {
  *to = V(load);
}
TP_DEVICE inline void store(Half* to, uint64_t load) { to->word = load; }

// f(Type<V>{}) for values of so many bytes, which move as a Load.
template <class Load, class F>
TP_DEVICE void with_value(int bytes, F f) {
  if constexpr (sizeof(Load) == 8) {
    return bytes == 8 ? f(Type<uint64_t>{}) : f(Type<Half>{});
  } else {
    if (bytes == 1) return f(Type<uint8_t>{});
    if (bytes == 2) return f(Type<uint16_t>{});
    bytes == 4 ? f(Type<uint32_t>{}) : f(Type<uint64_t>{});
  }
}

// The warp's items, lane by lane: item u of a lane is number u * 32 + lane. `left` are there from the lane's first on.
template <bool full, int items, class T, class Load>
TP_DEVICE void load_items(const T* from, int left, Load (&to)[items]) {
#pragma unroll
  for (int u = 0; u < items; ++u) {
    to[u] = full || u * block::warp_size < left ? Load(from[u * block::warp_size]) : Load(0);
  }
}

// `stable`: keys of the same digit keep their order. Where it does not matter, counting a key ranks it.
template <class Shape, class W, bool floating, class Load, bool stable>
class PassBlock {
  static constexpr int threads = Shape::threads, items = Shape::items, warps = Shape::warps;
  static constexpr bool loaded = !std::is_empty<Load>::value;
  using Stored = typename std::conditional<loaded, Load, char>::type;

  const Pass<W>& a;
  const Route route;
  const int thread = int(threadIdx.x), warp = thread / block::warp_size, lane = thread % block::warp_size;
  int64_t* starts;  // [radix]: where a digit's keys go, less their place in the tile; without loads, as an address
  unsigned* bins;   // [warps, radix]
  W* keys;          // [tile_items], and the loads after or before them, whichever are wider
  Stored* loads;
  unsigned* warp_sums;  // [radix / 32]
  const Entry<2, W, floating> bin_of;
  const Entry<3, W, floating> start_entry;

 public:
  // `pool` lies on a multiple of shared_alignment.
  TP_DEVICE PassBlock(const Pass<W>& a, const Route& route, char* pool, unsigned* warp_sums)
      : a(a),
        route(route),
        starts(reinterpret_cast<int64_t*>(pool)),
        bins(reinterpret_cast<unsigned*>(starts + radix)),
        warp_sums(warp_sums),
        bin_of(a.order, a.shift, a.mask, shared_address(bins + warp * radix)),
        start_entry(a.order, a.shift, a.mask, shared_address(starts)) {
    char* items_at = reinterpret_cast<char*>(bins + warps * radix);
    constexpr bool loads_first = loaded && sizeof(Stored) > sizeof(W);
    keys = reinterpret_cast<W*>(items_at + (loads_first ? Shape::tile_items * int(sizeof(Stored)) : 0));
    loads = reinterpret_cast<Stored*>(items_at + (loads_first ? 0 : Shape::tile_items * int(sizeof(W))));
  }

  // Takes tiles until there are no more. The next is chosen while this one is written, no sooner: a tile that has been
  // taken but not counted keeps all later ones waiting.
  TP_DEVICE void run(Tile (&tiles)[2]) {
    if (thread == 0) take(tiles[0]);
    clear_bins();
    for (int now = 0;; now = 1 - now) {
      __syncthreads();
      const Tile& t = tiles[now];
      if (t.count == 0) return;
      if (t.count == Shape::tile_items) {
        run_tile<true>(t, tiles[1 - now]);
      } else {
        run_tile<false>(t, tiles[1 - now]);
      }
    }
  }

 private:
  struct Totals {
    unsigned own, before;  // of this thread's digit: in the tile, and how many of the tile are smaller
  };

  TP_DEVICE void take(Tile& tile) const {
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
    const int left = t.count - first_item();
    const W* const from = route.first ? a.keys : route.to_near ? a.far_keys : a.near_keys;
    W key[items];
    unsigned place[items];
    load_items<full>(from + t.begin + first_item(), left, key);
#pragma unroll
    for (int u = 0; u < items; ++u) {
      if (stable) {
        count_shared(bin<full>(key[u], u, left));
      } else {
        place[u] = add_shared(bin<full>(key[u], u, left), 1);
      }
    }
    __syncthreads();
    const Totals totals = share_counts(t);
#pragma unroll
    for (int u = 0; u < items; ++u) {
      forget(key[u]);
      const unsigned at = bin<full>(key[u], u, left);
      if (stable) {
        place[u] = rank(lane, match(at >> 2), at);
      } else {
        place[u] += load_shared(at);
      }
    }
#pragma unroll
    for (int u = 0; u < items; ++u) keys[place[u]] = key[u];
    __syncwarp();
    clear_bins();
    if constexpr (loaded) {
      Stored load[items];
      read_loads<full>(t, left, load);
      if (thread < radix) find_starts(t, totals);
#pragma unroll
      for (int u = 0; u < items; ++u) loads[place[u]] = load[u];
    } else {
      if (thread < radix) find_starts(t, totals);
    }
    __syncthreads();
    if (thread == 0) take(next);
    write<full>(t);
  }

  // The counter of a key's digit; what is not there comes last.
  template <bool full>
  TP_DEVICE unsigned bin(W key, int u, int left) const {
    return full || u * block::warp_size < left ? bin_of(key) : shared_address(bins + warp * radix + radix - 1);
  }

  // Publishes the tile's totals, and turns counts into where each warp's keys of each digit begin.
  TP_DEVICE Totals share_counts(const Tile& t) {
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
    return a.state.starts[(t.stretch * a.passes + a.index) * radix + thread];
  }
  template <class Word>
  TP_DEVICE Word* words() const {
    return static_cast<Word*>(route.rank % 2 ? a.state.other_words : a.state.words);
  }
  template <class Word>
  TP_DEVICE void publish_as(const Tile& t, unsigned own) {
    using P = Published<Word>;
    const Word word = t.id == t.first ? P::all_up_to | Word(start_of(t) + own) : P::own | Word(own);
    P::store(words<Word>() + t.id * radix + thread, word);
    Word* cleared = static_cast<Word*>(route.rank % 2 ? a.state.words : a.state.other_words);
    if (!route.last) cleared[t.id * radix + thread] = 0;
  }
  TP_DEVICE void publish(const Tile& t, unsigned own) {
    if (a.state.wide) return publish_as<unsigned long long>(t, own);
    publish_as<unsigned>(t, own);
  }
  template <class Word>
  TP_DEVICE Word before_tile(const Tile& t, unsigned own) {
    using P = Published<Word>;
    if (t.id == t.first) return Word(start_of(t));
    Word* mine = words<Word>() + t.id * radix + thread;
    const Word before = P::look_back(words<Word>(), t.id, thread);
    P::store(mine, P::all_up_to | Word(before + own));
    return before;
  }
  TP_DEVICE void find_starts(const Tile& t, const Totals& totals) {
    const int64_t before = a.state.wide ? int64_t(before_tile<unsigned long long>(t, totals.own))
                                        : int64_t(before_tile<unsigned>(t, totals.own));
    const int64_t start = t.row_begin + before - int64_t(totals.before);
    starts[thread] = loaded ? start : reinterpret_cast<int64_t>(keys_to() + start);
  }

  template <bool full>
  TP_DEVICE void read_loads(const Tile& t, int left, Stored (&load)[items]) const {
    const int mine = first_item();
    if (!route.first) {
      const void* from = route.to_near ? a.far_values : a.near_values;
      load_items<full>(static_cast<const Stored*>(from) + t.begin + mine, left, load);
    } else if (a.value_bytes == 0) {
      const Stored position = Stored(t.begin - t.row_begin) + Stored(mine);
#pragma unroll
      for (int u = 0; u < items; ++u) load[u] = position + Stored(u * block::warp_size);
    } else {
      with_value<Load>(a.value_bytes, [&](auto type) {
        using V = typename decltype(type)::type;
        const V* from = static_cast<const V*>(a.values) + t.begin + mine;
        if constexpr (sizeof(Load) == 8 || sizeof(V) <= 4) load_items<full>(from, left, load);
      });
    }
  }

  TP_DEVICE W* keys_to() const { return route.last ? a.keys_out : route.to_near ? a.near_keys : a.far_keys; }

  template <bool full>
  TP_DEVICE void write(const Tile& t) const {
    if constexpr (!loaded) {
      each<full>(t, [&](int i, int64_t start, W key) { store_global(start + i * int64_t(sizeof(W)), key); });
    } else if (!route.last) {
      W* const to = keys_to();
      Stored* const values = static_cast<Stored*>(route.to_near ? a.near_values : a.far_values);
      each<full>(t, [&](int i, int64_t start, W key) {
        (to + start)[i] = key;
        (values + start)[i] = loads[i];
      });
    } else {
      with_value<Load>(a.out_bytes, [&](auto type) {
        using V = typename decltype(type)::type;
        V* const values = static_cast<V*>(a.values_out);
        each<full>(t, [&](int i, int64_t start, W key) {
          if (a.keys_out) (a.keys_out + start)[i] = key;
          store(values + start + i, loads[i]);
        });
      });
    }
  }
  // f(place in the tile, start of the digit, key) for the thread's keys.
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

template <class Shape, class W, bool floating, class Load, bool stable>
__global__ __launch_bounds__(Shape::threads, Shape::blocks) void pass_kernel(const __grid_constant__ Pass<W> a) {
  extern __shared__ char unaligned[];
  __shared__ Tile tiles[2];
  __shared__ unsigned warp_sums[radix / block::warp_size];
  char* pool = unaligned + (shared_alignment - shared_address(unaligned) % shared_alignment) % shared_alignment;
  block::wait_for_launch_before();
  block::allow_next_launch();
  const Route route(*a.state.active, a.index);
  if (route.moves) PassBlock<Shape, W, floating, Load, stable>(a, route, pool, warp_sums).run(tiles);
}

}  // namespace tp::sort::device
