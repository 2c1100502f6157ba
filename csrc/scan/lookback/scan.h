// decoupled_lookback, one function per operator. The build compiles scan.cu once for each of them, in parallel.
#pragma once
#include "scan/scan.h"

namespace tp::scan::lookback {

template <OpId op>
void scan(const Args& args, Context& context);

}  // namespace tp::scan::lookback
