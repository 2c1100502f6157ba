// Running extrema and their positions on a device: each element is read once and each result written once.
//
// If the elements of a line are not adjacent, there is one thread per line or, of few lines, one per section of a line;
// sections are read twice. Otherwise, lines are stored end to end and divided into tiles, whatever their length. A
// partial result over some elements starts at the last head of a line among them; if there is a head, it does not
// combine with what precedes it. A tile publishes its leader, the extremum so far, and looks back over earlier tiles
// (block/lookback.cuh). Few elements become leaders, so in a tile without a head, a warp none of whose elements beats
// what precedes them writes that value everywhere and scans nothing.
#ifdef __CUDACC__
#include "block/load_store.cuh"
#include "block/lookback.cuh"
#include "core/op.h"
#include "core/simt.h"
#include "scan/extrema.h"

namespace tp::scan {
namespace {

constexpr int threads = 256, warps = threads / block::warp_size, chunks = 4;

template <class A>
struct Leader {
  A value;
  int position;  // in the order of the scan
};

template <class A, bool least>
struct Leading {
  using Acc = Leader<A>;
  // The identity. An element that does not beat it does not beat what precedes it either, so its position is never seen
  // in a result.
  TP_HD static Acc identity() { return {least ? detail::highest<A>() : detail::lowest<A>(), 0}; }
  TP_HD static Acc combine(Acc earlier, Acc later) { return leads(later.value, earlier.value) ? later : earlier; }
  // Of two values in any order, the more extreme one; of equal ones, the one with the lower position.
  TP_HD static Acc extreme(Acc x, Acc y) {
    const bool x_leads = leads(x.value, y.value), y_leads = leads(y.value, x.value);
    return x_leads || (!y_leads && x.position < y.position) ? x : y;
  }
  TP_HD static bool leads(A x, A held) { return (least ? !(x >= held) : !(x <= held)) && held == held; }
};

// Reverses the order of a vector's positions.
template <int n>
TP_DEVICE __forceinline__ void flip(int (&positions)[n]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    const int held = positions[i];
    positions[i] = positions[n - 1 - i];
    positions[n - 1 - i] = held;
  }
}

// Lines of `n` elements each, `count` elements in all.
template <class T, bool least>
struct Lines {
  using Element = T;
  using A = acc_t<T>;
  using M = Leading<A, least>;
  static constexpr int vector = sizeof(T) == 8 ? 2 : 4, chunk = block::warp_size * vector;
  static constexpr int tile_items = threads * chunks * vector;
  block::Vectors<const T, vector> in;
  block::Vectors<T, vector> out;
  block::Vectors<int64_t, vector> index;
  int64_t count;
  unsigned n, step;  // a chunk further on is `step` positions further on in its line
  bool whole;        // all vectors are aligned

  TP_DEVICE unsigned next(unsigned position) const {
    return position >= n - step ? position - (n - step) : position + step;
  }
  TP_DEVICE unsigned position_of(int64_t p) const { return count >> 32 == 0 ? unsigned(p) % n : unsigned(p % n); }

  // Makes a leader the result of element i of a vector.
  TP_DEVICE void put(int i, const Leader<A>& leader, block::Vector<T, vector>& y, int (&positions)[vector]) const {
    y.v[i] = T(leader.value);
    positions[i] = in.reverse ? int(n) - 1 - leader.position : leader.position;
  }

  // Stores the positions of a full chunk. A lane has 16 or 32 bytes of them; two lanes exchange halves, so that
  // neighbouring lanes write neighbouring words.
  TP_DEVICE void store_positions(int64_t p, const int (&positions)[vector], int lane) const {
    using Two = block::Vector<int64_t, 2>;
    int64_t* mine = index.data + (index.reverse ? count - vector - p : p);
    if constexpr (vector == 2) {
      *reinterpret_cast<Two*>(mine) = {{positions[0], positions[1]}};
    } else {
      const bool low = (lane & 1) == int(index.reverse);
      const int first = __shfl_xor_sync(~0u, low ? positions[2] : positions[0], 1);
      const int second = __shfl_xor_sync(~0u, low ? positions[3] : positions[1], 1);
      int64_t* pair = low ? mine : mine - vector + 2;
      *reinterpret_cast<Two*>(pair) = low ? Two{{positions[0], positions[1]}} : Two{{first, second}};
      *reinterpret_cast<Two*>(pair + vector) = low ? Two{{first, second}} : Two{{positions[2], positions[3]}};
    }
  }

