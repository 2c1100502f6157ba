// Small kernels that each break one rule of the simt model, to show what the checked mode says of it, and to test that
// it does.
#pragma once
#include <string>
#include <vector>

namespace tp::simt {

std::vector<std::string> faults();
void run_fault(const std::string& name);  // throws under a checking session; an unknown name always does

}  // namespace tp::simt
