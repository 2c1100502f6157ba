// Host loops on the widest vector instructions of the processor, chosen at run time, so that one binary serves all.
#pragma once
#include <type_traits>

namespace tp {

#if defined(__x86_64__) && defined(__GNUC__)
#define TP_INDEPENDENT _Pragma("GCC ivdep")  // the arrays of the loop below do not overlap

namespace detail {
template <class Loops>
__attribute__((target("avx2,fma,f16c"), flatten)) void on_avx2(Loops loops) {
  loops();
}
template <class Loops>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"), flatten)) void on_avx512(Loops loops) {
  loops();
}
// Not flattened: the few processors without AVX2 are not worth up to a sixth of a file's code.
template <class Loops>
__attribute__((noinline)) void on_any(Loops loops) {
  loops();
}
}  // namespace detail

// Runs loops(). loops() and everything that it calls is compiled for AVX2 and FMA and, for processors without them, for
// the baseline. It must capture by value. With FMA, a product and a sum may be rounded together, once.
template <class Loops>
void on_vectors(Loops loops) {
  static const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  has_avx2 ? detail::on_avx2(loops) : detail::on_any(loops);
}

// The same for loops that name their vectors: they are called with the size in bytes of the widest ones, a constant.
template <class Loops>
void on_widest_vectors(Loops loops) {
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) return detail::on_avx512([=] { loops(std::integral_constant<int, 64>{}); });
  on_vectors([=] { loops(std::integral_constant<int, 32>{}); });
}
#else
#define TP_INDEPENDENT

template <class Loops>
void on_vectors(Loops loops) {
  loops();
}
template <class Loops>
void on_widest_vectors(Loops loops) {
  loops(std::integral_constant<int, 32>{});
}
#endif

}  // namespace tp
