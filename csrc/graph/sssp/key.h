// Distances as integers: the bits of non-negative floats have the same order as the floats.
#pragma once
#include <cstring>

#include "graph/sssp/sssp.h"

namespace tp::sssp {

template <class T>
using Key = typename std::conditional<sizeof(T) == 4, uint32_t, uint64_t>::type;

template <class T>
TP_HD Key<T> key_of(T distance) {
  Key<T> key;
  memcpy(&key, &distance, sizeof(T));
  return key;
}

template <class T>
TP_HD T distance_of(Key<T> key) {
  T distance;
  memcpy(&distance, &key, sizeof(T));
  return distance;
}

template <class T>
constexpr Key<T> unreached = sizeof(T) == 4 ? Key<T>(0x7f800000) : Key<T>(0x7ff0000000000000);  // infinity

}  // namespace tp::sssp
