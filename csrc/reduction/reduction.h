// Reduction (PMPP chapter 10; 001, 003): a sequence combined into one value.
//
// The operator is associative, so the chain of the sequential loop can become a tree: n - 1 operations as before, but
// log n steps. The rungs of this chapter keep the tree and change who does the work. At first the threads that still
// have work drift apart (interleaved, simple), and whole warps wait for a few of their lanes; then they stay together
// (interleaved_strided, sequential_addressing, convergent, mirrored), the partial results move from global to shared
// memory (shared_memory), and threads work alone before they work together (coarsened). A block of threads reaches no
// further than a section of the sequence, so the sections' totals are reduced again in another launch (001, "kernel
// decomposition"), or all blocks combine theirs into the result by atomics (multi_block, coarsened).
//
// Rungs from Fig. 10.9 on pair an element with one half a section away. That reorders the operands, so their operator
// must commute, too; all of reduce's do.
//
// Every rung takes every problem: the rows are the n-element lines of an [outer, n, inner] array along its middle
// dimension; row r starts at (r / inner) * n * inner + r % inner and strides by `inner`. A row of no elements gives the
// identity.
#pragma once
#include "core/ladder.h"
#include "core/op.h"

namespace tp::reduction {

struct Args {
  const void* in;  // [outer, n, inner]
  void* out;       // [outer, inner]; int64 for sums and products of integers and for argmax and argmin, else like in
  int64_t outer, n, inner;
  DType dtype;  // of in
  OpId op;      // sum prod max min argmax argmin; floats also mean logsumexp

  int64_t rows() const { return outer * inner; }
};

#define TP_RUNGS "reduction/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::reduction
