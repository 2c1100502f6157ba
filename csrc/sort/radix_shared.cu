// Radix sort whose blocks sort their tile first (§13.4, Figs. 13.5 and 13.6): a bit a pass, a key a thread. What was
// scattered key by key in Fig. 13.2 is now written in two runs a block.
#include "sort/partition.h"

namespace tp::sort {

void radix_shared(const Args& args, Context& context) { sort_by_digits<1, 1>("radix_shared", args, context); }

}  // namespace tp::sort
