// Runs of equal elements of a vector: where each run begins, its value, its length, and the number of each element's
// run. No two NaN are equal, and -0.0 equals 0.0.
//
// The host works as compact/threaded.cpp does, in fixed chunks on all threads. Pass 1 records one bit per element,
// which says whether it is a head, that is, differs from the previous element, and counts the heads of each chunk. Then
// the counts are summed, and pass 2 goes from head to head. CUDA finds everything in one pass (compact/single_pass.cu),
// so its results are stored before their number is known.
#pragma once
#include "core/context.h"

namespace tp::compact {

struct Runs {
  const void* x;  // [n]
  int64_t n;
  DType dtype;
  const uint64_t* heads;  // one bit per element
  const int64_t* before;  // per chunk, the number of heads before it; after the last chunk, the number of all heads

  Runs(const void* x, int64_t n, DType dtype, Context& context);  // pass 1
  int64_t count() const;
  // For each run: its element in values [count]; if not null, where it begins in begins [count + 1], followed by n, and
  // its length in lengths [count].
  void list(void* values, int64_t* begins, int64_t* lengths, Context& context) const;
  // numbers[order[i]] = the run of element i.
  void number(const int64_t* order, int64_t* numbers, Context& context) const;
};

// The same on CUDA, where bool must be bytes of 0 and 1. `values` has room for n elements, `begins` for n + 1.
struct RunArgs {
  const void* x;  // [n], n > 0
  int64_t n;
  DType dtype;
  void* values;          // per run, its element
  int64_t* begins;       // per run, where it begins; then n
  int64_t* count;        // the number of runs
  const int64_t* order;  // if not null: numbers[order[i]] = the run of element i
  int64_t* numbers;
};
void list_runs(const RunArgs&, Context&);

}  // namespace tp::compact
