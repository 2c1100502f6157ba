// Expansion is a gather of rows of bytes.
#include "segmented/group_expand.h"
#ifdef __CUDACC__
#include "block/gather_rows.cuh"

namespace tp::segmented {
namespace {

template <class I>
struct GroupOfRow {
  const I* index;
  int64_t groups;
  TP_DEVICE int64_t operator()(int64_t i) const {
    const int64_t group = index[i];
    return group < groups ? group : -1;
  }
};

}  // namespace

void expand_groups(const Expanded& x, Context& context) {
  const auto gather = [&](const auto* index) {
    using I = std::decay_t<decltype(*index)>;
    block::gather_rows("group_expand", x.in, x.out, 0, x.n, x.row_bytes, GroupOfRow<I>{index, x.groups}, context);
  };
  x.long_index ? gather(static_cast<const int64_t*>(x.index)) : gather(static_cast<const int32_t*>(x.index));
}

}  // namespace tp::segmented
#endif