  // Stores the results of the vector at p, and their positions.
  TP_DEVICE __forceinline__ void store(int64_t p, block::Vector<T, vector>& y, int (&positions)[vector],
                                       int lane) const {
    const int64_t end = p + (block::warp_size - lane) * vector;  // the end of the warp's chunk
    if (whole && end <= count) {
      if (out.reverse) {
        y.flip();
        flip(positions);
      }
      out.at(p) = y;
      store_positions(p, positions, lane);
    } else {
      block::Vector<int64_t, vector> wide;
#pragma unroll
      for (int i = 0; i < vector; ++i) wide.v[i] = positions[i];
      out.store(p, y);
      index.store(p, wide);
    }
  }
};

// A lane's elements of its warp's share of a tile. Vector j is j chunks after position `first_position` of its line.
template <class L>
struct Share {
  using M = typename L::M;
  using Acc = typename M::Acc;
  const L& lines;
  block::Vector<typename L::Element, L::vector> x[chunks];
  unsigned first_position;
  int lane;

  // Loads all vectors; the first is at `first`.
  TP_DEVICE __forceinline__ void load(int64_t first) {
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      const int64_t p = first + j * L::chunk;
      if (lines.whole && p + L::vector <= lines.count) {
        x[j] = lines.in.at(p);
        if (lines.in.reverse) x[j].flip();
      } else {
        x[j] = lines.in.load(p, {});
      }
    }
  }

  // Calls f(j, i, element, is_head) for all elements; positions start again at 0 in the next line.
  template <class F>
  TP_DEVICE void each(int j, unsigned position, F f) const {
#pragma unroll
    for (int i = 0; i < L::vector; ++i) {
      f(i, Acc{typename L::A(x[j].v[i]), int(position)}, position == 0);
      if (++position == lines.n) position = 0;
    }
  }

  // before[j] becomes what precedes vector j in its warp and line; bit j of `joined` says that the line began before
  // the warp. Returns the leader of all elements from the last head on; `starts` says whether the warp has a head.
  TP_DEVICE Acc scan(Acc (&before)[chunks], unsigned& joined, bool& starts) const {
    // leader[j] is the leader of chunk j up to and including this lane, from the last head on.
    Acc leader[chunks], carry = M::identity();
    unsigned heads[chunks], position = first_position;  // the lanes that have a head
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      bool any = false;
      leader[j] = M::identity();
      each(j, position, [&](int, const Acc& here, bool head) {
        leader[j] = head ? here : M::combine(leader[j], here);
        any = any || head;
      });
      heads[j] = __ballot_sync(~0u, any);
      position = lines.next(position);
    }
#pragma unroll
    for (int stride = 1; stride < block::warp_size; stride *= 2) {
#pragma unroll
      for (int j = 0; j < chunks; ++j) {
        const Acc left = block::shuffle_up(leader[j], stride);
        const int open = __clz(int(heads[j] << (31 - lane)));  // how many lanes, from this one downwards, have no head
        if (lane >= stride && open >= stride) leader[j] = M::combine(left, leader[j]);
      }
    }
    joined = 0;
    starts = false;
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
      const Acc left = block::shuffle_up(leader[j], 1), total = block::broadcast(leader[j], block::warp_size - 1);
      const bool open = (heads[j] & ((1u << lane) - 1)) == 0;
      before[j] = lane == 0 ? carry : open ? M::combine(carry, left) : left;
      if (!starts && open) joined |= 1u << j;
      carry = heads[j] ? total : M::combine(carry, total);
      starts = starts || heads[j];
    }
    return carry;
  }

  // Computes the results of vector j, which is at position `position` of its line and which `running` precedes, and
  // their positions.
  TP_DEVICE __forceinline__ void run(int j, unsigned position, Acc running,
                                     block::Vector<typename L::Element, L::vector>& y,
                                     int (&positions)[L::vector]) const {
    each(j, position, [&](int i, const Acc& here, bool head) {
      running = head ? here : M::combine(running, here);
      lines.put(i, running, y, positions);
    });
  }

  // The leader of all elements, if no line ends among them.
  TP_DEVICE Acc extreme() const {
    Acc most{typename L::A(x[0].v[0]), int(first_position)};
#pragma unroll
    for (int j = 0; j < chunks; ++j) {
#pragma unroll
      for (int i = 0; i < L::vector; ++i) {
        most = M::combine(most, {typename L::A(x[j].v[i]), int(first_position) + j * L::chunk + i});
      }
    }
#pragma unroll
    for (int stride = block::warp_size / 2; stride > 0; stride /= 2) {
      most = M::extreme(most, block::shuffle_xor(most, stride));
    }
    return most;
  }
};

