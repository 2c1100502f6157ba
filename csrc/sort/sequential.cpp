// The sequential sort: a stable sort of the positions of each row by their keys. It is the oracle that every other rung
// is held to, so it is written for plainness alone.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "sort/sort.h"

namespace tp {
namespace {

// places[i] is the position, counted from the first key of all, whose key comes to i.
template <class W>
std::vector<int64_t> sorted_places(const sort::Args& args) {
  const auto* keys = static_cast<const W*>(args.keys);
  const KeyOrder<W> order = args.order<W>();
  std::vector<int64_t> places(size_t(args.size()));
  std::iota(places.begin(), places.end(), int64_t(0));
  for (int64_t row = 0; row < args.rows; ++row) {
    std::stable_sort(places.begin() + args.begin(row), places.begin() + args.begin(row + 1),
                     [&](int64_t a, int64_t b) { return order.less(keys[a], keys[b]); });
  }
  return places;
}

void sort_rows(const sort::Args& args) {
  std::vector<int64_t> places;
  with_key_word(args.type, [&](auto type) { places = sorted_places<typename decltype(type)::type>(args); });
  const auto copy = [](const void* from, void* to, int64_t place, int64_t i, int bytes) {
    std::memcpy(static_cast<char*>(to) + i * bytes, static_cast<const char*>(from) + place * bytes, size_t(bytes));
  };
  for (int64_t i = 0; i < args.size(); ++i) {
    const int64_t place = places[size_t(i)], position = args.offsets ? place : place % args.n;
    if (args.keys_out) copy(args.keys, args.keys_out, place, i, args.type.bytes);
    if (args.values) copy(args.values, args.values_out, place, i, args.value_bytes);
    if (args.positions() && args.value_bytes == 8) static_cast<int64_t*>(args.values_out)[i] = position;
    if (args.positions() && args.value_bytes == 4) static_cast<int32_t*>(args.values_out)[i] = int32_t(position);
  }
}

}  // namespace

void sort::sequential(const Args& args, Context&) { sort_rows(args); }
void segment_sort::sequential(const Args& args, Context&) { sort_rows(args); }

}  // namespace tp
