// The kernels of accumulate.h for each width of vector registers (16, 32 and 64 bytes), of which the processor's widest
// is chosen at run time. A tile of sums stays in registers while the kernel goes along the inner dimension.
#include "conv/accumulate.h"

#include "core/macros.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define TP_X86 1
#define TP_IN_REGISTER(x) asm("" : "+v"(x))  // so that it is loaded once, and not by every instruction that uses it
#else
#define TP_IN_REGISTER(x)
#endif

namespace tp::conv {
namespace {

#define TP_INLINE __attribute__((always_inline)) inline
#define TP_UNROLL _Pragma("GCC unroll 16")  // so that arrays indexed by the loop variable stay in registers

// Where there are 16 registers, a tile has at most twelve sums, so that they hold the operands, too. With six rows by
// two vectors, a step takes eight loads for twelve products and is limited by the products; with one vector it is
// limited by the loads, and by the time until a sum is ready for the next product. There are 32 registers of 64 bytes,
// so there eight rows share two loads, or ten share one.

// The lanes are `vectors` registers of `bytes` bytes each. The table moves b if `shifted`, otherwise a. The last rows
// go to a tile of half the size if they fit; otherwise the first of them stands for those that their tile lacks.
template <class A, int bytes, int tile, int vectors, bool shifted>
TP_INLINE void accumulate(int64_t rows, const A* a, const int64_t* from, int64_t depth, const int64_t* off, const A* b,
                          const A* start, A* c, const int64_t* to) {
  typedef A Vector __attribute__((vector_size(bytes), aligned(sizeof(A)), may_alias));
  constexpr int one = bytes / int(sizeof(A)), lanes = vectors * one;
  A spare[lanes] = {};  // target of the rows that the last tile lacks
  for (int64_t i = 0; i < rows; i += tile) {
    if constexpr (tile > 1) {
      if (rows - i <= tile / 2) {
        const A* const rest = shifted && start ? start + i : start;
        return accumulate<A, bytes, tile / 2, vectors, shifted>(rows - i, a, from + i, depth, off, b, rest, c, to + i);
      }
    }
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
      const Vector* from_b = reinterpret_cast<const Vector*>(b + (shifted ? off[k] : k * lanes));
      Vector right[vectors];
      TP_UNROLL for (int v = 0; v < vectors; ++v) {
        right[v] = from_b[v];
        if constexpr (bytes == 64 || (tile + 1) * vectors < 16) TP_IN_REGISTER(right[v]);
      }
      TP_UNROLL for (int r = 0; r < tile; ++r) {
        TP_UNROLL for (int v = 0; v < vectors; ++v) sum[r][v] += source[r][at] * right[v];
      }
    }
    TP_UNROLL for (int r = 0; r < tile; ++r) { TP_UNROLL for (int v = 0; v < vectors; ++v) target[r][v] = sum[r][v]; }
  }
}

template <class A, int bytes, int tile, int tile_shifts>
TP_INLINE void correlate(int64_t rows, const A* a, int64_t length, int64_t shifts, const int64_t* off, const A* b,
                         A* sums) {
  typedef A Vector __attribute__((vector_size(bytes), aligned(sizeof(A)), may_alias));
  constexpr int lanes = bytes / int(sizeof(A));
  A spare[lanes];  // target of the sums that the last tiles lack
  for (int64_t i = 0; i < rows; i += tile) {
    for (int64_t k = 0; k < shifts; k += tile_shifts) {
      const A *left[tile], *right[tile_shifts];
      Vector *target[tile][tile_shifts], sum[tile][tile_shifts];
      TP_UNROLL for (int s = 0; s < tile_shifts; ++s) right[s] = b + off[k + s < shifts ? k + s : k];
      TP_UNROLL for (int r = 0; r < tile; ++r) {
        left[r] = a + (i + r < rows ? i + r : i) * length;
        TP_UNROLL for (int s = 0; s < tile_shifts; ++s) {
          const bool exists = i + r < rows && k + s < shifts;
          target[r][s] = reinterpret_cast<Vector*>(exists ? sums + ((i + r) * shifts + k + s) * lanes : spare);
          sum[r][s] = *target[r][s];
        }
      }
      for (int64_t j = 0; j < length; j += lanes) {
        Vector y[tile];
        TP_UNROLL for (int r = 0; r < tile; ++r) y[r] = *reinterpret_cast<const Vector*>(left[r] + j);
        TP_UNROLL for (int s = 0; s < tile_shifts; ++s) {
          Vector x = *reinterpret_cast<const Vector*>(right[s] + j);
          TP_IN_REGISTER(x);
          TP_UNROLL for (int r = 0; r < tile; ++r) sum[r][s] += y[r] * x;
        }
      }
      TP_UNROLL for (int r = 0; r < tile; ++r) {
        TP_UNROLL for (int s = 0; s < tile_shifts; ++s) * target[r][s] = sum[r][s];
      }
    }
  }
}

// name<A, tile, vectors, shifted> and name_correlate<A, tile, tile_shifts>: the kernels for one width of registers.
#define TP_ACCUMULATE(name, attribute, bytes)                                                                       \
  template <class A, int tile, int vectors, bool shifted>                                                           \
  attribute void name(int64_t rows, const A* a, const int64_t* from, int64_t depth, const int64_t* off, const A* b, \
                      const A* start, A* c, const int64_t* to) {                                                    \
    accumulate<A, bytes, tile, vectors, shifted>(rows, a, from, depth, off, b, start, c, to);                       \
  }                                                                                                                 \
  template <class A, int tile, int tile_shifts>                                                                     \
  attribute void name##_correlate(int64_t rows, const A* a, int64_t length, int64_t shifts, const int64_t* off,     \
                                  const A* b, A* sums) {                                                            \
    correlate<A, bytes, tile, tile_shifts>(rows, a, length, shifts, off, b, sums);                                  \
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

template <class A, int tile, int tile_shifts>
Correlate<A> correlate_tiles(double rate) {
#ifdef TP_X86
  if (has_avx512()) return {tile, tile_shifts, 64 / int64_t(sizeof(A)), rate, &avx512_correlate<A, tile, tile_shifts>};
  if (has_avx2()) return {tile, tile_shifts, 32 / int64_t(sizeof(A)), rate, &avx2_correlate<A, tile, tile_shifts>};
#endif
  return {tile, tile_shifts, 16 / int64_t(sizeof(A)), rate, &baseline_correlate<A, tile, tile_shifts>};
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
    if (pays(four)) return kernel<A>(8, 2, 64, 1, &avx512<A, 8, 2, false>);
    return kernel<A>(10, 1, 64, 1, &avx512<A, 10, 1, false>);
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

template <class A>
Correlate<A> correlate_for(int64_t rows) {
  return rows == 1 ? correlate_tiles<A, 1, 9>(0.5) : correlate_tiles<A, 3, 4>(1);
}

template Accumulate<float> accumulate_for(int64_t);
template Accumulate<double> accumulate_for(int64_t);
template Accumulate<float> shifted_for(int64_t);
template Accumulate<double> shifted_for(int64_t);
template Correlate<float> correlate_for(int64_t);
template Correlate<double> correlate_for(int64_t);

}  // namespace tp::conv
