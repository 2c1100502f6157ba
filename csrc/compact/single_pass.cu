// Compaction in one launch that reads the mask once, and only those rows that are kept. Wide rows take a second launch,
// which moves them, while the first moves their numbers. The heads of runs are found and
// packed by the same kernel: there, a row is kept if it differs from the row before. A partition counts the kept rows
// first, because dropped rows follow all kept ones.
//
// A block takes a tile by ticket. It ranks the tile's kept rows, publishes their number, and looks back over earlier
// tiles for the position of its first kept row (block/lookback.cuh). The numbers of the kept rows are compacted in
// shared memory, and those of dropped rows from its end backwards, so that consecutive threads move consecutive words
// of the result. A tile has more rows if rows are shorter, because a step of the look-back takes the same time whatever
// the size of a tile.
#include "block/per_output.h"
#include "compact/rows.h"
#include "compact/runs.h"
#ifdef __CUDACC__
#include "block/gather_rows.cuh"
#include "block/load_store.cuh"
#include "block/lookback.cuh"

namespace tp::compact {
namespace {

constexpr int threads = 512, warps = threads / block::warp_size;
constexpr int batch = 8;  // words that a thread has in flight
// The words of a thread that are loaded before the position of the tile is known.
template <class Word>
constexpr int early = tp::max(4, int(64 / tp::max(sizeof(Word), size_t(4))));
constexpr uint16_t dropped = 0xffff;
#ifdef TP_FEW_TYPES
using LineTypes = Types<uint8_t, int64_t, half, float>;
#else
using LineTypes = Types<uint8_t, int16_t, int32_t, int64_t, half, bfloat16, float, double>;
#endif

struct Tile {
  int rows, kept;
};

// The mask is the condition by which rows are kept. `kept[j]` becomes the high bit of each byte for the four rows from
// `mine` + j * round_rows of the tile at row `first`, which has `rows` rows; `whole` says that those are all that a
// tile can have.
constexpr int round_rows = 4 * block::warp_size;
struct Mask {
  static constexpr bool finds_runs = false;
  const boolean* mask;

  template <int rounds>
  TP_DEVICE void find_kept(int64_t first, int mine, int rows, bool whole, unsigned (&kept)[rounds]) const {
    const bool aligned = whole && reinterpret_cast<uintptr_t>(mask) % 4 == 0;
#pragma unroll
    for (int j = 0; j < rounds; ++j) kept[j] = kept_of_four(mask + first, mine + j * round_rows, rows, aligned);
  }

 private:
  TP_DEVICE static unsigned kept_of_four(const boolean* mask, int row, int rows, bool aligned) {
    unsigned bytes = 0;
    if (aligned) {
      bytes = *reinterpret_cast<const unsigned*>(mask + row);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (row + k < rows) bytes |= unsigned(mask[row + k].byte) << 8 * k;
      }
    }
    return (((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes) & 0x80808080u;
  }
};

// As Mask, but an element is kept if it is the head of a run. The kernel also stores where runs begin and, if `numbers`
// is not null, the number of each element's run.
template <class T>
struct Heads {
  static constexpr bool finds_runs = true;
  const T* x;
  int64_t* begins;
  const int64_t* order;
  int64_t* numbers;

