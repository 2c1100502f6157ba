// The production reduction of the CPU: fixed chunks on all threads.
//
// Each [n, inner] slab is read as panels (panel.h). If rows are narrow, several of them form a panel row of about 64
// bytes, whose lanes are folded to `inner` at the end; if they are wide, they are divided into strips. A strip is
// divided into chunks along n, whose totals are combined in order. Contiguous rows with a few elements become the lanes
// of a panel. The partition depends only on the shape, so the bits do not depend on the number of threads. Sums,
// products and exponentials of floats accumulate in double, so the rounding error does not grow with n.
#ifdef __GNUC__
#pragma GCC optimize("no-tree-pre")  // it turns comparisons into branches, which prevents vectorization
#endif

#include <algorithm>

#include "reduction/panel.h"

namespace tp::reduction {
namespace {

constexpr int64_t chunk = 1 << 16;  // elements
constexpr int64_t few = 16;         // a contiguous row with fewer elements is not worth a panel
constexpr int64_t side_by_side = 128;

template <class In>
constexpr int narrow = 64 / int(sizeof(In));  // lanes of a panel of narrow rows, approximately

template <class E>
struct Threaded {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  const E& e;
  // A panel row is `groups` rows of the slab; there are `rows` panel rows, in chunks of `chunk_rows`.
  int64_t slabs, groups, lanes, strips, rows, chunk_rows, chunks;
  Acc* totals = nullptr;

  explicit Threaded(const E& e)
      : e(e),
        slabs(e.rows / e.inner),
        groups(tp::max(int64_t(1), tp::min(e.n, narrow<In> / e.inner))),
        lanes(tp::min(groups * e.inner, max_lanes)),
        strips(ceil_div(groups * e.inner, lanes)),
        rows(e.n / groups),
        chunk_rows(chunk / lanes),
        chunks(ceil_div(rows, chunk_rows)) {}

  bool short_rows() const { return e.inner == 1 && e.n <= few; }

  // Reduces rows begin to end - 1, which have only a few elements.
  template <bool mirrored>
  void reduce_short(int64_t begin, int64_t end) const {
    Acc acc[side_by_side];
    for (int64_t row = begin; row < end; row += side_by_side) {
      const int64_t count = tp::min(side_by_side, end - row);
      reduce_panel<M, mirrored>(Panel<In, 0, 0>{e.in + row * e.n, e.n, 1, count, 0, e.n}, acc);
      for (int64_t l = 0; l < count; ++l) e.out[row + l] = e.result(acc[l]);
    }
  }

  // Contiguous elements: finds the maximum first, then its index.
  template <bool mirrored, class P>
  TP_INLINE void reduce_narrow(const P& panel, int64_t first, Acc* acc) const {
    if constexpr (M::id == OpId::argmax) {
      using Most = MaxOf<In>;
      typename Most::Acc most[narrow<In>];
      reduce_panel<Most, mirrored>(panel, most);
      fold<Most>(most, narrow<In>, 1);
      const int64_t count = panel.rows * panel.pitch + panel.tail;
      acc[0] = {most[0], first * narrow<In> + find<Most, mirrored>(panel.x, count, most[0])};
    } else {
      reduce_panel<M, mirrored>(panel, acc);
      fold<M>(acc, narrow<In>, 1);
    }
  }

  template <bool mirrored>
  TP_INLINE void reduce_chunk(int64_t slab, int64_t strip, int64_t c, Acc* acc) const {
    const int64_t first = c * chunk_rows, column = strip * lanes, pitch = groups * e.inner;
    const int64_t count = tp::min(chunk_rows, rows - first), width = tp::min(lanes, pitch - column);
    const int64_t tail = c == chunks - 1 ? (e.n - rows * groups) * e.inner : 0;  // 0 if there are strips
    const In* x = e.in + slab * e.n * e.inner + first * pitch + column;
    if (e.inner == 1 && width == narrow<In>) {
      reduce_narrow<mirrored>(Panel<In, 1, narrow<In>>{x, count, pitch, width, tail, 1}, first, acc);
    } else {
      reduce_panel<M, mirrored>(Panel<In, 1, 0>{x, count, pitch, width, tail, 1}, acc);
      if constexpr (M::id == OpId::argmax) {
        for (int64_t l = 0; l < width; ++l) acc[l].index = (first + acc[l].index) * groups + l / e.inner;
      }
      fold<M>(acc, groups, e.inner);
    }
    const int64_t columns = groups > 1 ? e.inner : width;
    if (chunks > 1) {
      std::copy(acc, acc + columns, totals + (slab * chunks + c) * e.inner + column);
    } else {
      for (int64_t l = 0; l < columns; ++l) e.out[slab * e.inner + column + l] = e.result(acc[l]);
    }
  }

