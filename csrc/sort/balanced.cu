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
  constexpr int64_t most = int64_t(1) << 31;  // segments at a time: a list holds numbers of 4 bytes
  for (int64_t first = 0; first == 0 || first < args.rows; first += most) {
    Args part = args;
    part.rows = tp::min(args.rows - first, most);
    part.offsets = static_cast<const char*>(args.offsets) + first * (args.long_offsets ? 8 : 4);
    const Ends ends{first == 0, first + part.rows == args.rows};
    Listed longer{block::Offsets(nullptr, false, 0, 0), nullptr, nullptr, 0};
    with_key_word(args.type, [&](auto type) {
      longer = sort_segments_on_chip<typename decltype(type)::type>(part, ends, context);
    });
    if (longer.most) sort_long(part, &longer, context);
  }
}

}  // namespace tp::segment_sort
#endif