  template <int rounds>
  TP_DEVICE void find_kept(int64_t first, int mine, int rows, bool whole, unsigned (&kept)[rounds]) const {
    using Four = block::Vector<T, 4>;
    constexpr int last = block::warp_size - 1;
    const T* const at = x + first + mine;
    const bool aligned = whole && reinterpret_cast<uintptr_t>(x) % alignof(Four) == 0;
    const int lane = int(threadIdx.x) % block::warp_size;
    constexpr int together = tp::min(rounds, int(32 / sizeof(T)));  // rounds whose loads are in flight at once
    T before{};  // of lane 0: the element before that of the warp's first round, then of each other one
    if (lane == 0 && first + mine > 0 && mine < rows) before = at[-1];
#pragma unroll
    for (int i = 0; i < rounds; i += together) {
      Four own[together];
#pragma unroll
      for (int j = 0; j < together; ++j) {
        if (aligned) {
          own[j] = *reinterpret_cast<const Four*>(at + (i + j) * round_rows);
          continue;
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int row = (i + j) * round_rows + k;
          own[j].v[k] = mine + row < rows ? at[row] : T{};
        }
      }
#pragma unroll
      for (int j = 0; j < together; ++j) {
        const T neighbour = block::shuffle_up(own[j].v[3], 1);
        T earlier = lane == 0 ? before : neighbour;
        before = block::broadcast(own[j].v[3], last);
        kept[i + j] = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (acc_t<T>(own[j].v[k]) != acc_t<T>(earlier)) kept[i + j] |= 0x80u << 8 * k;
          earlier = own[j].v[k];
        }
      }
    }
    if (first + mine == 0) kept[0] |= 0x80u;
    if (whole) return;
#pragma unroll
    for (int j = 0; j < rounds; ++j) {  // the last tile
      const int exist = rows - (mine + j * round_rows);
      if (exist < 4) kept[j] &= exist <= 0 ? 0u : ~(~0u << 8 * exist);
    }
  }

  // Stores where the runs begin whose heads are the `kept` rows of `list`, and the numbers of the tile's elements.
  // `before` heads precede the tile at row `first`.
  TP_DEVICE __forceinline__ void store_runs(int64_t first, int rows, int64_t before, int64_t kept, const uint16_t* list,
                                            const uint16_t* upto) const {
    for (int i = int(threadIdx.x); i < kept; i += threads) begins[before + i] = first + list[i];
    for (int i = int(threadIdx.x); numbers && i < rows; i += threads) {
      numbers[order[first + i]] = before + upto[i] - 1;
    }
  }
};

// Ranks the kept rows of the tile at row `first`. In each round, a lane handles four neighbouring rows of its warp. The
// counts of all rounds share one word, with one byte each, since none exceeds 128. Ends with a barrier.
// `list` gets the kept rows and, for a partition, the dropped ones from its end backwards; to unpack, it gets the rank
// of each row, or `dropped`. If rows are the elements of runs, `upto` gets the number of kept rows up to and including
// each row.
template <Step step, int items, class Keep>
TP_DEVICE Tile rank_rows(const Keep& keep, int64_t first, int64_t n, uint16_t* list, uint16_t* upto, int* warp_kept) {
  constexpr int tile_rows = threads * items, rounds = items / 4;
  static_assert(rounds <= 8, "the counts of all rounds must fit in one word, a byte each");
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  const int mine = warp * rounds * round_rows + 4 * lane, rows = int(tp::min(n - first, int64_t(tile_rows)));
  unsigned kept[rounds];
  uint64_t counts = 0;
  keep.find_kept(first, mine, rows, rows == tile_rows, kept);
#pragma unroll
  for (int j = 0; j < rounds; ++j) counts |= uint64_t(__popc(kept[j])) << 8 * j;
  const uint64_t scanned = block::inclusive_scan<Sum<uint64_t>>(counts), before = scanned - counts;
  const uint64_t totals = block::broadcast(scanned, block::warp_size - 1);
  if (lane == 0) {
    warp_kept[warp] = int(__dp4a(unsigned(totals >> 32), 0x01010101u, __dp4a(unsigned(totals), 0x01010101u, 0u)));
  }
  __syncthreads();
  int rank = 0, total = 0;
#pragma unroll
  for (int w = 0; w < warps; ++w) {
    if (w == warp) rank = total;
    total += warp_kept[w];
  }
#pragma unroll
  for (int j = 0; j < rounds; ++j) {
    int at = rank + int(before >> 8 * j & 0xff);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool keeps = kept[j] >> (8 * k + 7) & 1;
      const int row = mine + j * round_rows + k;
      if (step == Step::unpack) {
        list[row] = keeps ? uint16_t(at) : dropped;
      } else if (step == Step::partition) {
        list[keeps ? at : tile_rows - 1 - (row - at)] = uint16_t(row);
      } else if (keeps) {
        list[at] = uint16_t(row);
      }
      at += keeps;
      if (Keep::finds_runs && upto) upto[row] = uint16_t(at);
    }
    rank += int(totals >> 8 * j & 0xff);
  }
  __syncthreads();
  return {rows, total};
}

// Moves words `begin` to n - 1, word i by load(i) and store(i, word), with `batch` loads per thread in flight.
template <class Word, class Load, class Store>
TP_DEVICE void move_words(int64_t begin, int64_t n, Load load, Store store) {
  for (int64_t first = begin + threadIdx.x; first < n; first += threads * batch) {
    Word words[batch];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (first + b * threads < n) words[b] = load(first + b * threads);
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      if (first + b * threads < n) store(first + b * threads, words[b]);
    }
  }
}

