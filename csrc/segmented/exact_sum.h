// Sums of floats without rounding, in integers (a superaccumulator, as Kulisch's). Integers may be added in any order,
// so the sum has the same bits whatever the order of the rows.
//
// A finite value is an integer of few digits times a power of two. Exponents are divided into bins of `width`
// consecutive ones, counted down from the greatest that occurs, and a sum has one word of 64 bits per bin. A value is
// added to the word of its bin, shifted by its exponent within the bin; the width is such that the sum of n values does
// not overflow a word. One more word counts infinities and NaN, if there are any. At the end all bins are added up, and
// the sum is rounded once, to the nearest value, or to the even one of two that are equally near.
#pragma once
#include <cstring>

#include "core/op.h"

namespace tp::segmented {

__extension__ using int128 = __int128;
__extension__ using uint128 = unsigned __int128;

// What is known about the values before they are added. Each number is a maximum over the values and starts as 0. An
// exponent is that of the format, which is 1 for subnormal values, too.
struct Extent {
  int most;     // the greatest exponent of values that are not 0, infinite or NaN
  int least;    // likewise Bins::special minus the least exponent
  int special;  // whether a value is infinite or NaN
};

template <class T>
struct Bins {
  static constexpr int digits = std::is_same<T, float>::value ? 24 : std::is_same<T, half>::value ? 11 : 8;
  static constexpr int special = (1 << (8 * int(sizeof(T)) - digits)) - 1;  // the exponent of infinities and NaN
  static constexpr int smallest = 2 - special / 2 - digits;                 // the least positive value is 2^smallest
  static constexpr int64_t most_rows = int64_t(1) << 32;  // of one sum: a half of a word counts infinities

  int width, count = 0, most = 0;
  bool counts_special = false;

  // The number of exponents per bin, so that the magnitude of a sum of n values in one bin is less than 2^63.
  static int width_for(int64_t n) {
    int width = 64 - digits;
    for (int64_t values = 1; values < n && width > 1; values *= 2) --width;
    return tp::min(width, special - 1);
  }
  // The number of words per sum that suffices whatever the values.
  static int most_words(int width) { return (special - 2) / width + 2; }

  TP_HD Bins(int width, const Extent& extent)
      : width(width),
        count(extent.most > 0 ? (extent.most - special + extent.least) / width + 1 : 0),
        most(extent.most),
        counts_special(extent.special != 0),
        reciprocal_(65536 / unsigned(width) + 1) {}

  TP_HD static void extend(Extent& extent, T x) {
    const uint32_t bits = magnitude(x);
    const int exponent = exponent_of(bits);
    if (exponent == special) {
      extent.special = 1;
    } else if (bits != 0) {
      extent.most = tp::max(extent.most, exponent);
      extent.least = tp::max(extent.least, special - exponent);
    }
  }

  TP_HD int words() const { return count + int(counts_special); }

  // The number of the word to which x is added. For 0, which need not be added, it is any word.
  TP_HD int word_of(T x) const {
    const uint32_t bits = magnitude(x);
    const int exponent = exponent_of(bits);
    return exponent == special ? count : bits == 0 ? 0 : bin_of(exponent);
  }
  // What is added to that word.
  TP_HD int64_t operand(T x) const {
    const uint32_t bits = magnitude(x), leading = uint32_t(1) << (digits - 1);
    const int exponent = exponent_of(bits);
    const bool negative = is_negative(x);
    if (bits == 0) return 0;
    if (exponent == special) {
      const int64_t positive_one = 1, negative_one = int64_t(1) << 32;
      return (bits & (leading - 1)) != 0 ? positive_one + negative_one : negative ? negative_one : positive_one;
    }
    const uint32_t integer = bits < leading ? bits : (bits & (leading - 1)) | leading;
    const int shift = (bin_of(exponent) + 1) * width - 1 - (most - exponent);
    const auto shifted = int64_t(uint64_t(integer) << shift);
    return negative ? -shifted : shifted;
  }

  // The sum of which word(0), word(1), ... return the words.
  template <class F>
  TP_HD T sum(F word) const {
    const auto counts = counts_special ? uint64_t(word(count)) : 0;
    if (counts != 0) {
      const float infinity = std::numeric_limits<float>::infinity();
      const bool positive = uint32_t(counts) != 0, negative = counts >> 32 != 0;
      return T(positive && negative ? std::numeric_limits<float>::quiet_NaN() : positive ? infinity : -infinity);
    }
    // Bins are added without loss until the total is so great that those below cannot cancel it: together they are less
    // than 2^64 of its units. So what they add is a carry, and a rest of less than one unit.
    const int128 limit = int128(1) << (126 - width);
    int128 total = 0;
    int bin = 0;
    for (; bin < count && total < limit && -total < limit; ++bin) {
      total = int128(uint128(total) << width) + word(bin);
    }
    int64_t carry = 0;
    bool rest = false;
    for (int b = count - 1; b >= bin; --b) {
      carry += word(b);
      rest |= (carry & ((int64_t(1) << width) - 1)) != 0;
      carry >>= width;
    }
    return rounded(total + carry, rest, most - bin * width + smallest);
  }

 private:
  TP_HD static uint32_t bits_of(T x) {
    std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t> bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static constexpr uint32_t sign = uint32_t(1) << (8 * sizeof(T) - 1);
  TP_HD static uint32_t magnitude(T x) { return bits_of(x) & (sign - 1); }
  TP_HD static bool is_negative(T x) { return (bits_of(x) & sign) != 0; }
  TP_HD static int exponent_of(uint32_t magnitude) { return tp::max(int(magnitude >> (digits - 1)), 1); }
  TP_HD int bin_of(int exponent) const { return int(unsigned(most - exponent) * reciprocal_ >> 16); }

  // (total + e) 2^exponent, rounded, where 0 < e < 1 if there is a rest, else e = 0.
  TP_HD static T rounded(int128 total, bool rest, int exponent) {
    const bool negative = total < 0;
    uint128 magnitude = negative ? ~uint128(total) + uint128(!rest) : uint128(total);
    int length = 0;
    for (int step = 64; step > 0; step /= 2) {
      if (magnitude >> (length + step) != 0) length += step;
    }
    length += magnitude >> length != 0;
    const int dropped = tp::max(tp::max(length - digits, smallest - exponent), 0);
    if (dropped > 0) {
      const uint128 half_way = uint128(1) << 127, below = magnitude << (128 - dropped);
      magnitude >>= dropped;
      magnitude += below > half_way || (below == half_way && (rest || (magnitude & 1) != 0));
    }
    const uint64_t power = uint64_t(1023 + exponent + dropped) << 52;
    double scale;
    memcpy(&scale, &power, sizeof scale);
    const double result = double(int64_t(magnitude)) * scale;  // of at most `digits` digits: exact, unless it overflows
    return T(float(negative ? -result : result));
  }

  unsigned reciprocal_;  // makes division by the width exact for differences of exponents
};

}  // namespace tp::segmented
