#ifdef __CUDACC__
#include "sort/onesweep/short.cuh"

namespace tp::sort::device {

template void sort_rows_on_chip<uint64_t>(const Args&, Context&);
template Listed sort_segments_on_chip<uint64_t>(const Args&, Ends, Context&);

}  // namespace tp::sort::device
#endif
