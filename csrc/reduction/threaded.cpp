// The production reduction of the CPU: fixed chunks on all threads.
//
// Each [n, inner] slab is read as panels (panel.h). If rows are narrow, several of them form a panel row of about 64
// bytes, whose lanes are folded to `inner` at the end; if they are wide, they are divided into strips. A strip is
// divided into chunks along n, whose totals are combined in order. Contiguous rows with a few elements become the lanes
// of a panel. The partition depends only on the shape, so the bits do not depend on the number of threads. Sums,
// products and exponentials of floats accumulate in double, so the rounding error does not grow with n.
//
// An array that is not contiguous is read where it is, if the lanes of a panel are evenly spaced, or else copied chunk
// by chunk, which then stays in the cache. Either way it gives the bits of its copy.
#ifdef __GNUC__
#pragma GCC optimize("no-tree-pre")  // it turns comparisons into branches, which prevents vectorization
#endif

#include <algorithm>
#include <memory>

#include "reduction/gather.h"
#include "reduction/panel.h"

namespace tp::reduction {
namespace {

constexpr int64_t chunk = 1 << 16;     // elements
constexpr int64_t side_by_side = 128;  // the shortest rows
constexpr int64_t apart = 8;           // longer rows that are read side by side: as many as L1 has ways

// Lanes of a panel of narrow rows, approximately: a cache line of them, or of the floats that half types become.
template <class In>
constexpr int narrow = is_floating<In> && sizeof(In) == 2 ? 16 : 64 / int(sizeof(In));
// A contiguous row with no more elements is not worth a panel. The conversion of halves costs more for a single row.
template <class In>
constexpr int few = (std::is_same<In, half>::value ? 4 : 2) * narrow<In> - 1;

// The shortest rows: several of them share a cache line, or they are of small integers, of which a vector holds many.
template <class In>
constexpr int shortest = !is_floating<In> && sizeof(In) < 4 ? few<In> : 48 / int(sizeof(In));

template <class E>
struct Threaded {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  // Whether the order of combining decides the bits.
  static constexpr bool rounds = is_floating<In> && M::id != OpId::max && M::id != OpId::argmax;
  const E& e;
  // The order: element r * groups + g of a row is in lane g of its panel row r. There are `rows` full panel rows, in
  // chunks of `chunk_rows`, and a last one with the rest.
  bool is_short;
  int64_t groups, rows, chunk_rows, chunks;
  // The memory: a slab has the first elements of `columns` rows, `step` apart. `width` of them, a strip, are reduced at
  // a time. The bits do not depend on the width.
  int64_t columns, step, slabs, width, strips;
  Acc* totals = nullptr;
  const Layout* layout;

  Threaded(const E& e, const Args& args)
      : e(e),
        is_short(e.inner == 1 && e.n <= few<In>),
        groups(is_short ? 1 : tp::max(int64_t(1), tp::min(e.n, narrow<In> / e.inner))),
        rows(e.n / groups),
        chunk_rows(chunk / tp::min(groups * e.inner, max_lanes)),
        chunks(ceil_div(rows, chunk_rows)),
        columns(e.inner > 1 ? e.inner : e.rows),
        step(e.inner > 1 ? 1 : e.n),
        slabs(e.rows / columns),
        width(tp::min(columns, widest())),
        strips(ceil_div(columns, width)),
        layout(args.layout) {}

  int64_t widest() const {
    if (e.inner > 1) return max_lanes;
    return groups > 1 ? 1 : e.n <= shortest<In> ? side_by_side : apart;
  }

  // Whether the lanes are contiguous rows, which are then their only group.
  bool has_contiguous_rows() const { return e.inner == 1 && width > 1; }

  // Whether each row is a panel of its own.
  bool has_long_rows() const { return e.inner == 1 && groups == narrow<In>; }

  // Whether trees combine four panel rows, not eight, which in a slab without strips would be far apart.
  bool by_four() const { return e.inner > 1 && groups * e.inner <= max_lanes; }

