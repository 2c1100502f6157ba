// decoupled_lookback by operator: one translation unit each, so that they compile side by side.
#pragma once
#include "scan/scan.h"

namespace tp::scan::lookback {

template <OpId op>
void scan(const Args& args, Context& context);

}  // namespace tp::scan::lookback
