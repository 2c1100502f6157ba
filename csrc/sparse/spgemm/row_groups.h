// The groups in which hash_per_row launches rows of C: most rows are short and take little shared memory.
#pragma once
#include <iterator>

#include "core/macros.h"

namespace tp::sparse {

// By how many products, or columns, a row may have; and the number of threads for one row.
struct Group {
  int room, threads;
};
constexpr Group groups[] = {{64, 64}, {256, 64}, {1024, 64}, {2048, 128}};
constexpr int group_count = int(std::size(groups));
constexpr int most_room = groups[group_count - 1].room;

// Many rows that are shorter share one block (short_rows.h). On an H200, squares of matrices whose rows have 81
// products take 0.83 of the time in groups, and of those with 121, 1.14.
constexpr int most_short = 96;

// The group of a row with n products, or columns; group_count if it is too long for all of them.
TP_HD inline int group_of(int64_t n) {
  return n <= 64 ? 0 : n <= 256 ? 1 : n <= 1024 ? 2 : n <= most_room ? 3 : group_count;
}

// Tells whether so many entries of A and products are a short row.
TP_HD inline bool is_short(int64_t entries, int64_t products) {
  return entries <= most_short && products <= most_short;
}

}  // namespace tp::sparse
