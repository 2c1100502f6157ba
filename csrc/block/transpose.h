// Transposes a matrix of half types, on vectors of 16 bytes, which every processor that has vectors has.
#pragma once
#include <utility>

#include "core/dtype.h"

namespace tp {

#ifdef __GNUC__
namespace detail {

// Eight vectors of eight elements.
struct Square {
  typedef uint16_t V __attribute__((vector_size(16), aligned(2), may_alias));
  static constexpr int side = 8;
  V x[side];

  template <int... from>
  static V select(V a, V b, std::integer_sequence<int, from...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, from...);
#else
    return __builtin_shuffle(a, b, V{from...});
#endif
  }
  // Interleaves the first four vectors with the last four, element by element. If three bits count vectors and three
  // more the elements of a vector, this makes the first of the six bits the last one.
  void interleave() {
    const Square from = *this;
    using Low = std::integer_sequence<int, 0, 8, 1, 9, 2, 10, 3, 11>;
    using High = std::integer_sequence<int, 4, 12, 5, 13, 6, 14, 7, 15>;
#pragma GCC unroll 4
    for (int i = 0; i < side / 2; ++i) {
      x[2 * i] = select(from.x[i], from.x[i + side / 2], Low{});
      x[2 * i + 1] = select(from.x[i], from.x[i + side / 2], High{});
    }
  }
  // After three times, vectors and elements have exchanged their bits.
  static void transpose(const void* from, int64_t pitch, void* to, int64_t to_pitch) {
    Square s;
#pragma GCC unroll 8
    for (int i = 0; i < side; ++i) s.x[i] = *reinterpret_cast<const V*>(static_cast<const uint16_t*>(from) + i * pitch);
    s.interleave();
    s.interleave();
    s.interleave();
#pragma GCC unroll 8
    for (int i = 0; i < side; ++i) *reinterpret_cast<V*>(static_cast<uint16_t*>(to) + i * to_pitch) = s.x[i];
  }
};

}  // namespace detail
#endif

// to[c * rows + r] = from[r * pitch + c]
template <class T>
void transpose(int64_t rows, int64_t columns, const T* from, int64_t pitch, T* to) {
  static_assert(sizeof(T) == 2);
#ifdef __GNUC__
  constexpr int64_t side = detail::Square::side;
  if (rows >= side && columns >= side) {
    // If squares do not fit, the last ones overlap others.
    for (int64_t i = 0; i < rows; i += side) {
      for (int64_t j = 0; j < columns; j += side) {
        const int64_t r = tp::min(i, rows - side), c = tp::min(j, columns - side);
        detail::Square::transpose(from + r * pitch + c, pitch, to + c * rows + r, rows);
      }
    }
    return;
  }
#endif
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) to[c * rows + r] = from[r * pitch + c];
  }
}

}  // namespace tp
