// A thread's `width` consecutive elements of an array, by accesses of up to 16 bytes where the addresses allow it.
#pragma once
#include "core/macros.h"

namespace tp::block {

template <class T, int width>
struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Vector {
  T v[width];
};

// Elements p to p + width - 1 of the `count` elements at `data`, counted from the far end where `reverse`. Beyond the
// end nothing is touched. `aligned`: every full vector lies on its own alignment.
template <int width, class T>
TP_DEVICE Vector<T, width> load(const T* data, int64_t p, int64_t count, bool reverse, bool aligned) {
  Vector<T, width> x;
  if (aligned && p + width <= count) {
    x = *reinterpret_cast<const Vector<T, width>*>(data + (reverse ? count - width - p : p));
    if (reverse) {
#pragma unroll
      for (int i = 0; i < width / 2; ++i) {
        const T held = x.v[i];
        x.v[i] = x.v[width - 1 - i];
        x.v[width - 1 - i] = held;
      }
    }
    return x;
  }
#pragma unroll
  for (int i = 0; i < width; ++i) {
    if (p + i < count) x.v[i] = data[reverse ? count - 1 - p - i : p + i];
  }
  return x;
}

template <int width, class T>
TP_DEVICE void store(T* data, int64_t p, int64_t count, bool reverse, bool aligned, Vector<T, width> x) {
  if (aligned && p + width <= count) {
    if (reverse) {
#pragma unroll
      for (int i = 0; i < width / 2; ++i) {
        const T held = x.v[i];
        x.v[i] = x.v[width - 1 - i];
        x.v[width - 1 - i] = held;
      }
    }
    *reinterpret_cast<Vector<T, width>*>(data + (reverse ? count - width - p : p)) = x;
    return;
  }
#pragma unroll
  for (int i = 0; i < width; ++i) {
    if (p + i < count) data[reverse ? count - 1 - p - i : p + i] = x.v[i];
  }
}

template <int width, class T>
bool is_aligned(const T* data, int64_t count, bool reverse) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Vector<T, width>) == 0 && (!reverse || count % width == 0);
}

}  // namespace tp::block
