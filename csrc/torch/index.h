// Checks of integer tensors that hold positions: offsets of segments, of the rows of a matrix, of the edges of a
// vertex.
#pragma once
#include "torch/checks.h"

namespace tp {

// Checks for [parts + 1], int32 or int64, on the device of `beside`; the values are not checked.
void check_offsets(const char* op, const Named& offsets, const Named& beside);

// Checks that offsets begin with 0, end with `rows` and never decrease; an IndexError or a ValueError names the first
// wrong position. The CPU always checks, CUDA only with `validate`, which takes one synchronization, and Meta never.
void check_offset_values(const char* op, const Named& offsets, const SymInt& rows, bool validate);

// Fails with the first position that does not hold 0 to count - 1. There must be one.
[[noreturn]] void fail_at_first(const char* op, const Named& positions, int64_t count);

}  // namespace tp
