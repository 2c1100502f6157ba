// Reduction of rows by an index per row, on the host and without a sort: all rows with the same index are a group,
// wherever they are.
//
// The rows are divided into chunks, each with a table of partial results, and the tables are combined in order. The
// number of chunks is limited so that the tables are small compared with the rows. It depends only on the sizes, so any
// number of threads gives the same bits. If there are nearly as many groups as rows, there is one chunk, and one
// thread.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

struct Groups {
  Args args;          // step, offsets and segments are not used; op is an operator of reductions
  const void* index;  // [n], int64 or int32
  bool long_index;
  int64_t groups;
};

// Returns whether every index is in 0 to groups - 1. Rows with other indices are left out.
bool reduce_groups(const Groups&, Context&);

}  // namespace tp::segmented
