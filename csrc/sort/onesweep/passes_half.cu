#ifdef __CUDACC__
#include "sort/onesweep/passes.cuh"

template void tp::sort::device::sort_long<uint16_t, true>(const Args&, const Listed*, Context&);
#endif
