// Scan in one launch that reads and writes each element once (after Merrill and Garland, 2016, but with a look-back in
// a fixed order, so that floats give the same bits in every run).
//
// There are five kernels, chosen by the layout:
// - Contiguous rows that are short are treated as one array that is divided into tiles: the first element of a row does
//   not combine with what precedes it. Long rows are a chain of tiles each (`headless` in lookback/rows.cuh). Blocks
//   take tiles by ticket through a pipeline (lookback/pipeline.cuh): the aggregate of a tile is published as soon as it
//   is known, the look-back for its prefix overlaps with loading other tiles, and scanning its elements comes last.
// - A single row that fits on the chip needs no pipeline (lookback/one_wave.cuh).
// - If rows interleave (inner > 1), a tile is a range of positions of neighbouring rows, and goes through the same
//   pipeline (lookback/strips.cuh).
// - If there are many cache lines of interleaved rows, one block scans each of them from end to end, without look-back
//   (lookback/block_per_strip.cuh).
// - Interleaved rows that are short or numerous need no tiles: each thread scans whole rows (lookback/columns.cuh).
#ifdef __CUDACC__
#include "scan/lookback/scan.h"

namespace tp::scan {

void decoupled_lookback(const Args& args, Context& context) {
  switch (args.op) {
    case OpId::sum:
      return lookback::scan<OpId::sum>(args, context);
    case OpId::prod:
      return lookback::scan<OpId::prod>(args, context);
    case OpId::max:
      return lookback::scan<OpId::max>(args, context);
    case OpId::min:
      return lookback::scan<OpId::min>(args, context);
    case OpId::affine:
      return lookback::scan<OpId::affine>(args, context);
    case OpId::bitwise_and:
      return lookback::scan<OpId::bitwise_and>(args, context);
    case OpId::bitwise_or:
      return lookback::scan<OpId::bitwise_or>(args, context);
    case OpId::bitwise_xor:
      return lookback::scan<OpId::bitwise_xor>(args, context);
    default:
      fail(ErrorKind::value, "scan: this operator has no scan");
  }
}

}  // namespace tp::scan
#endif