  // Contiguous elements: finds the maximum first, then its index or the exponentials.
  template <bool mirrored, class P>
  TP_INLINE void reduce_narrow(const P& panel, int64_t first, Acc* acc) const {
    constexpr int lanes = narrow<In>;
    if constexpr (M::id == OpId::argmax) {
      using Most = MaxOf<In>;
      typename Most::Acc most[lanes];
      reduce_panel<Most, mirrored>(panel, most);
      fold<Most, lanes>(most);
      const int64_t count = panel.rows * panel.pitch + panel.tail;
      acc[0] = {most[0], first * lanes + find<Most, mirrored>(panel.x, count, most[0])};
    } else if constexpr (M::id == OpId::logsumexp) {
      using Most = MaxOf<In>;
      typename Most::Acc most[lanes], from[lanes];
      decltype(acc->sum) sum[lanes];
      combine<Most, false>(panel, most);
      fold<Most, lanes>(most);
      shifts_of(most, 1, from);
      std::fill_n(from, lanes, from[0]);
      sum_exponentials(panel, from, sum);
      fold<tp::Sum<decltype(acc->sum)>, lanes>(sum);
      store_exponentials<M>(most, from, sum, 1, acc);
    } else {
      reduce_panel<M, mirrored>(panel, acc);
      fold<M, lanes>(acc);
    }
  }

  // Combines a chunk of `wide` rows that starts at panel row `first`; their elements are `pitch` apart. Group g of row
  // l is lane g * wide + l. Each group is a panel of its own, unless all of them are contiguous in memory: then they
  // are one panel.
  template <bool mirrored>
  TP_INLINE void reduce_groups(const In* x, int64_t pitch, int64_t wide, int64_t first, int64_t count, int64_t rest,
                               Acc* acc) const {
    const bool joined = wide == pitch && groups * wide <= max_lanes;
    const int64_t panels = joined ? 1 : groups, panel_lanes = joined ? groups * wide : wide, lanes = groups * wide;
    const auto panel = [&](int64_t g) {
      const int64_t tail = joined ? rest * wide : g < rest ? wide : 0;
      return Panel<In, 1, 0>{x + g * pitch, count, groups * pitch, panel_lanes, tail, by_four()};
    };
    if constexpr (M::id == OpId::logsumexp) {
      // All groups of a row have the same maximum, so that their sums need not be scaled.
      using Most = MaxOf<In>;
      typename Most::Acc most[max_lanes], from[max_lanes];
      decltype(acc->sum) sum[max_lanes];
      for (int64_t g = 0; g < panels; ++g) combine<Most, false>(panel(g), most + g * wide);
      fold<Most>(most, groups, wide);
      shifts_of(most, wide, from);
      for (int64_t l = wide; l < lanes; ++l) from[l] = from[l - wide];
      for (int64_t g = 0; g < panels; ++g) sum_exponentials(panel(g), from + g * wide, sum + g * wide);
      fold<tp::Sum<decltype(acc->sum)>>(sum, groups, wide);
      store_exponentials<M>(most, from, sum, wide, acc);
      return;
    }
    for (int64_t g = 0; g < panels; ++g) reduce_panel<M, mirrored>(panel(g), acc + g * wide);
    if constexpr (M::id == OpId::argmax) {
      for (int64_t l = 0; l < lanes; ++l) acc[l].index = (first + acc[l].index) * groups + l / wide;
    }
    fold<M>(acc, groups, wide);
  }

  // Sums and products of a chunk of a row that is not contiguous, a few panel rows at a time. In long runs of
  // neighbours they are read where they are, and elsewhere gathered.
  template <bool mirrored>
  TP_INLINE void reduce_gathered(int64_t row, int64_t first, int64_t count, int64_t rest, Acc* acc) const {
    constexpr int64_t at_once = 256, tree = 8, long_run = 128 * narrow<In>;
    In copies[(at_once + 1) * narrow<In>];
    const Layout::Dim run = layout->n.empty() ? Layout::Dim{1, 1} : layout->n.back();
    const bool is_long = run.stride == 1 && run.size >= long_run;
    for (int64_t l = 0; l < groups; ++l) acc[l] = M::identity();
    for (int64_t r = 0, size = 0; r < count; r += size) {
      const int64_t element = (first + r) * groups, left = tp::min((run.size - element % run.size) / groups, count - r);
      const bool in_place = is_long && left >= 2 * tree;
      size = in_place ? (left - 1) / tree * tree : tp::min(is_long ? tree : at_once, count - r);
      const int64_t tail = r + size == count ? rest : 0;
      const In* const x = gather(e.in, *layout, {row, 1}, {element, size * groups + tail}, {0, 1}, copies).x;
      add_panel<M, mirrored>(Panel<In, 1, narrow<In>>{x, size, groups, groups, tail, false}, acc);
    }
    fold<M, narrow<In>>(acc);
  }