// By the first warp of a block: looks back for how many rows earlier tiles keep, publishes how many there are up to the
// end of tile `id`, and stores the former to *before_tile. The last tile stores the total to *count, if that is wanted.
TP_DEVICE __forceinline__ void find_before(int64_t* count, const block::TileStates<int64_t>& states, int64_t id,
                                           int64_t tiles, int kept, int64_t* before_tile) {
  const int64_t before = states.tickets ? block::look_back_any_order<Sum<int64_t>>(states, id, 0) : 0;
  if (threadIdx.x != 0) return;
  *before_tile = before;
  const int64_t upto = before + kept;
  if (states.tickets) states.groups[id].publish(upto);
  if (id + 1 == tiles && count) *count = upto;
}

// Unpacks the tile at row `first`: a row that is kept is read at its rank, of which list[row] is the part within the
// tile; the other rows become 0.
template <bool single, class Rows>
TP_DEVICE __forceinline__ void unpack_tile(const Rows& r, int64_t first, int rows, int64_t before,
                                           const uint16_t* list) {
  using Word = typename Rows::Word;
  const int64_t width = single ? 1 : r.width;
  Word* to = r.out + first * width;
  const auto load = [&](int64_t i) {
    const int64_t row = single ? i : floor_div(i, width), from = before + list[row];
    return list[row] == dropped || from >= r.packed ? Word{} : r.in[from * width + i - row * width];
  };
  move_words<Word>(0, rows * width, load, [&](int64_t i, const Word& word) { to[i] = word; });
}

