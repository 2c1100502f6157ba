// Reduction of rows by an index per row, without a sort: all rows with the same index are a group, wherever they are.
//
// On the host, the rows are divided into chunks, each with a table of partial results, and the tables are combined in
// order. The number of chunks is limited so that the tables are small compared with the rows. It depends only on the
// sizes, so any number of threads gives the same bits. If there are nearly as many groups as rows, there is one chunk,
// and one thread.
//
// CUDA combines rows by atomics, in an order that the hardware decides (segmented/group_atomics.cu). So it takes only
// operators whose result has the same bits in every order; sums of floats are computed exactly, in integers
// (segmented/exact_sum.h), and rounded once.
#pragma once
#include "segmented/segmented.h"

namespace tp::segmented {

struct Groups {
  Args args;          // step, offsets and segments are not used; op is an operator of reductions
  const void* index;  // [n], int64 or int32
  bool long_index;
  int64_t groups;
};

// Whether reduce_groups takes a problem, whose pointers are not used, on a device: on CUDA not the products of floats,
// nor sums of float64, nor the indices of extrema, nor what is computed from these, nor sums of floats if the groups
// are so many that a sort takes less memory or time.
bool can_reduce_groups(const Device&, const Groups&);

// Returns whether every index is in 0 to groups - 1, which CUDA does not find out. Rows with other indices are left
// out.
bool reduce_groups(const Groups&, Context&);

}  // namespace tp::segmented
