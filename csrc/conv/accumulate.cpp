#include "conv/accumulate.h"

#include "core/macros.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define TP_X86 1
#endif

namespace tp::conv {
namespace {

#define TP_INLINE __attribute__((always_inline)) inline
#define TP_UNROLL _Pragma("GCC unroll 16")  // so that arrays indexed by the loop variable stay in registers

// A tile has at most twelve sums; 16 registers hold them and the operands. With six rows by two vectors, a step takes
// eight loads for twelve products and is limited by the products; with one vector it is limited by the loads.

// The lanes are `vectors` registers of `bytes` bytes each. The table moves b if `shifted`, otherwise a.
template <class A, int bytes, int tile, int vectors, bool shifted>
TP_INLINE void accumulate(int64_t rows, const A* a, const int64_t* from, int64_t depth, const int64_t* off, const A* b,
                          const A* start, A* c, const int64_t* to) {
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
      TP_UNROLL for (int v = 0; v < vectors; ++v) {
        if (!start) {
          sum[r][v] = target[r][v];
        } else if (shifted) {
          sum[r][v] = Vector{} + start[exists ? i + r : i];
        } else {
          sum[r][v] = reinterpret_cast<const Vector*>(start)[v];
        }
      }
    }
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t at = shifted ? k : off[k];
      const Vector* right = reinterpret_cast<const Vector*>(b + (shifted ? off[k] : k * lanes));
      TP_UNROLL for (int r = 0; r < tile; ++r) {
        TP_UNROLL for (int v = 0; v < vectors; ++v) sum[r][v] += source[r][at] * right[v];
      }
    }
    TP_UNROLL for (int r = 0; r < tile; ++r) { TP_UNROLL for (int v = 0; v < vectors; ++v) target[r][v] = sum[r][v]; }
  }
}

// name<A, tile, vectors, shifted>: the kernel for one width of registers.
#define TP_ACCUMULATE(name, attribute, bytes)                                                                       \
  template <class A, int tile, int vectors, bool shifted>                                                           \
  attribute void name(int64_t rows, const A* a, const int64_t* from, int64_t depth, const int64_t* off, const A* b, \
                      const A* start, A* c, const int64_t* to) {                                                    \
    accumulate<A, bytes, tile, vectors, shifted>(rows, a, from, depth, off, b, start, c, to);                       \
  }
TP_ACCUMULATE(baseline, , 16)
#ifdef TP_X86
TP_ACCUMULATE(avx2, __attribute__((target("avx2,fma"))), 32)
TP_ACCUMULATE(avx512, __attribute__((target("avx512f,avx2,fma"))), 64)

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
}
#endif

// A kernel for the registers of `bytes` bytes of `run`.
template <class A>
Accumulate<A> kernel(int64_t tile, int64_t vectors, int64_t bytes, double rate, decltype(Accumulate<A>::run) run) {
  return {tile, vectors * bytes / int64_t(sizeof(A)), rate, run};
}

template <class A, int tile, int vectors>
Accumulate<A> shifted(double rate) {
#ifdef TP_X86
  if (has_avx512()) return kernel<A>(tile, vectors, 64, rate, &avx512<A, tile, vectors, true>);
  if (has_avx2()) return kernel<A>(tile, vectors, 32, rate, &avx2<A, tile, vectors, true>);
#endif
  return kernel<A>(tile, vectors, 16, rate, &baseline<A, tile, vectors, true>);
}

}  // namespace

template <class A>
Accumulate<A> accumulate_for(int64_t columns) {
  constexpr int tile = 6;
  constexpr int64_t one = 32 / int64_t(sizeof(A)), two = 2 * one, four = 4 * one;
#ifdef TP_X86
  // A kernel twice as wide takes at least a seventh less time for the same number of lanes, so it pays even if an
  // eighth of its lanes are empty.
  const auto pays = [=](int64_t lanes) {
    return 7 * ceil_div(columns, lanes) * lanes <= 8 * ceil_div(columns, lanes / 2) * (lanes / 2);
  };
  if (has_avx512() && columns > one) {
    if (pays(four)) return kernel<A>(tile, 2, 64, 1, &avx512<A, tile, 2, false>);
    return kernel<A>(tile, 1, 64, 1, &avx512<A, tile, 1, false>);
  }
  if (has_avx2() && pays(two)) return kernel<A>(tile, 2, 32, 1, &avx2<A, tile, 2, false>);
  if (has_avx2()) return kernel<A>(tile, 1, 32, 0.75, &avx2<A, tile, 1, false>);
#endif
  return kernel<A>(tile, 2, 16, 1, &baseline<A, tile, 2, false>);
}

template <class A>
Accumulate<A> shifted_for(int64_t rows) {
  const auto empty = [=](int64_t tile) { return ceil_div(rows, tile) * tile - rows; };
  if (rows == 1) return shifted<A, 1, 8>(0.5);  // eight loads for eight products
  if (empty(3) < min(empty(4), empty(6))) return shifted<A, 3, 4>(1);
  return empty(4) < empty(6) ? shifted<A, 4, 3>(1) : shifted<A, 6, 2>(1);
}

template Accumulate<float> accumulate_for(int64_t);
template Accumulate<double> accumulate_for(int64_t);
template Accumulate<float> shifted_for(int64_t);
template Accumulate<double> shifted_for(int64_t);

}  // namespace tp::conv
