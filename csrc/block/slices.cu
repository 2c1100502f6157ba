#include "block/slices.h"
#ifdef __CUDACC__
#include "block/slices.cuh"

namespace tp::block {
namespace {

struct SameIndex {
  TP_HD int64_t operator()(int64_t i) const { return i; }
};

}  // namespace

template <class T>
void sum_slices(const acc_t<T>* sums, int64_t slices, int64_t n, T* out, Context& context) {
  sum_slices(sums, slices, n, out, context, SameIndex());
}

template void sum_slices(const float*, int64_t, int64_t, half*, Context&);
template void sum_slices(const float*, int64_t, int64_t, bfloat16*, Context&);
template void sum_slices(const float*, int64_t, int64_t, float*, Context&);
template void sum_slices(const double*, int64_t, int64_t, double*, Context&);

}  // namespace tp::block
#endif
