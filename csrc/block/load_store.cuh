// A thread's `width` consecutive elements of an array, accessed 16 bytes at a time where addresses allow it.
//
// Positions may count from the end of the array. An access then finds its elements in reverse order, and flip()
// restores the order.
#pragma once
#include <cstring>
#include <type_traits>

#include "core/macros.h"

namespace tp::block {

template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Vector {
  T v[width];

  TP_DEVICE void flip() {
#pragma unroll
    for (int i = 0; i < width / 2; ++i) {
      const T held = v[i];
      v[i] = v[width - 1 - i];
      v[width - 1 - i] = held;
    }
  }
};

// Stores a vector by one access. In large kernels, the compiler splits the assignment of a vector whose elements have
// just been computed.
template <class T, int width>
TP_DEVICE void store_whole(Vector<T, width>* to, const Vector<T, width>& x) {
  static_assert(sizeof(x) <= 16, "one access takes at most 16 bytes");
  unsigned w[4];
  memcpy(w, &x, sizeof(x));
  if constexpr (sizeof(x) == 16) {
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
  } else if constexpr (sizeof(x) == 8) {
    asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    *to = x;
  }
}

// Loads a vector that is read once, past the L1 cache, in which it would only displace others. No launch may write the
// array meanwhile.
template <class V>
TP_DEVICE V load_once(const V* from) {
  unsigned w[4];
  if constexpr (sizeof(V) == 16) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(from));
  } else if constexpr (sizeof(V) == 8) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(from));
  } else {
    return *from;
  }
  V x;
  memcpy(&x, w, sizeof(V));
  return x;
}

// An array of `count` elements, whose positions count from its end if `reverse`. `aligned` says that every full vector
// is aligned to its size.
template <class T, int width>
struct Vectors {
  T* data;
  int64_t count;
  bool reverse, aligned;
  using V = Vector<typename std::remove_const<T>::type, width>;

  Vectors(T* data, int64_t count, bool reverse)
      : data(data),
        count(count),
        reverse(reverse),
        aligned(reinterpret_cast<uintptr_t>(data) % alignof(V) == 0 && (!reverse || count % width == 0)) {}

  // The full, aligned vector at position p, in the order of memory.
  TP_DEVICE auto& at(int64_t p) const {
    using Access = typename std::conditional<std::is_const<T>::value, const V, V>::type;
    return *reinterpret_cast<Access*>(data + (reverse ? count - width - p : p));
  }
  // The elements from position p on, in the order of positions. Elements beyond the end of the array are `filler`.
  TP_DEVICE V load(int64_t p, T filler) const {
    V x;
#pragma unroll
    for (int i = 0; i < width; ++i) x.v[i] = p + i < count ? data[reverse ? count - 1 - p - i : p + i] : filler;
    return x;
  }
  TP_DEVICE void store(int64_t p, const V& x) const {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      if (p + i < count) data[reverse ? count - 1 - p - i : p + i] = x.v[i];
    }
  }
};

}  // namespace tp::block