  // `copies` is for as many elements as copied() says, if the array is not contiguous.
  template <bool contiguous_rows, bool mirrored>
  TP_INLINE void reduce_chunk(int64_t slab, int64_t strip, int64_t c, Acc* acc, In* copies) const {
    const int64_t first = c * chunk_rows, count = tp::min(chunk_rows, rows - first);
    const int64_t rest = c == chunks - 1 ? e.n - rows * groups : 0;
    const int64_t column = strip * width, wide = tp::min(width, columns - column), row = slab * columns + column;
    Block<In> block{e.in + slab * columns * e.n + column * step + first * groups * e.inner, e.inner, step};
    if (layout) {
      const Range elements{first * groups, count * groups + rest};
      block = e.inner == 1 ? gather(e.in, *layout, {row, wide}, elements, {0, 1}, copies)
                           : gather(e.in, *layout, {slab, 1}, elements, {column, wide}, copies);
    }
    if constexpr (contiguous_rows) {
      reduce_panel<M, mirrored>(Panel<In, 0, 0>{block.x, count, block.step, wide, 0, false}, acc);
    } else {
      reduce_groups<mirrored>(block.x, block.pitch, wide, first, count, rest, acc);
    }
    store(acc, c, row, wide);
  }
  int64_t copied() const { return layout ? width * tp::min(e.n, (chunk_rows + 1) * groups) : 0; }

  // Stores the results of `wide` rows, or the totals of their chunk c.
  TP_INLINE void store(const Acc* acc, int64_t c, int64_t row, int64_t wide) const {
    if (chunks > 1) {
      std::copy(acc, acc + wide, totals + c * e.rows + row);
    } else {
      for (int64_t l = 0; l < wide; ++l) e.out[row + l] = e.result(acc[l]);
    }
  }

  template <bool contiguous_rows, bool mirrored>
  TP_INLINE void reduce_chunks(int64_t begin, int64_t end) const {
    Acc acc[contiguous_rows ? side_by_side : max_lanes];
    const std::unique_ptr<In[]> copies(copied() > 0 ? new In[size_t(copied())] : nullptr);
    int64_t c = begin % chunks, strip = begin / chunks % strips, slab = begin / chunks / strips;
    for (int64_t i = begin; i < end; ++i) {
      reduce_chunk<contiguous_rows, mirrored>(slab, strip, c, acc, copies.get());
      if (++c < chunks) continue;
      c = 0;
      if (++strip < strips) continue;
      strip = 0;
      ++slab;
    }
  }

  // The same for rows that are panels of their own.
  template <bool mirrored>
  TP_INLINE void reduce_rows(int64_t begin, int64_t end) const {
    constexpr int lanes = narrow<In>;
    const int64_t tail = e.n - rows * lanes;
    alignas(64) Acc acc[lanes];
    if (chunks == 1 && !layout) {
      // What the loop uses is copied, because the compiler would read it again after each store of a result.
      const E own = e;
      const int64_t count = rows;
      const In fill = identity_of<In, M>(mirrored);
      for (int64_t row = begin; row < end; ++row) {
        const bool followed = row + 1 < own.rows;
        const Panel<In, 1, lanes> panel{own.in + row * own.n, count, lanes, lanes, tail, false, 0, followed, fill};
        reduce_narrow<mirrored>(panel, 0, acc);
        own.out[row] = own.result(acc[0]);
      }
      return;
    }
    const std::unique_ptr<In[]> copies(!adds && layout ? new In[size_t(copied())] : nullptr);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / chunks, c = i % chunks, first = c * chunk_rows, count = tp::min(chunk_rows, rows - first);
      const int64_t rest = c == chunks - 1 ? tail : 0;
      const In* x = e.in + row * e.n + first * lanes;
      if (adds && layout) {
        reduce_gathered<mirrored>(row, first, count, rest, acc);
      } else {
        if (layout) x = gather(e.in, *layout, {row, 1}, {first * lanes, count * lanes + rest}, {0, 1}, copies.get()).x;
        reduce_narrow<mirrored>(Panel<In, 1, lanes>{x, count, lanes, lanes, rest, false}, first, acc);
      }
      store(acc, c, row, 1);
    }
  }

