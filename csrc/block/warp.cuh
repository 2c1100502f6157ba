// Warp shuffles of values of any size, by 4-byte words, the warp scan and reduction built on them, and forget().
#pragma once
#include <cstring>

#include "core/macros.h"

namespace tp::block {

constexpr int warp_size = 32;

namespace detail {
template <class T, class Shuffle>
TP_DEVICE T by_words(T v, Shuffle shuffle) {
  constexpr int words = int(sizeof(T) + 3) / 4;
  unsigned w[words] = {};
  memcpy(w, &v, sizeof(T));
#pragma unroll
  for (int i = 0; i < words; ++i) w[i] = shuffle(w[i]);
  memcpy(&v, w, sizeof(T));
  return v;
}
}  // namespace detail

// Keeps the compiler from holding values derived from x in registers, where computing them again costs less than
// registers do.
template <class T>
TP_DEVICE void forget(T& x) {
  x = detail::by_words(x, [](unsigned w) {
    asm volatile("" : "+r"(w));
    return w;
  });
}

// Returns the value of the lane that is `distance` lower. Lanes without such a lane keep their own value.
template <class T>
TP_DEVICE T shuffle_up(T v, int distance) {
  return detail::by_words(v, [=](unsigned w) { return __shfl_up_sync(~0u, w, unsigned(distance)); });
}

// Returns the value of the lane that is `distance` higher. Lanes without such a lane keep their own value.
template <class T>
TP_DEVICE T shuffle_down(T v, int distance) {
  return detail::by_words(v, [=](unsigned w) { return __shfl_down_sync(~0u, w, unsigned(distance)); });
}

// Returns the value of the lane whose number differs from this one's in the bits of `mask`.
template <class T>
TP_DEVICE T shuffle_xor(T v, int mask) {
  return detail::by_words(v, [=](unsigned w) { return __shfl_xor_sync(~0u, w, mask); });
}

template <class T>
TP_DEVICE T broadcast(T v, int lane) {
  return detail::by_words(v, [=](unsigned w) { return __shfl_sync(~0u, w, lane); });
}

// Kogge-Stone over the lanes of a warp, in registers: lane i gets the combination of lanes 0 to i.
template <class M>
TP_DEVICE typename M::Acc inclusive_scan(typename M::Acc v) {
  const int lane = int(threadIdx.x) % warp_size;
#pragma unroll
  for (int stride = 1; stride < warp_size; stride *= 2) {
    const auto left = shuffle_up(v, stride);
    if (lane >= stride) v = M::combine(left, v);
  }
  return v;
}

// Lane 0 gets the combination of all lanes, in order, by a fixed tree.
template <class M>
TP_DEVICE typename M::Acc reduce(typename M::Acc v) {
#pragma unroll
  for (int stride = 1; stride < warp_size; stride *= 2) v = M::combine(v, shuffle_down(v, stride));
  return v;
}

}  // namespace tp::block
