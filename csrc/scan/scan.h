// Scan (PMPP chapter 11; lecture 34 of Dey, GPU Architectures and Programming, IIT Kharagpur; lecture 17 of ECE 408;
// Hwu, lectures 4.4 to 4.7: core/ladder.h): combines every prefix of a sequence.
//
// An inclusive scan gives y[k] = x[0] . x[1] . ... . x[k]; an exclusive one leaves out x[k] and starts with the
// identity. The operator . is associative, so prefixes can share partial results in many ways, and the rungs differ in
// how they share: Kogge-Stone finishes in log n steps but does n log n work, Brent-Kung and Blelloch do at most twice
// the sequential work, and coarsening lets each thread scan some elements sequentially. The last rungs combine the
// sections of a long input: in three launches, in one launch in which each block waits for its predecessor, or by
// look-back.
//
// Every rung takes every problem. The rows are the n-element lines of an [outer, n, inner] array along its middle
// dimension; row r starts at (r / inner) * n * inner + r % inner and has stride `inner`, so no dimension is ever
// transposed. A reverse scan counts k from the last element. An exclusive scan is an inclusive scan of the input
// shifted by one (Fig. 11.4), except where the algorithm itself is exclusive.
//
// With the affine operator the same rungs solve h[k] = a[k] h[k-1] + b[k] (Hwu, lecture 4.4, "solving recurrences"):
// the maps h -> a h + b compose associatively but do not commute.
#pragma once
#include "core/ladder.h"
#include "core/op.h"

namespace tp::scan {

struct Args {
  const void* in;  // [outer, n, inner]; for affine, b
  const void* a;   // affine only: the multipliers, like in
  // The state before the first element, [outer, inner], or null. For affine it is h. Other operators take it only for a
  // single row, by decoupled_lookback, with one dtype for in, initial and out.
  const void* initial;
  void* out;  // [outer, n, inner]; int64 for sums and products of integers, else the dtype of in
  int64_t outer, n, inner;
  DType dtype;
  OpId op;
  bool exclusive, reverse;
  bool previous;  // affine only, without initial: element k takes the multiplier of the element before it, a[k - 1]
  // affine only, by a rung that multiplies(), or null: products[k] = out[k] * times[k + 1], both like out, in the order
  // of the scan. What products holds for the last k of a row is not defined.
  const void* times;
  void* products;

  int64_t rows() const { return outer * inner; }
};

#define TP_RUNGS "scan/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

// Whether a rung also computes Args::products for these arguments.
bool multiplies(std::string_view rung, const Args&);

// before[row][i] = counts[row][0] + ... + counts[row][i - 1], by that rung: where what is counted begins, for the many
// algorithms that count first.
template <class Count>
void scan_counts(Context& context, const Count* counts, int64_t* before, int64_t rows, int64_t n) {
  Args args{};
  args.in = counts;
  args.out = before;
  args.outer = rows;
  args.n = n;
  args.inner = 1;
  args.dtype = dtype_of<Count>::value;
  args.op = OpId::sum;
  args.exclusive = true;
  find(ladder, "scan", choose(args, context.device), context.device.cuda).run(args, context);
}

}  // namespace tp::scan
