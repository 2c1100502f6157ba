// Lines of Matrix Market files, as numbers.
#pragma once
#include <cstdint>
#include <string_view>

#include "core/macros.h"

namespace tp::sparse {

// Destinations of the parsed entries: arrays with room for one entry per line.
template <class Value>
struct Entries {
  int64_t *row, *col;  // as written in the file; null if lines hold values only
  Value* values;
  int64_t* lines;  // the number of an entry's line
  bool valued;     // whether lines hold values; if not, all values are 1
};

// Parses whole lines, each shorter than `longest` bytes; `first` is the number of the first line. Returns the number of
// entries, or -1 if anything about a line is unusual or wrong.
template <class Value>
TP_EXPORT int64_t parse_lines(std::string_view text, int64_t first, size_t longest, const Entries<Value>& to);

}  // namespace tp::sparse
