// decoupled_lookback by operator: one translation unit each, so that they compile side by side.
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
