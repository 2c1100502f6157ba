// Checks of integer tensors that say where things are: offsets of segments, of the rows of a matrix, of the edges of a
// vertex.
#pragma once
#include "torch/checks.h"

namespace tp {

// [parts + 1], int32 or int64, on the device of `beside`. What they hold is not looked at.
void check_offsets(const char* op, const Named& offsets, const Named& beside);

// 0 first, `rows` last, and never less than the one before: else an IndexError or a ValueError tells the first place
// that is wrong. The CPU looks always, CUDA only if it is to `validate`, which takes one synchronisation.
void check_offset_values(const char* op, const Named& offsets, int64_t rows, bool validate);

}  // namespace tp