// Stores the results of a lane's share, the first vector of which is at `first`. `base` is the leader before the share.
// If `some_lead`, the elements of vector j follow before[j], and `base` too if bit j of `joined` is set; otherwise
// `base` is the leader everywhere.
template <class L, class Acc>
TP_DEVICE __forceinline__ void store_share(const L& lines, const Share<L>& mine, int64_t first, const Acc& base,
                                           bool some_lead, const Acc (&before)[chunks], unsigned joined) {
  unsigned position = mine.first_position;
#pragma unroll
  for (int j = 0; j < chunks; ++j) {
    block::Vector<typename L::Element, L::vector> y;
    int positions[L::vector];
    if (some_lead) {
      mine.run(j, position, joined >> j & 1 ? L::M::combine(base, before[j]) : before[j], y, positions);
      position = lines.next(position);
    } else {
#pragma unroll
      for (int i = 0; i < L::vector; ++i) lines.put(i, base, y, positions);
    }
    lines.store(first + j * L::chunk, y, positions, mine.lane);
  }
}

template <class L>
__global__ __launch_bounds__(threads, 3) void extrema_kernel(const L lines,
                                                             const block::TileStates<Leader<typename L::A>> states) {
  using M = typename L::M;
  using Acc = typename M::Acc;
  constexpr int tile_items = L::tile_items;
  __shared__ Acc totals[warps], before_tile;
  __shared__ bool starts_in[warps];
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  block::wait_for_launch_before();
  const int64_t tile = block::take_ticket(states), tile_first = tile * tile_items;
  const int64_t first = tile_first + (warp * chunks * block::warp_size + lane) * L::vector;
  Share<L> mine{lines, {}, lines.position_of(first), lane};
  mine.load(first);

  // Each warp finds the leader of its share. A plain tile lies within one line, where an extremum is enough for now.
  const unsigned tile_position = lines.position_of(tile_first);
  const bool plain = tile_first + tile_items <= lines.count && int64_t(tile_position) + tile_items <= lines.n;
  Acc before[chunks], total;
  unsigned joined = 0;
  bool starts = plain && tile_position == 0 && warp == 0;
  if (plain) {
    total = mine.extreme();
  } else {
    total = mine.scan(before, joined, starts);
  }
  if (lane == 0) totals[warp] = total, starts_in[warp] = starts;
  __syncthreads();

  // The leaders of the tile before this warp, and of the whole tile.
  Acc before_warp = M::identity(), all = M::identity();
  bool warp_joined = true, tile_starts = false;
#pragma unroll
  for (int w = 0; w < warps; ++w) {
    if (w == warp) before_warp = all, warp_joined = !tile_starts;
    all = starts_in[w] ? totals[w] : M::combine(all, totals[w]);
    tile_starts = tile_starts || starts_in[w];
  }
  // The first warp publishes the leader of the tile, and looks back for what precedes the tile in its line.
  if (warp == 0) {
    if (lane == 0 && states.tickets && !tile_starts) states.tiles[tile].publish(all);
    if (lane == 0 && states.tickets && tile_starts) states.groups[tile].publish(all);
    Acc sum = M::identity();
    if (tile_position > 0) sum = block::look_back_any_order<M>(states, tile, (tile_first - tile_position) / tile_items);
    if (lane == 0) {
      before_tile = sum;
      if (!tile_starts) states.groups[tile].publish(M::combine(sum, all));
    }
  }
  __syncthreads();

  // A warp of a plain tile that beats what precedes it scans its share; another one writes that leader everywhere.
  const Acc base = warp_joined ? M::combine(before_tile, before_warp) : before_warp;
  const bool some_lead = !plain || M::leads(total.value, base.value);
  if (plain && some_lead) mine.scan(before, joined, starts);
  store_share(lines, mine, first, base, some_lead, before, joined);
}

template <class T, bool least>
void launch(const ExtremaArgs& args, Context& context) {
  using L = Lines<T, least>;
  const int64_t count = args.outer * args.n, tiles = ceil_div(count, int64_t(L::tile_items));
  require(tiles <= 2147483647, "scan_with_indices: ", count, " elements are too many for one launch");
  L lines{{static_cast<const T*>(args.in), count, args.reverse},
          {static_cast<T*>(args.out), count, args.reverse},
          {args.index, count, args.reverse},
          count,
          unsigned(args.n),
          unsigned(L::chunk % args.n),
          false};
  lines.whole = lines.in.aligned && lines.out.aligned && lines.index.aligned;
  block::TileStates<Leader<acc_t<T>>> states{};
  if (tiles == 1) {
    extrema_kernel<L><<<1, threads, 0, cudaStream_t(context.stream)>>>(lines, states);
  } else {
    states = block::make_tile_states<Leader<acc_t<T>>>(context, tiles, tiles);
    block::launch_early(extrema_kernel<L>, unsigned(tiles), threads, 0, context, lines, states);
  }
  check_launch("scan_with_indices");
}

