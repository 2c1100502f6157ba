// The scan that moves no byte twice: one launch, each element read once and written once (after Merrill and Garland,
// 2016, with the look-back in a fixed order, so that floats give the same bits in every run).
//
// Contiguous rows are laid end to end and cut into tiles, whatever the length of a row: an element at the start of its
// row does not combine with what precedes it (lookback/rows.cuh). Where rows interleave (inner > 1), a tile is a
// stretch of neighbouring rows (lookback/strips.cuh), unless they are short or many (lookback/columns.cuh). Blocks take
// tiles by ticket through a pipeline (lookback/pipeline.cuh): a tile's total is published as soon as it is known, what
// precedes the tile is looked up while others are on their way, and completing its elements comes last. One row that
// fits the chip at once needs no pipeline (lookback/one_wave.cuh).
#ifdef __CUDACC__
#include "scan/lookback/scan.h"

namespace tp::scan {

void decoupled_lookback(const Args& args, Context& context) {
  switch (args.op) {
    case OpId::sum:
      return lookback::scan_sum(args, context);
    case OpId::prod:
      return lookback::scan_prod(args, context);
    case OpId::max:
      return lookback::scan_max(args, context);
    case OpId::min:
      return lookback::scan_min(args, context);
    case OpId::affine:
      return lookback::scan_affine(args, context);
    case OpId::bitwise_and:
    case OpId::bitwise_or:
    case OpId::bitwise_xor:
      return lookback::scan_bits(args, context);
    default:
      fail(ErrorKind::value, "scan: this operator has no scan");
  }
}

}  // namespace tp::scan
#endif
