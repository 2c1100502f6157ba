// The radix sort of production on CUDA. Rows of up to 8192 keys are sorted on chip, by networks in registers or digit
// by digit in shared memory, and read and written once. Longer ones take one pass over memory a digit of 8 bits, after
// one that counts all digits at once (onesweep, after Adinets and Merrill, 2022): a tile finds where its keys go by
// looking back upon the tiles before it, in the launch that moves them. A digit that all keys share costs nothing,
// which the device finds out by itself. What is asked for alone moves: keys, their values, or positions made up on the
// way.
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
