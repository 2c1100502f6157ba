// Small kernels that each break one rule of the simt model. They show what the checked mode reports, and test that it
// does.
#pragma once
#include <string>
#include <vector>

#include "core/macros.h"

namespace tp::simt {

TP_EXPORT std::vector<std::string> faults();
TP_EXPORT void run_fault(const std::string& name);  // throws under a checking session, and always for an unknown name

}  // namespace tp::simt
