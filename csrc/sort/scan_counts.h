// The scan inside a radix sort: the scan pattern's default algorithm, called through its public header.
#pragma once
#include "scan/scan.h"

namespace tp::sort {

// before[row][i] = counts[row][0] + ... + counts[row][i - 1].
template <class Count>
void scan_counts(Context& context, const Count* counts, int64_t* before, int64_t rows, int64_t n) {
  scan::Args args{};
  args.in = counts;
  args.out = before;
  args.outer = rows;
  args.n = n;
  args.inner = 1;
  args.dtype = dtype_of<Count>::value;
  args.op = OpId::sum;
  args.exclusive = true;
  find(scan::ladder, "scan", scan::choose(args, context.device), context.device.cuda).run(args, context);
}

}  // namespace tp::sort
