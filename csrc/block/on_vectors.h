// Host loops on the widest vector instructions of the processor, chosen at run time, so that one binary serves all.
#pragma once

namespace tp {

#if defined(__x86_64__) && defined(__GNUC__)
#define TP_INDEPENDENT _Pragma("GCC ivdep")  // the arrays of the loop below do not overlap

namespace detail {
template <class Loops>
__attribute__((target("avx2,fma,f16c"), flatten)) void on_avx2(Loops loops) {
  loops();
}
template <class Loops>
__attribute__((noinline, flatten)) void on_any(Loops loops) {
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
#else
#define TP_INDEPENDENT

template <class Loops>
void on_vectors(Loops loops) {
  loops();
}
#endif

}  // namespace tp
