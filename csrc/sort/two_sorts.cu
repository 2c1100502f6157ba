// Sorts segments by two stable sorts of the whole array, as if the segment were the most significant digit of a key:
// the first sorts all keys, the second sorts them by their segments. The time does not depend on the lengths of the
// segments.
#include "block/offsets.h"
#include "sort/items.h"

namespace tp::segment_sort {
namespace {

using namespace sort;
constexpr const char* rung = "two_sorts";

// digits[i] is one more than the segment of the i-th smallest key, or 0 if that key lies before all segments.
struct FindSegments {
  const int64_t* indices;
  int64_t* digits;
  block::Offsets offsets;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto index = block.global("indices", indices, offsets.n);
    const auto digit = block.global("digits", digits, offsets.n);
    const auto segments = offsets.bind(block);
    for_each(block, "find", offsets.n, [&](int64_t i) { digit[i] = segments.find(index[i]) + 1; });
  }
};

// Gathers the keys by their original indices. Keys outside all segments stay where they are.
template <class W>
struct Gather {
  const W* keys;
  Items<W> items;
  block::Offsets offsets;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto from = block.global("keys", keys, offsets.n);
    const auto to = items.bind(block, "items", "indices", offsets.n);
    const auto segments = offsets.bind(block);
    for_each(block, "gather", offsets.n, [&](int64_t i) {
      int64_t index = to.indices[i];
      if (i < segments.begin(0) || i >= segments.begin(offsets.segments)) index = i;
      to.set(i, {W(from[index]), index});
    });
  }
};

int bits_of(int64_t digits) {
  int bits = 0;
  for (; bits < 63 && digits >> bits > 0; ++bits) continue;
  return bits;
}

}  // namespace

void two_sorts(const Args& args, Context& context) {
  const block::Offsets offsets(args.offsets, args.long_offsets, args.rows, args.n);
  int64_t *by_key = context.workspace<int64_t>(args.n), *digits = context.workspace<int64_t>(args.n);
  int64_t* indices = context.workspace<int64_t>(args.n);

  Args keys = args;
  keys.rows = 1;
  keys.offsets = nullptr;
  keys.keys_out = nullptr;
  keys.values = nullptr;
  keys.values_out = by_key;
  keys.value_bytes = 8;
  radix_coarsened(keys, context);
  launch_for_each(context, rung, args.n, FindSegments{by_key, digits, offsets});

  Args segments = keys;
  segments.keys = digits;
  segments.values = by_key;
  segments.values_out = indices;
  segments.type = {KeyKind::unsigned_integer, 8, 64, 0};
  segments.descending = false;
  segments.begin_bit = 0;
  segments.end_bit = bits_of(args.rows + 1);
  radix_coarsened(segments, context);

  with_key_word(args.type, [&](auto type) {
    using W = typename decltype(type)::type;
    const Items<W> items{context.workspace<W>(args.n), indices};
    launch_for_each(context, rung, args.n, Gather<W>{static_cast<const W*>(args.keys), items, offsets});
    store_items(rung, args, context, items);
  });
}

}  // namespace tp::segment_sort
