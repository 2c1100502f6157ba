// decoupled_lookback, one function per operator. Each is a translation unit of its own, so that they compile in
// parallel.
#pragma once
#include "scan/scan.h"

namespace tp::scan::lookback {

void scan_sum(const Args& args, Context& context);
void scan_prod(const Args& args, Context& context);
void scan_max(const Args& args, Context& context);
void scan_min(const Args& args, Context& context);
void scan_affine(const Args& args, Context& context);
void scan_bits(const Args& args, Context& context);

}  // namespace tp::scan::lookback
