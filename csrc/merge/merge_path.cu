// The production merge on CUDA (merge path, after Green, McColl and Bader, 2012). One launch finds the co-ranks of all
// tiles, with several lanes per search; the next merges each tile in shared memory and registers. Every element is read
// once and written once, and all tiles have the same amount of work, whatever the data.
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
