// Transposes a matrix on the host. Elements of two or four bytes go through vectors of 16 bytes, which every processor
// that has vectors has, or of as many as the caller names.
#pragma once
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/dtype.h"

namespace tp {

#ifdef __GNUC__
#ifdef __CUDACC__
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675  // nvcc passes GCC's pragmas on, but does not know them
#endif
namespace detail {

// As many vectors of so many bytes as each has elements.
template <class Word, int bytes>
struct Square {
  typedef Word V __attribute__((vector_size(bytes), aligned(alignof(Word)), may_alias));
  static constexpr int side = bytes / int(sizeof(Word));
  V x[side];

  // Elements first, side + first, first + 1, side + first + 1, ... of two vectors that follow each other.
  template <int first, int... k>
  static V mixed(V a, V b, std::integer_sequence<int, k...>) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, (k % 2 * side + k / 2 + first)...);
#else
    return __builtin_shuffle(a, b, V{(k % 2 * side + k / 2 + first)...});
#endif
  }
  // Interleaves the first half of the vectors with the other half, element by element. If some bits count vectors and
  // as many more the elements of a vector, this makes the first of all bits the last one.
  void interleave() {
    const Square from = *this;
    using All = std::make_integer_sequence<int, side>;
#pragma GCC unroll 16
    for (int i = 0; i < side / 2; ++i) {
      x[2 * i] = mixed<0>(from.x[i], from.x[i + side / 2], All{});
      x[2 * i + 1] = mixed<side / 2>(from.x[i], from.x[i + side / 2], All{});
    }
  }
  // After as many times as there are bits, vectors and elements have exchanged theirs.
  static void transpose(const void* from, int64_t pitch, void* to, int64_t to_pitch) {
    Square s;
#pragma GCC unroll 32
    for (int i = 0; i < side; ++i) s.x[i] = *reinterpret_cast<const V*>(static_cast<const Word*>(from) + i * pitch);
#pragma GCC unroll 5
    for (int k = 1; k < side; k *= 2) s.interleave();
#pragma GCC unroll 32
    for (int i = 0; i < side; ++i) *reinterpret_cast<V*>(static_cast<Word*>(to) + i * to_pitch) = s.x[i];
  }
};

template <class In, class Out>
constexpr bool has_squares = std::is_same<In, Out>::value && (sizeof(In) == 2 || sizeof(In) == 4);

}  // namespace detail
#ifdef __CUDACC__
#pragma nv_diagnostic pop
#endif
#endif

// to[c * to_pitch + r] = from[r * pitch + c] for r < rows and c < columns.
template <int bytes = 16, class In, class Out>
void transpose(int64_t rows, int64_t columns, const In* from, int64_t pitch, Out* to, int64_t to_pitch) {
#ifdef __GNUC__
  if constexpr (detail::has_squares<In, Out>) {
    using Square = detail::Square<std::conditional_t<sizeof(In) == 2, uint16_t, uint32_t>, bytes>;
    constexpr int64_t side = Square::side;
    if (rows >= side && columns >= side) {
      // If squares do not fit, the last ones overlap others. The shorter side comes first, so that what shares cache
      // lines is read soon.
      const auto square = [=](int64_t i, int64_t j) {
        const int64_t r = tp::min(i, rows - side), c = tp::min(j, columns - side);
        Square::transpose(from + r * pitch + c, pitch, to + c * to_pitch + r, to_pitch);
      };
      if (rows > columns) {
        for (int64_t i = 0; i < rows; i += side) {
          for (int64_t j = 0; j < columns; j += side) square(i, j);
        }
      } else {
        for (int64_t j = 0; j < columns; j += side) {
          for (int64_t i = 0; i < rows; i += side) square(i, j);
        }
      }
      return;
    }
    if constexpr (bytes > 16) return transpose<bytes / 2>(rows, columns, from, pitch, to, to_pitch);
  }
#endif
  // The compiler vectorizes squares of other elements.
  constexpr int64_t side = 4;
  const int64_t whole_rows = rows / side * side, whole_columns = columns / side * side;
  for (int64_t j = 0; j < whole_columns; j += side) {
    for (int64_t i = 0; i < whole_rows; i += side) {
      In square[side][side];
      Out turned[side][side];
      for (int64_t k = 0; k < side; ++k) std::memcpy(square[k], from + (i + k) * pitch + j, sizeof(square[k]));
      for (int64_t k = 0; k < side; ++k) {
        for (int64_t l = 0; l < side; ++l) turned[l][k] = Out(square[k][l]);
      }
      for (int64_t l = 0; l < side; ++l) std::memcpy(to + (j + l) * to_pitch + i, turned[l], sizeof(turned[l]));
    }
    for (int64_t i = whole_rows; i < rows; ++i) {
      for (int64_t l = j; l < j + side; ++l) to[l * to_pitch + i] = Out(from[i * pitch + l]);
    }
  }
  for (int64_t j = whole_columns; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) to[j * to_pitch + i] = Out(from[i * pitch + j]);
  }
}

}  // namespace tp
