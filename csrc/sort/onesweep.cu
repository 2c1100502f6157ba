// The production radix sort on CUDA. Rows of up to 8192 keys are sorted on chip, either by networks in registers or
// digit by digit in shared memory, so they are read and written once. Longer rows take one pass over memory per digit
// of 8 bits, after one launch that counts all digits (onesweep, after Adinets and Merrill, 2022). Within a pass, a tile
// finds the positions of its keys by look-back over earlier tiles, in the same launch that moves the keys. If all keys
// have the same digit, the device skips that pass, without a read back to the host. Only what the caller asked for is
// moved: keys, values, or original indices, which the first pass generates.
#include "sort/sort.h"
#ifdef __CUDACC__
#include "sort/onesweep/onesweep.h"

namespace tp::sort {

void device::sort_long(const Args& args, const Lists* lists, Context& context) {
  const bool floating = args.type.kind == KeyKind::floating;
  with_key_word(args.type, [&](auto type) {
    using W = typename decltype(type)::type;
    if constexpr (sizeof(W) > 1) {
      if (floating) return sort_long<W, true>(args, lists, context);
    }
    sort_long<W, false>(args, lists, context);
  });
}

void onesweep(const Args& args, Context& context) {
  using namespace device;
  if (args.n > short_most) return sort_long(args, nullptr, context);
  with_key_word(args.type, [&](auto type) { sort_rows_on_chip<typename decltype(type)::type>(args, context); });
}

}  // namespace tp::sort
#endif
