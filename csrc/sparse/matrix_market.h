// Lines of Matrix Market files, as numbers.
#pragma once
#include <cstdint>
#include <string_view>

namespace tp::sparse {

// Where the entries of lines go: arrays with room for one per line.
template <class Value>
struct Entries {
  int64_t *row, *col;  // as written; null where lines hold values only
  Value* values;
  int64_t* lines;  // the number of an entry's line
  bool valued;     // else all values are 1
};

// Parses whole lines, each of less than `longest` bytes; `first` is the number of the first. Returns how many entries
// they hold, and -1 if anything about a line is unusual or wrong.
template <class Value>
int64_t parse_lines(std::string_view text, int64_t first, size_t longest, const Entries<Value>& to);

}  // namespace tp::sparse
