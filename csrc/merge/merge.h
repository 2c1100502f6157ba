// Merge (PMPP chapter 12): combines two sorted sequences into one.
//
// Output k cannot be found by looking at input k, because its origin depends on the data. *Co-ranks* make the pattern
// parallel (§12.3-12.4): the first k outputs are the merge of the first i elements of A and the first k - i of B, and a
// binary search finds i. A thread that knows the co-ranks at both ends of a range of outputs knows the inputs of the
// range, and merges them independently. The rungs differ in which threads search, and where the data is: one search per
// output; one per thread in global memory; one per block, then one per thread in shared memory, with tiles that are
// reloaded or kept in a circular buffer; and finally the tiles of the production rung.
//
// The merge is stable: among equal keys, those of A come first. Values, if given, move with their keys. If the input is
// not sorted, every search still stays within its bounds, and every output gets some element.
//
// The second ladder only searches. co_rank answers for given ranks. unmerge distributes merged values back: each
// element of A or B looks up its rank in the merged sequence, which is its own index plus its rank in the other
// sequence. It is the transpose of the merge, and therefore its gradient, and needs no scatter.
#pragma once
#include "core/key.h"
#include "core/ladder.h"
#include "core/partition_point.h"

namespace tp {

// Returns how many of the first k outputs come from A (§12.4). A has m elements and B has n; later(i, j) says whether
// A[i] comes after B[j]. Fig. 12.5 moves two candidates towards each other, and may never end if the input is not
// sorted. This function bisects the same interval with one comparison per step: A[i] is among the first k outputs
// unless it comes after B[k - 1 - i].
template <class I, class Later>
TP_HD I co_rank(I k, I m, I n, Later later) {
  return partition_point(tp::max(I(0), I(k - n)), tp::min(k, m), [&](I i) { return !later(i, I(k - 1 - i)); });
}

// The sequential merge of m and n elements (Fig. 12.2). It calls take_a(i, k) or take_b(j, k) for the origin of each
// output k.
template <class Later, class TakeA, class TakeB>
TP_HD void merge_sequential(int64_t m, int64_t n, Later later, TakeA take_a, TakeB take_b) {
  int64_t i = 0, j = 0;
  while (i < m && j < n) {
    if (later(i, j)) {
      take_b(j, i + j);
      ++j;
    } else {
      take_a(i, i + j);
      ++i;
    }
  }
  for (; i < m; ++i) take_a(i, i + j);
  for (; j < n; ++j) take_b(j, i + j);
}

namespace merge {

// Rows of sorted keys.
struct Sequences {
  const void *a, *b;  // [rows, m], [rows, n], raw words
  int64_t rows, m, n;
  KeyType type;
  bool descending;
};

struct Args {
  Sequences in;
  void* keys;                       // [rows, m + n]
  const void *a_values, *b_values;  // like a and b, or null
  void* values;                     // like keys
  int value_bytes;                  // 1, 2, 4, 8 or 16; 0 without values
};

#define TP_RUNGS "merge/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace merge

namespace co_rank_ladder {

enum class Step : int8_t { co_rank, unmerge };

struct Args {
  Step step;
  merge::Sequences in;
  const int64_t* k;  // co_rank: [rows, queries]; ranks outside 0..m + n are clamped
  int64_t* ranks;    // co_rank: like k
  int64_t queries;
  const void* merged;   // unmerge: values [rows, m + n]
  void *a_out, *b_out;  // unmerge: [rows, m], [rows, n]
  int value_bytes;      // unmerge
};

#define TP_RUNGS "merge/rungs_co_rank.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace co_rank_ladder
}  // namespace tp
