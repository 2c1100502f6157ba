// The sort of segments of production on CUDA. Segments are noted on lists by their length, and each list is worked off
// by what sorts such lengths best: lanes and a network, a block in shared memory, or, beyond 8192 keys, the whole
// machine, by the passes of sort's onesweep over all long segments at once. How many there are of which, nobody but the
// device ever knows: blocks take from a list until it is done.
#include "sort/sort.h"
#ifdef __CUDACC__
#include "sort/onesweep/onesweep.h"

namespace tp::segment_sort {

void balanced(const Args& args, Context& context) {
  using namespace sort::device;
  if (args.rows >= int64_t(1) << 32) return two_sorts(args, context);  // a list holds numbers of 4 bytes
  Listed longer{block::Offsets(nullptr, false, 0, 0), nullptr, nullptr, 0};
  with_key_word(args.type,
                [&](auto type) { longer = sort_segments_on_chip<typename decltype(type)::type>(args, context); });
  if (longer.most) sort_long(args, &longer, context);
}

}  // namespace tp::segment_sort
#endif
