// Small keys: integers of a known range, counted from its start, in the fewest bytes. Sorts and histograms of small
// keys move fewer bytes and look at fewer bits.
#pragma once
#include "core/context.h"

namespace tp::sort {

struct SmallKeys {
  const void* in;  // [n], integers; bool must be bytes of 0 and 1
  DType dtype;
  int64_t n, first;
  uint64_t count;  // in[i] becomes in[i] - first or, if it is not in `first` to first + count - 1, `count`
  void* keys;      // [n], of `bytes` bytes: 1, 2, 4 or 8, which hold `count`
  int bytes;
};
void make_small_keys(const SmallKeys&, Context&);

// out[i] = table[keys[i]], for keys that are less than `count`.
struct LookUp {
  const void* keys;  // [n], of `bytes` bytes
  int bytes;
  int64_t n, count;
  const int64_t* table;  // [count]
  int64_t* out;          // [n]
};
void look_up(const LookUp&, Context&);

}  // namespace tp::sort
