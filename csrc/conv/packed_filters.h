// The filters of fprop and dgrad, in the order in which a product reads them (gather_gemm.cuh). This is compiled once
// for all, because a kernel that several files compile must not have other devices in one of them (*_sm90a.cu) than in
// the rest.
#pragma once
#include "conv/gather.h"

namespace tp::conv {

constexpr int pack_blocks = 512;

// Packs the filters as packed[group][tap][channel][map], or as packed[group][tap][map][channel] if `by_map`. The last
// dimension is padded to `width` with zeros. odd[block], for each of pack_blocks blocks, tells whether it saw a weight
// that is infinite or NaN.
template <class T>
void pack_filters(const Gather<T>& g, bool by_map, int64_t width, T* packed, int* odd, Context& context);

}  // namespace tp::conv
