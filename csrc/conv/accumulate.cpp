#include "conv/accumulate.h"

#include "core/macros.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define TP_X86 1
#endif

namespace tp::conv {
namespace {

#define TP_INLINE __attribute__((always_inline)) inline
#define TP_UNROLL _Pragma("GCC unroll 16")  // so that arrays indexed by the loop variable stay in registers

// A tile has six rows by one vector or two, so at most twelve sums; 16 registers hold them and the operands. With two
// vectors, a step takes eight loads for twelve products and is limited by the products; with one vector it is limited
// by the loads.
constexpr int tile = 6;

// The lanes are `vectors` registers of `bytes` bytes each.
template <class A, int bytes, int vectors>
TP_INLINE void accumulate(int64_t rows, const A* a, const int64_t* from, int64_t depth, const int64_t* off, const A* b,
                          bool fresh, A* c, const int64_t* to) {
  typedef A Vector __attribute__((vector_size(bytes), aligned(sizeof(A)), may_alias));
  constexpr int one = bytes / int(sizeof(A)), lanes = vectors * one;
  A spare[lanes] = {};  // target of the rows that the last tile lacks
  for (int64_t i = 0; i < rows; i += tile) {
    const A* source[tile];
    Vector* target[tile];
    Vector sum[tile][vectors];
    TP_UNROLL for (int r = 0; r < tile; ++r) {
      const bool exists = i + r < rows;
      source[r] = a + from[exists ? i + r : i];
      target[r] = reinterpret_cast<Vector*>(exists ? c + to[i + r] : spare);
      TP_UNROLL for (int v = 0; v < vectors; ++v) sum[r][v] = fresh ? Vector{} : target[r][v];
    }
    const Vector* right = reinterpret_cast<const Vector*>(b);
    for (int64_t k = 0; k < depth; ++k, right += vectors) {
      const int64_t at = off[k];
      TP_UNROLL for (int r = 0; r < tile; ++r) {
        TP_UNROLL for (int v = 0; v < vectors; ++v) sum[r][v] += source[r][at] * right[v];
      }
    }
    TP_UNROLL for (int r = 0; r < tile; ++r) { TP_UNROLL for (int v = 0; v < vectors; ++v) target[r][v] = sum[r][v]; }
  }
}

#define TP_ACCUMULATE(name, attribute, bytes, vectors)                                                              \
  template <class A>                                                                                                \
  attribute void name(int64_t rows, const A* a, const int64_t* from, int64_t depth, const int64_t* off, const A* b, \
                      bool fresh, A* c, const int64_t* to) {                                                        \
    accumulate<A, bytes, vectors>(rows, a, from, depth, off, b, fresh, c, to);                                      \
  }
TP_ACCUMULATE(baseline, , 16, 2)
#ifdef TP_X86
TP_ACCUMULATE(avx2, __attribute__((target("avx2,fma"))), 32, 1)
TP_ACCUMULATE(avx2_wide, __attribute__((target("avx2,fma"))), 32, 2)
TP_ACCUMULATE(avx512, __attribute__((target("avx512f,avx2,fma"))), 64, 1)
TP_ACCUMULATE(avx512_wide, __attribute__((target("avx512f,avx2,fma"))), 64, 2)
#endif

}  // namespace

template <class A>
Accumulate<A> accumulate_for(int64_t columns) {
  constexpr int64_t one = 32 / int64_t(sizeof(A)), two = 2 * one, four = 4 * one;
#ifdef TP_X86
  static const bool has_avx512 = __builtin_cpu_supports("avx512f"),
                    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  // A kernel twice as wide takes at least a seventh less time for the same number of lanes, so it pays even if an
  // eighth of its lanes are empty.
  const auto pays = [=](int64_t lanes) {
    return 7 * ceil_div(columns, lanes) * lanes <= 8 * ceil_div(columns, lanes / 2) * (lanes / 2);
  };
  if (has_avx512 && columns > one) {
    if (pays(four)) return {four, &avx512_wide<A>};
    return {two, &avx512<A>};
  }
  if (has_avx2 && pays(two)) return {two, &avx2_wide<A>};
  if (has_avx2) return {one, &avx2<A>};
#endif
  return {one, &baseline<A>};
}

template Accumulate<float> accumulate_for(int64_t);
template Accumulate<double> accumulate_for(int64_t);

}  // namespace tp::conv
