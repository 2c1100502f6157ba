#include "sort/items.h"

namespace tp::sort {
namespace {

template <class W>
struct Load {
  const W* keys;
  Items<W> items;
  int64_t size, n;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto in = block.global("keys", keys, size);
    const auto out = items.bind(block, "items", "indices", size);
    for_each(block, "load", size, [&](int64_t i) { out.set(i, {W(in[i]), i % n}); });
  }
};

// Gathers the values in the order of their keys, once per sort.
template <class V>
struct Gather {
  const V* values;
  const int64_t* indices;
  V* out;
  int64_t size, n;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto from = block.global("values", values, size);
    const auto index = block.global("indices", indices, size);
    const auto to = block.global("values out", out, size);
    for_each(block, "gather", size, [&](int64_t i) {
      const int64_t p = index[i];
      to[i] = V(from[i / n * n + p]);
    });
  }
};

template <class From, class To>
void copy(const char* rung, Context& context, const From* from, To* to, int64_t size) {
  launch_for_each(context, rung, size, simt::Convert<From, To>{from, to, size});
}

template <class V>
void gather(const char* rung, const Args& args, Context& context, const int64_t* indices) {
  const Gather<V> kernel{static_cast<const V*>(args.values), indices, static_cast<V*>(args.values_out), args.size(),
                         args.n};
  launch_for_each(context, rung, args.size(), kernel);
}

void store_values(const char* rung, const Args& args, Context& context, const int64_t* indices) {
  if (args.positions()) {
    return args.value_bytes == 8 ? copy(rung, context, indices, static_cast<int64_t*>(args.values_out), args.size())
                                 : copy(rung, context, indices, static_cast<int32_t*>(args.values_out), args.size());
  }
  with_word(args.value_bytes, [&](auto word) { gather<typename decltype(word)::type>(rung, args, context, indices); });
}

}  // namespace

template <class W>
void load_items(const char* rung, const Args& args, Context& context, const Items<W>& items) {
  launch_for_each(context, rung, args.size(), Load<W>{static_cast<const W*>(args.keys), items, args.size(), args.n});
}

template <class W>
void store_items(const char* rung, const Args& args, Context& context, const Items<W>& items) {
  if (args.keys_out) copy(rung, context, items.keys, static_cast<W*>(args.keys_out), args.size());
  if (args.values_out) store_values(rung, args, context, items.indices);
}

#define TP_ITEMS(W)                                                              \
  template void load_items(const char*, const Args&, Context&, const Items<W>&); \
  template void store_items(const char*, const Args&, Context&, const Items<W>&);
TP_ITEMS(uint8_t)
TP_ITEMS(uint16_t)
TP_ITEMS(uint32_t)
TP_ITEMS(uint64_t)
#undef TP_ITEMS

}  // namespace tp::sort
