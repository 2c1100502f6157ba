#include "sparse/matrix_market.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace tp::sparse {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Parses a decimal integer, with or without a sign, that is short enough to fit. Returns the end of the word, or null.
const char* read(const char* at, const char* end, int64_t& value) {
  constexpr int most_digits = 18;
  const bool minus = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) ++at;
  const char* const digits = at;
  value = 0;
  for (; at < end && is_digit(*at) && at - digits < most_digits; ++at) value = 10 * value + (*at - '0');
  if (at == digits || (at < end && !is_blank(*at))) return nullptr;
  if (minus) value = -value;
  return at;
}

// Parses a decimal number whose exponent follows the letter D at `d`, as Fortran writes doubles. Returns the end of the
// word, or null.
const char* read_fortran(const char* at, const char* d, const char* end, double& value) {
  constexpr ptrdiff_t most = 64;
  const char* const stop = std::find_if(d, end, is_blank);
  if (stop - at > most) return nullptr;
  char word[most];
  char* const word_end = std::copy(at, stop, word);
  word[d - at] = 'e';
  const auto [next, error] = std::from_chars(word, word_end, value);
  return error == std::errc() && next == word_end ? stop : nullptr;
}

// Parses a decimal number that fits, inf or nan. Returns the end of the word, or null.
const char* read(const char* at, const char* end, double& value) {
  if (at < end && *at == '+' && ++at < end && *at == '-') return nullptr;
  const auto [next, error] = std::from_chars(at, end, value);
  if (next < end && (*next == 'd' || *next == 'D')) return read_fortran(at, next, end, value);
  if (error != std::errc() || (next < end && !is_blank(*next)) || next[-1] == ')') return nullptr;  // nan(...)
  return next;
}

const char* skip(const char* at, const char* end) {
  while (at < end && is_blank(*at)) ++at;
  return at;
}

// Parses the line from `at` to `end` into entry k. `found` becomes whether the line holds an entry. Returns false if
// the line is unusual.
template <class Value>
bool parse_line(const char* at, const char* end, const Entries<Value>& to, int64_t k, bool& found) {
  at = skip(at, end);
  found = at < end && *at != '%';
  if (!found) return end - at < 2 || at[1] != '%';  // "%%GraphBLAS type" must not be here
  int64_t i = 0, j = 0;
  Value value = 1;
  if (to.row) {
    at = read(at, end, i);
    if (!at) return false;
    at = read(skip(at, end), end, j);
    if (!at) return false;
    at = skip(at, end);
    to.row[k] = i, to.col[k] = j;
  }
  if (to.valued) {
    at = read(at, end, value);
    if (!at) return false;
  }
  to.values[k] = value;
  return skip(at, end) == end;
}

}  // namespace

template <class Value>
int64_t parse_lines(std::string_view text, int64_t first, size_t longest, const Entries<Value>& to) {
  if (text.find('\0') != text.npos) return -1;
  int64_t k = 0, line = first;
  for (const char *at = text.data(), *const stop = at + text.size(); at < stop; ++line) {
    const char* end = static_cast<const char*>(std::memchr(at, '\n', size_t(stop - at)));
    bool found;
    if (!end || size_t(end - at) >= longest || !parse_line(at, end, to, k, found)) return -1;
    if (found) to.lines[k++] = line;
    at = end + 1;
  }
  return k;
}

template int64_t parse_lines(std::string_view, int64_t, size_t, const Entries<int64_t>&);
template int64_t parse_lines(std::string_view, int64_t, size_t, const Entries<double>&);

}  // namespace tp::sparse