  static constexpr bool adds = rounds && (M::id == OpId::sum || M::id == OpId::prod);
  static constexpr bool may_mirror = M::id == OpId::argmax || M::id == OpId::max;
};

// How rows are read.
enum class Rows { any, side_by_side, one_by_one };

// Reduces chunks begin to end - 1.
template <Rows kind, bool mirrored, class E>
TP_INLINE void reduce_chunks(const Threaded<E>& t, int64_t begin, int64_t end) {
  if constexpr (kind == Rows::one_by_one) {
    t.template reduce_rows<mirrored>(begin, end);
  } else {
    t.template reduce_chunks<kind == Rows::side_by_side, mirrored>(begin, end);
  }
}
template <Rows kind, class E>
TP_INLINE void reduce_chunks(const Threaded<E>& t, int64_t begin, int64_t end) {
  if (Threaded<E>::may_mirror && t.e.mirrored) {
    reduce_chunks<kind, Threaded<E>::may_mirror>(t, begin, end);
  } else {
    reduce_chunks<kind, false>(t, begin, end);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
template <Rows kind, class E>
__attribute__((target("avx2"))) void reduce_chunks_avx2(const Threaded<E>& t, int64_t begin, int64_t end) {
  reduce_chunks<kind>(t, begin, end);
}
// For the few processors without AVX2: their vectors are not worth half of this file's compile time.
template <Rows kind, class E>
__attribute__((optimize("Os"))) void reduce_chunks_plain(const Threaded<E>& t, int64_t begin, int64_t end) {
  reduce_chunks<kind>(t, begin, end);
}
template <Rows kind, class E>
auto reducer() {
  return __builtin_cpu_supports("avx2") ? &reduce_chunks_avx2<kind, E> : &reduce_chunks_plain<kind, E>;
}
#else
template <Rows kind, class E>
auto reducer() {
  return &reduce_chunks<kind, E>;
}
#endif

// Without AVX2 but for exponentials, because vectors of strided elements are not faster for being longer.
template <class E>
auto reducer_of_contiguous_rows() {
  if constexpr (E::Monoid::id == OpId::logsumexp) {
    return reducer<Rows::side_by_side, E>();
  } else {
    return +[](const Threaded<E>& t, int64_t begin, int64_t end) { reduce_chunks<Rows::side_by_side>(t, begin, end); };
  }
}

template <class E>
void combine_chunks(const Threaded<E>& t, int64_t begin, int64_t end) {
  const E& e = t.e;
  for (int64_t row = begin; row < end; ++row) {
    auto sum = t.totals[row];
    for (int64_t c = 1; c < t.chunks; ++c) sum = E::Monoid::combine(sum, t.totals[c * e.rows + row]);
    e.out[row] = e.result(sum);
  }
}

template <class E>
void reduce(const E& e, const Args& args, Context& context) {
  if (e.n == 0) {
    std::fill(e.out, e.out + e.rows, e.result(E::Monoid::identity()));
    return;
  }
  Threaded<E> t(e, args);
  if (t.chunks > 1) t.totals = context.workspace<typename E::Acc>(t.chunks * e.rows);
  const auto run = t.has_contiguous_rows() ? reducer_of_contiguous_rows<E>()
                   : t.has_long_rows()     ? reducer<Rows::one_by_one, E>()
                                           : reducer<Rows::any, E>();
  const int64_t grain = ceil_div(int64_t(1 << 14), t.width * tp::min(e.n, t.chunk_rows * t.groups));
  context.parallel_for(t.slabs * t.strips * t.chunks, grain, [&](int64_t begin, int64_t end) { run(t, begin, end); });
  if (t.chunks == 1) return;
  context.parallel_for(e.rows, ceil_div(int64_t(4096), t.chunks),
                       [&](int64_t begin, int64_t end) { combine_chunks(t, begin, end); });
}

}  // namespace

void threaded(const Args& args, Context& context) {
  with_elements<wide_t>(args, [&](const auto& elements) { reduce(elements, args, context); });
}

}  // namespace tp::reduction
