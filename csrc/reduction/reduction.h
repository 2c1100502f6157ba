// Reduction (PMPP chapter 10; Mills 2017; Hwu, lectures 4.1 to 4.3: core/ladder.h): combines a sequence into one value.
//
// The operator is associative, so the chain of the sequential loop can become a tree, which has n - 1 operations as
// before but only log n steps. The rungs of this chapter keep the tree and change which thread does which part of it.
// In the first ones, the active threads are spread out (interleaved, simple), and whole warps wait for a few of their
// lanes. Then the active threads become contiguous (interleaved_strided, sequential_addressing, convergent, mirrored),
// partial results move from global to shared memory (shared_memory), and threads combine several elements by themselves
// first (coarsened). A block covers only one section of the sequence. So the totals of the sections are reduced in
// further launches (Mills 2017, "kernel decomposition"), or all blocks combine theirs into the result by atomics
// (multi_block, coarsened).
//
// From Fig. 10.9 on, rungs combine an element with one that is half a section away. This reorders the operands, so the
// operator must also commute; all operators of reduce do.
//
// Every rung takes every problem: the rows are the n-element lines of an [outer, n, inner] array along its middle
// dimension; row r starts at (r / inner) * n * inner + r % inner with stride `inner`. An empty row gives the identity.
#pragma once
#include <vector>

#include "core/ladder.h"
#include "core/op.h"

namespace tp::reduction {

// An array whose dimensions are of any size and stride, in elements. Its `outer`, `n` and `inner` are products of
// these, the outermost first; none of them for a product of 1.
struct Layout {
  struct Dim {
    int64_t size, stride;
  };
  std::vector<Dim> outer, n, inner;
};

struct Args {
  const void* in;  // [outer, n, inner]
  void* out;       // [outer, inner]; int64 for sums and products of integers and for argmax and argmin, else like in
  int64_t outer, n, inner;
  DType dtype;  // of in
  OpId op;      // sum prod max min argmax argmin; floats also mean logsumexp
  // On `single_pass`, a row may be in several parts, which are apart in memory: the array is then [outer / between,
  // parts, between, n / parts, inner].
  int64_t parts = 1, between = 1;
  // On `threaded`, where the elements are, if this is not null.
  const Layout* layout = nullptr;

  int64_t rows() const { return outer * inner; }
};

#define TP_RUNGS "reduction/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::reduction
