// The production radix sort on CUDA. Rows of up to 8192 keys are sorted on chip, by networks in registers or digit by
// digit in shared memory, so that they are read and written once. Longer rows take one pass over memory per digit of 8
// bits, after one pass that counts all digits at once (onesweep, after Adinets and Merrill, 2022): a tile finds where
// its keys go by look-back over the tiles before it, in the same launch that moves the keys. A pass whose digit is the
// same in all keys is skipped by the device without a read back. Only what was asked for moves: keys, values, or
// positions, which are generated on the way.
#include "sort/sort.h"
#ifdef __CUDACC__
#include "sort/onesweep/onesweep.h"

namespace tp::sort {

void device::sort_long(const Args& args, const Listed* listed, Context& context) {
  const bool floating = args.type.kind == KeyKind::floating;
  with_key_word(args.type, [&](auto type) {
    using W = typename decltype(type)::type;
    if constexpr (sizeof(W) > 1) {
      if (floating) return sort_long<W, true>(args, listed, context);
    }
    sort_long<W, false>(args, listed, context);
  });
}

void onesweep(const Args& args, Context& context) {
  using namespace device;
  if (args.n > short_most) return sort_long(args, nullptr, context);
  with_key_word(args.type, [&](auto type) { sort_rows_on_chip<typename decltype(type)::type>(args, context); });
}

}  // namespace tp::sort
#endif
