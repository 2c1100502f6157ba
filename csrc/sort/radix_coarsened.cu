// Radix sort with eight keys a thread (§13.6, Fig. 13.10): local buckets are eight times as long, and the table of
// bucket sizes an eighth. That pays for four bits a pass.
#include "sort/partition.h"

namespace tp::sort {

void radix_coarsened(const Args& args, Context& context) { sort_by_digits<4, 8>("radix_coarsened", args, context); }

}  // namespace tp::sort
