// The production sort of segments on CUDA. A first launch sorts the shortest segments and lists every other segment by
// length class. Each list is then sorted by the method that is fastest at that length: by networks, of a group of lanes
// or a block, or, with payloads, digit by digit in a block; beyond 8192 keys, by the passes of sort's onesweep over all
// long segments at once. Where one pass over the highest digits leaves buckets that fit on chip, these join the lists
// instead of taking the other passes. Only the device knows the lengths of the lists; persistent blocks take segments
// from a list until it is empty.
#include "sort/sort.h"
#ifdef __CUDACC__
#include "sort/onesweep/onesweep.h"

namespace tp::segment_sort {

void balanced(const Args& args, Context& context) {
  using namespace sort::device;
  constexpr int64_t most = int64_t(1) << 31;  // segments per launch: a list holds 4-byte segment numbers
  for (int64_t first = 0; first == 0 || first < args.rows; first += most) {
    Args part = args;
    part.rows = tp::min(args.rows - first, most);
    part.offsets = static_cast<const char*>(args.offsets) + first * (args.long_offsets ? 8 : 4);
    const Ends ends{first == 0, first + part.rows == args.rows};
    with_key_word(args.type, [&](auto type) {
      using W = typename decltype(type)::type;
      const Lists lists = classify_segments<W>(part, ends, context);
      if (lists.most[long_class]) sort_long(part, &lists, context);
      sort_classes<W>(part, lists, context);
    });
  }
}

}  // namespace tp::segment_sort
#endif
