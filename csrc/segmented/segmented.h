// Segmented reduction and scan: many sequences of different lengths, stored end to end.
//
// values is [n, width]; segment s is rows offsets[s] to offsets[s + 1] - 1. The difficulty is load balance: with one
// thread per segment, all threads wait for the longest segment; with one block per segment, short segments leave most
// lanes idle. The rungs of segment_reduce try these choices, and end with a partition that ignores segments: every tile
// gets the same number of rows and segment ends together (merge_path). segment_scan divides the elements evenly, and
// the head of a segment resets the running value (Schwartz's operator on pairs of a head flag and a value).
//
// A reduction has an inverse step: `expand` gives every row the value of its segment, which is the gradient of a sum. A
// softmax is both: it reduces each segment to its maximum and its sum of exponentials, from which every row computes
// its result.
//
// The affine scan is the recurrence h[k] = a[k] h[k-1] + b[k]. At the head of a segment, and wherever a[k] is 0, it
// restarts with h[k] = b[k]: nothing earlier is used there, even if it is NaN.
//
// Offsets may hold anything. They are clamped to 0..n, and a decreasing pair is an empty segment. A row that is in no
// segment gets zero from expand, and the identity from a scan.
#pragma once
#include "core/ladder.h"
#include "core/op.h"

namespace tp::segmented {

enum class Step : int8_t { reduce, expand, softmax, scan };

struct Args {
  Step step;
  const void* in;       // reduce, softmax, scan: [n, width]; expand: [segments, width]; affine: b
  const void* a;        // affine only: the multipliers, like in
  const void* offsets;  // [segments + 1], int64 or int32
  bool long_offsets;    // int64
  void* out;            // reduce: [segments, width]; expand, softmax, scan: [n, width]
  int64_t n, width, segments;
  DType dtype;  // of in
  // reduce: sum prod max min mean argmax argmin (out: int64 rows) logsumexp variance deviation; scan: sum prod max min
  // affine; both: the bitwise operators, of one dtype per size (BitTypes)
  OpId op;
  bool exclusive, reverse;  // scan
  bool logarithm;           // softmax: the logarithms of the results
};

}  // namespace tp::segmented

namespace tp::segment_reduce {

using segmented::Args;

#define TP_RUNGS "segmented/rungs_reduce.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::segment_reduce

namespace tp::segment_scan {

using segmented::Args;

#define TP_RUNGS "segmented/rungs_scan.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::segment_scan
