// decoupled_lookback, one function per operator. Each is a translation unit of its own, so that they compile in
// parallel.
#pragma once
#include "scan/scan.h"

namespace tp::scan::lookback {

template <OpId op>
void scan(const Args& args, Context& context);

}  // namespace tp::scan::lookback
