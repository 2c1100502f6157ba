// Runs of equal elements of a line, on the host: where each begins, its value, its length, and the number of each
// element's run.
//
// As compact/threaded.cpp: fixed chunks on all threads. Pass 1 notes a bit per element, which tells whether it is a
// head, that is, differs from the one before, and counts the heads of each chunk; then the counts are summed, and pass
// 2 goes from head to head.
#pragma once
#include "core/context.h"

namespace tp::compact {

struct Runs {
  const void* x;  // [n]
  int64_t n;
  DType dtype;
  const uint64_t* heads;  // a bit per element
  const int64_t* before;  // of each chunk, the heads before it; behind the last, all

  Runs(const void* x, int64_t n, DType dtype, Context& context);  // pass 1
  int64_t count() const;
  // Of each run, values [count]: its element; and, where wanted, begins [count + 1]: where it begins, and n; lengths
  // [count].
  void list(void* values, int64_t* begins, int64_t* lengths, Context& context) const;
  // numbers[order[i]] = the run of element i.
  void number(const int64_t* order, int64_t* numbers, Context& context) const;
};

}  // namespace tp::compact
