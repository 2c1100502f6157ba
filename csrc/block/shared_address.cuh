// Addresses of shared memory as PTX instructions take them.
#pragma once
#include "core/macros.h"

namespace tp::block {

TP_DEVICE inline unsigned shared_address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

}  // namespace tp::block