// `items` is the number of rows per thread; `single` says that a row is one word. Dynamic shared memory holds `upto`
// of rank_rows if the numbers of runs are wanted.
template <Step step, bool single, int items, class Rows, class Keep>
__global__ __launch_bounds__(threads, 2) void single_pass_kernel(const Rows r, const Keep keep,
                                                                 const block::TileStates<int64_t> states,
                                                                 int64_t tiles) {
  using Word = typename Rows::Word;
  constexpr bool partitions = step == Step::partition;
  __shared__ uint16_t list[threads * items];  // of rank_rows
  extern __shared__ uint16_t upto[];
  __shared__ int warp_kept[warps];
  __shared__ int64_t before_tile;
  bool numbers = false;
  if constexpr (Keep::finds_runs) numbers = keep.numbers != nullptr;
  const int64_t id = block::take_ticket(states), first = id * threads * items, width = single ? 1 : r.width;
  const Tile tile = rank_rows<step, items>(keep, first, r.n, list, numbers ? upto : nullptr, warp_kept);
  if (threadIdx.x == 0 && states.tickets) states.tiles[id].publish(tile.kept);

  // Row i of those that the tile moves: first the kept rows, then the dropped ones if they are not forgotten.
  const int moved = partitions ? tile.rows : tile.kept;
  const auto row_of = [&](int i) {
    return list[partitions && i >= tile.kept ? threads * items - 1 - (i - tile.kept) : i];
  };

  // Start to load what is moved, and meanwhile look back for how many rows earlier tiles keep.
  constexpr bool loads_early = step != Step::unpack && single;
  Word words[loads_early ? early<Word> : 1];
  if constexpr (loads_early) {
#pragma unroll
    for (int b = 0; b < early<Word>; ++b) {
      const int i = int(threadIdx.x) + b * threads;
      if (i < moved) words[b] = r.in[first + row_of(i)];
    }
  }
  if (threadIdx.x < block::warp_size)
    find_before(partitions ? nullptr : r.count, states, id, tiles, tile.kept, &before_tile);
  __syncthreads();
  const int64_t before = before_tile;

  // Move the words: each row to its rank or, to unpack, from its rank to its row.
  if constexpr (step == Step::unpack) {
    unpack_tile<single>(r, first, tile.rows, before, list);
  } else {
    Word* to = r.out + before * width;
    // Dropped rows of a partition go behind all kept ones. `room` limits the writes if the mask has changed in the
    // meantime.
    const int64_t gap = partitions ? *r.count - before + (first - before) - tile.kept : 0, room = r.packed - before;
    const auto load = [&](int64_t i) {
      const int64_t row = single ? i : floor_div(i, width);
      return r.in[(first + row_of(int(row))) * width + i - row * width];
    };
    const auto store = [&](int64_t i, const Word& word) {
      const int64_t at = partitions && i >= tile.kept * width ? i + gap * width : i;
      if (!partitions || at < room * width) to[at] = word;
    };
    const int64_t kept = tp::min(int64_t(moved), room);
    if constexpr (loads_early) {
#pragma unroll
      for (int b = 0; b < early<Word>; ++b) {
        const int i = int(threadIdx.x) + b * threads;
        if (i < kept) store(i, words[b]);
      }
    }
    move_words<Word>(loads_early ? early<Word> * threads : 0, kept * width, load, store);
    if constexpr (Keep::finds_runs) {
      keep.store_runs(first, tile.rows, before, kept, list, upto);
      if (id + 1 == tiles && threadIdx.x == 0) keep.begins[before + tile.kept] = r.n;
      return;
    }
    if (partitions || r.packed < r.n) return;
    Word* end = r.out + (r.n - (first - before)) * width;  // dropped rows fill the end of the output
    for (int64_t i = threadIdx.x; i < (tile.rows - tile.kept) * width; i += threads) end[-1 - i] = r.fill;
  }
}

template <Step step, bool single, int items, class Rows, class Keep>
void launch(const Rows& rows, const Keep& keep, int64_t shared_bytes, Context& context) {
  const int64_t tiles = ceil_div(rows.n, int64_t(threads * items));
  require(tiles <= 2147483647, "single_pass: ", rows.n, " rows are too many for one launch");
  block::TileStates<int64_t> states{};
  if (tiles > 1) states = block::make_tile_states<int64_t>(context, tiles, tiles);
  const auto kernel = single_pass_kernel<step, single, items, Rows, Keep>;
  if (shared_bytes > 0) {  // with the static arrays it may be more than the 48 KB that need no permission
    block::allow_shared_memory(kernel, int(shared_bytes));
  }
  kernel<<<unsigned(tiles), threads, size_t(shared_bytes), cudaStream_t(context.stream)>>>(rows, keep, states, tiles);
  check_launch("single_pass");
}

// The numbers of rows, from 1 on, in place of the rows themselves; 0 takes the role of the fill.
struct RowNumbers {
  using Word = int64_t;
  struct {
    TP_DEVICE int64_t operator[](int64_t row) const { return row + 1; }
  } in;
  int64_t *out, *count, n, packed, width = 1, fill = 0;
};

struct NumberedRow {
  const int64_t* numbers;
  TP_DEVICE int64_t operator()(int64_t i) const { return numbers[i] - 1; }
};

// A block moves a tile of very many rows, so if rows have more bytes it moves their numbers, and a second launch
// gathers the rows.
constexpr int64_t narrow_bytes = 64;

