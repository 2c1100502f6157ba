// The sorts of a product of two sparse matrices, by the library's own sorts.
#pragma once
#include "sort/sort.h"

namespace tp::sparse {

// Sorts keys of type I, which are less than `limit`, as the other arguments say.
template <class I>
void sort_below(int64_t limit, sort::Args args, Context& context) {
  args.type = {KeyKind::signed_integer, int8_t(sizeof(I)), int8_t(8 * sizeof(I)), 0};
  while (args.end_bit < args.type.bits && (limit - 1) >> args.end_bit > 0) ++args.end_bit;
  const bool cuda = context.device.cuda;
  if (args.offsets != nullptr) {
    find(segment_sort::ladder, "segment_sort", segment_sort::choose(args, context.device), cuda).run(args, context);
  } else {
    find(sort::ladder, "sort", sort::choose(args, context.device), cuda).run(args, context);
  }
}

}  // namespace tp::sparse
