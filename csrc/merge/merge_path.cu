// The merge of production on CUDA (merge path, after Green, McColl and Bader, 2012). The co-ranks of all tiles are
// found by one launch, with several lanes a search; the next merges each tile in shared memory and registers. Every
// element is read once and written once, whatever the data look like: no tile has more work than another.
#include "merge/merge.h"
#ifdef __CUDACC__
#include "merge/merge_path.cuh"

namespace tp::merge {

void merge_path(const Args& args, Context& context) {
  with_order(args.in, [&](const auto& order) {
    constexpr int bytes = int(sizeof(typename std::decay_t<decltype(order)>::Word));
    if (args.value_bytes) return merge_by_tiles<TileShape<256, 11>, true>(args, order, context);
    merge_by_tiles<TileShape<256, bytes == 8 ? 15 : 23>, false>(args, order, context);
  });
}

}  // namespace tp::merge
#endif