template <Step step>
void move(const Args& args, Context& context) {
  const Mask mask{static_cast<const boolean*>(args.mask)};
  if (args.row_bytes <= narrow_bytes) {
    return with_rows(args, [&](const auto& rows) {
      rows.width == 1 ? launch<step, true, 32>(rows, mask, 0, context)
                      : launch<step, false, 32>(rows, mask, 0, context);
    });
  }
  int64_t* const numbers = context.workspace<int64_t>(args.n);
  launch<step, true, 32>(RowNumbers{{}, numbers, args.count, args.n, args.packed}, mask, 0, context);
  block::gather_rows("single_pass", args.in, args.out, step == Step::unpack ? 0 : args.fill,
                     step == Step::pack ? args.packed : args.n, args.row_bytes, NumberedRow{numbers}, context);
}

// Counts kept rows, of which the first are in `vectors` vectors of 16 bytes of the mask.
__global__ __launch_bounds__(threads) void count_kernel(const uint8_t* mask, int64_t vectors, int64_t n,
                                                        unsigned long long* count) {
  using Words = block::Vector<unsigned, 4>;
  constexpr unsigned ones = 0x01010101;
  __shared__ unsigned total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  unsigned kept = 0;
  const int64_t id = int64_t(blockIdx.x) * threads + threadIdx.x, step = int64_t(gridDim.x) * threads;
#pragma unroll 4
  for (int64_t i = id; i < vectors; i += step) {
    const Words x = block::load_once(reinterpret_cast<const Words*>(mask) + i);
#pragma unroll
    for (int w = 0; w < 4; ++w) kept = __dp4a(__vsetne4(x.v[w], 0), ones, kept);
  }
  for (int64_t i = vectors * 16 + id; i < n; i += step) kept += mask[i] != 0;
  kept = __reduce_add_sync(~0u, kept);
  if (threadIdx.x % block::warp_size == 0) atomicAdd(&total, kept);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(count, static_cast<unsigned long long>(total));
}

void count(const Args& args, Context& context) {
  context.clear(args.count, int64_t(sizeof(int64_t)));
  const auto* mask = static_cast<const uint8_t*>(args.mask);
  const bool aligned = reinterpret_cast<uintptr_t>(mask) % 16 == 0;
  const int64_t blocks = tp::min(ceil_div(args.n, int64_t(threads * (aligned ? 64 : 4))), int64_t(1056));
  if (blocks == 0) return;
  count_kernel<<<unsigned(blocks), threads, 0, cudaStream_t(context.stream)>>>(
      mask, aligned ? args.n / 16 : 0, args.n, reinterpret_cast<unsigned long long*>(args.count));
  check_launch("single_pass");
}

}  // namespace

void single_pass(const Args& args, Context& context) {
  if (args.count && (args.step != Step::pack || args.n == 0)) count(args, context);
  if (args.n == 0) return;
  if (args.step == Step::pack) move<Step::pack>(args, context);
  if (args.step == Step::partition) move<Step::partition>(args, context);
  if (args.step == Step::unpack) move<Step::unpack>(args, context);
}

// Integers are equal if their bits are.
void list_runs(const RunArgs& x, Context& context) {
  Args args{};
  args.in = x.x;
  args.out = x.values;
  args.count = x.count;
  args.n = args.packed = x.n;
  const auto list = [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr int items = 32;
    args.row_bytes = sizeof(T);
    const Heads<T> heads{static_cast<const T*>(x.x), x.begins, x.order, x.numbers};
    launch<Step::pack, true, items>(Rows<T>(args), heads, x.numbers ? threads * items * sizeof(uint16_t) : 0, context);
  };
  switch (x.dtype) {
    case DType::boolean:
    case DType::int8:
      return list(Type<uint8_t>{});
    default:
      dispatch(LineTypes{}, x.dtype, "runs", list);
  }
}

}  // namespace tp::compact
#endif