// Lines of [outer, n, inner] whose elements are not adjacent. Each is divided into sections of `rows` elements, with
// one thread per section; neighbouring lanes have neighbouring lines.
template <class T, bool least>
struct Columns {
  using A = acc_t<T>;
  using M = Leading<A, least>;
  static constexpr int unrolled = 8;
  ExtremaArgs args;
  int64_t lines;
  int rows, sections;
  Leader<A>* leaders;  // [sections, lines]: of each section by itself; null if each line is one section

  // What a thread works on.
  struct Section {
    int64_t line, first, step;  // elements are at first + position * step, in the order of the scan
    int begin, end;             // positions in the line
  };
  TP_DEVICE Section mine() const {
    Section s;
    s.line = int64_t(blockIdx.x) * threads + threadIdx.x;
    const int64_t outer = s.line / args.inner, last = args.reverse ? args.n - 1 : 0;
    s.first = (outer * args.n + last) * args.inner + (s.line - outer * args.inner);
    s.step = args.reverse ? -args.inner : args.inner;
    s.begin = int(blockIdx.y) * rows;
    s.end = int(tp::min(s.begin + int64_t(rows), args.n));
    return s;
  }
  // Calls f(position, leader) for the elements of a section, which `leader` precedes. Returns the leader behind it.
  template <class F>
  TP_DEVICE Leader<A> run(const Section& s, Leader<A> leader, F f) const {
    const T* const in = static_cast<const T*>(args.in) + s.first;
    for (int begin = s.begin; begin < s.end; begin += unrolled) {
      T values[unrolled];
#pragma unroll
      for (int i = 0; i < unrolled; ++i) {
        if (begin + i < s.end) values[i] = in[(begin + i) * s.step];
      }
#pragma unroll
      for (int i = 0; i < unrolled; ++i) {
        if (begin + i >= s.end) break;
        const Leader<A> element{A(values[i]), begin + i};
        leader = begin + i == 0 ? element : M::combine(leader, element);
        f(begin + i, leader);
      }
    }
    return leader;
  }
};

template <class T, bool least>
__global__ void __launch_bounds__(threads) leaders_of_sections(const Columns<T, least> columns) {
  block::allow_next_launch();
  const auto s = columns.mine();
  if (s.line >= columns.lines) return;
  columns.leaders[blockIdx.y * columns.lines + s.line] =
      columns.run(s, Leading<acc_t<T>, least>::identity(), [](int, auto) {});
}

template <class T, bool least>
__global__ void __launch_bounds__(threads) extrema_of_columns(const Columns<T, least> columns) {
  using M = Leading<acc_t<T>, least>;
  block::wait_for_launch_before();
  const auto s = columns.mine();
  if (s.line >= columns.lines) return;
  auto before = M::identity();
#pragma unroll 8
  for (unsigned i = 0; i < blockIdx.y; ++i) before = M::combine(before, columns.leaders[i * columns.lines + s.line]);
  const ExtremaArgs& a = columns.args;
  T* const out = static_cast<T*>(a.out) + s.first;
  int64_t* const index = a.index + s.first;
  columns.run(s, before, [&](int position, const auto& leader) {
    out[position * s.step] = T(leader.value);
    index[position * s.step] = a.reverse ? int(a.n) - 1 - leader.position : leader.position;
  });
}

// Few lines are divided so that there are about as many threads as an H200 runs at once. A section looks at those
// before it, so a line does not have many.
template <class T, bool least>
void launch_columns(const ExtremaArgs& args, Context& context) {
  constexpr int64_t many_lines = 1 << 15, threads_at_once = 1 << 18, most_sections = 128, least_rows = 64;
  const int64_t lines = args.outer * args.inner;
  const int64_t wanted = lines < many_lines ? tp::min(threads_at_once / lines, most_sections) : 1;
  const int64_t rows = tp::min(tp::max(ceil_div(args.n, wanted), least_rows), args.n);
  Columns<T, least> columns{args, lines, int(rows), int(ceil_div(args.n, rows)), nullptr};
  const dim3 grid(unsigned(ceil_div(lines, int64_t(threads))), unsigned(columns.sections));
  if (columns.sections > 1) {
    columns.leaders = context.workspace<Leader<acc_t<T>>>(lines * columns.sections);
    leaders_of_sections<T, least><<<grid, threads, 0, cudaStream_t(context.stream)>>>(columns);
    check_launch("scan_with_indices");
  }
  block::launch_early(extrema_of_columns<T, least>, grid, threads, 0, context, columns);
  check_launch("scan_with_indices");
}

}  // namespace

void running_extrema_on_device(const ExtremaArgs& args, Context& context) {
  dispatch(AllTypes{}, args.dtype, "scan_with_indices", [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.inner > 1)
      return args.least ? launch_columns<T, true>(args, context) : launch_columns<T, false>(args, context);
    args.least ? launch<T, true>(args, context) : launch<T, false>(args, context);
  });
}

}  // namespace tp::scan
#endif
