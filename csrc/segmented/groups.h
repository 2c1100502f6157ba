// Reduction of rows by an index per row, on the host and without a sort: rows of the same index are a group, wherever
// they stand.
//
// The rows are cut into chunks, as many as leave their tables of partial results small beside the rows themselves, and
// the tables are joined in order. The cut depends on the sizes alone, so the result has the same bits on any number of
// threads. Where groups are nearly as many as rows there is one chunk, and one thread.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

struct Groups {
  Args args;          // step, offsets and segments are not read; op is one of a reduction
  const void* index;  // [n], int64 or int32
  bool long_index;
  int64_t groups;
};

// Whether every index lay in 0 to groups - 1. Rows of others are left out.
bool reduce_groups(const Groups&, Context&);

}  // namespace tp::segmented
