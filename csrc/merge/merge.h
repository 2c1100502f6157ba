// Merge (PMPP chapter 12): two sorted sequences become one.
//
// Output k cannot be found by looking at input k: where it comes from depends on the data. What makes the pattern
// parallel is the *co-rank* (§12.3-12.4): the first k outputs are the merge of the first i elements of A and the first
// k - i of B, and a binary search finds that i. Whoever knows the co-ranks of both ends of a stretch of the output
// knows its inputs, and merges them alone. So the rungs differ in who searches, and where the data lies then: one
// search an output, one a thread in global memory, one a block and then one a thread in shared memory, with tiles that
// are loaded anew or kept in a circular buffer, and last the tiles of production.
//
// The merge is stable, A before B among equals. Values, if there are any, follow their keys. Where the input is not
// sorted after all, every search still ends inside its bounds and every output is written, by some element or other.
//
// The second ladder searches only. co_rank answers for given ranks. unmerge takes merged values apart again: each
// element of A or B looks up its rank in the merged sequence, its own index plus a rank in the other sequence. It is
// the transpose of the merge, hence its gradient, and it needs no scatter.
#pragma once
#include "core/key.h"
#include "core/ladder.h"

namespace tp {

// The number of leading elements of lo..hi for which before(i) holds, plus lo, before() being true up to some i and
// false from there on. Whatever before() says, the search ends, and within lo..hi.
template <class I, class Before>
TP_HD I partition_point(I lo, I hi, Before before) {
  while (lo < hi) {
    const I middle = lo + (hi - lo) / 2;
    if (before(middle)) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  return lo;
}

// How many of the first k outputs come from A (§12.4), A having m elements and B n; later(i, j): A[i] stands after
// B[j]. Fig. 12.5 walks two candidates towards each other and may walk for ever where the input is not sorted; this
// bisects the same interval by one comparison a step: A[i] is among the first k unless it stands after B[k - 1 - i].
template <class I, class Later>
TP_HD I co_rank(I k, I m, I n, Later later) {
  return partition_point(tp::max(I(0), I(k - n)), tp::min(k, m), [&](I i) { return !later(i, I(k - 1 - i)); });
}

// The sequential merge of m and n elements (Fig. 12.2): take_a(i, k) and take_b(j, k) say where output k comes from.
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
  const int64_t* k;  // co_rank: [rows, queries]; what lies outside 0..m + n counts as the nearer end
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