  template <bool mirrored>
  TP_INLINE void reduce_chunks(int64_t begin, int64_t end) const {
    Acc acc[max_lanes];
    for (int64_t i = begin; i < end; ++i)
      reduce_chunk<mirrored>(i / chunks / strips, i / chunks % strips, i % chunks, acc);
  }

  static constexpr bool may_mirror = M::id == OpId::argmax || M::id == OpId::max;
};

template <class E>
void reduce_short(const Threaded<E>& t, int64_t begin, int64_t end) {
  if (Threaded<E>::may_mirror && t.e.mirrored) {
    t.template reduce_short<Threaded<E>::may_mirror>(begin, end);
  } else {
    t.template reduce_short<false>(begin, end);
  }
}

// Reduces chunks begin to end - 1.
template <class E>
TP_INLINE void reduce_chunks(const Threaded<E>& t, int64_t begin, int64_t end) {
  if (Threaded<E>::may_mirror && t.e.mirrored) {
    t.template reduce_chunks<Threaded<E>::may_mirror>(begin, end);
  } else {
    t.template reduce_chunks<false>(begin, end);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class E>
__attribute__((target("avx2"))) void reduce_chunks_avx2(const Threaded<E>& t, int64_t begin, int64_t end) {
  reduce_chunks(t, begin, end);
}
// For the few processors without AVX2: their vectors are not worth half of this file's compile time.
template <class E>
__attribute__((optimize("O1"))) void reduce_chunks_plain(const Threaded<E>& t, int64_t begin, int64_t end) {
  reduce_chunks(t, begin, end);
}
template <class E>
auto reducer() {
  return __builtin_cpu_supports("avx2") ? &reduce_chunks_avx2<E> : &reduce_chunks_plain<E>;
}
#else
template <class E>
auto reducer() {
  return &reduce_chunks<E>;
}
#endif

template <class E>
void combine_chunks(const Threaded<E>& t, int64_t begin, int64_t end) {
  const E& e = t.e;
  for (int64_t row = begin; row < end; ++row) {
    const auto* total = t.totals + row / e.inner * t.chunks * e.inner + row % e.inner;
    auto sum = total[0];
    for (int64_t c = 1; c < t.chunks; ++c) sum = E::Monoid::combine(sum, total[c * e.inner]);
    e.out[row] = e.result(sum);
  }
}

template <class E>
void reduce(const E& e, Context& context) {
  if (e.n == 0) {
    std::fill(e.out, e.out + e.rows, e.result(E::Monoid::identity()));
    return;
  }
  Threaded<E> t(e);
  if (t.chunks > 1) t.totals = context.workspace<typename E::Acc>(t.slabs * t.chunks * e.inner);
  const bool is_short = t.short_rows();
  const auto run = is_short ? &reduce_short<E> : reducer<E>();
  const int64_t units = is_short ? e.rows : t.slabs * t.strips * t.chunks;
  const int64_t grain = ceil_div(int64_t(1 << 14), is_short ? e.n : tp::min(e.n * e.inner, chunk));
  context.parallel_for(units, grain, [&](int64_t begin, int64_t end) { run(t, begin, end); });
  if (t.chunks == 1) return;
  context.parallel_for(e.rows, ceil_div(int64_t(4096), t.chunks),
                       [&](int64_t begin, int64_t end) { combine_chunks(t, begin, end); });
}

}  // namespace

void threaded(const Args& args, Context& context) {
  with_elements<wide_t>(args, [&](const auto& elements) { reduce(elements, context); });
}

}  // namespace tp::reduction
