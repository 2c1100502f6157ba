// Equal shares whatever the lengths of the segments. A tile is a fixed number of rows and segment ends together, so one
// huge segment among millions of tiny or empty ones costs as much as any other input of the same size. There are three
// launches: one finds where tiles begin, one processes the tiles, and one completes the segments that cross tiles (a
// softmax has one more for their rows). In step expand no segment needs to be completed, so its last launch does
// something only if the offsets were bad. No tile waits for another, and everything is combined in order, by a tree
// that depends only on the offsets.
#include "segmented/elements.h"
#ifdef __CUDACC__
#include "segmented/merge_path_expand.cuh"
#include "segmented/merge_path_other_ops.h"
#include "segmented/merge_path_reduce.cuh"
#include "segmented/merge_path_softmax.h"

namespace tp::segment_reduce {

void merge_path(const Args& args, Context& context) {
  using namespace segmented;
  if (args.step == Step::softmax) return softmax_by_path(args, context);
  if (args.step == Step::expand) return with_expansion(args, [&](const auto& e) { expand_by_path(e, context); });
  with_reduction(args, [&](const auto& e) {
    if constexpr (is_compiled_separately<std::decay_t<decltype(e)>>) {
      other_ops_by_path(args, context);
    } else {
      reduce_by_path(e, context);
    }
  });
}

}  // namespace tp::segment_reduce
#endif
