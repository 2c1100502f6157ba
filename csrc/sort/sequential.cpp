// The sequential sort: std::stable_sort of the positions of each row by their keys. Every other rung is tested against
// this one, so it is written for clarity only.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "sort/sort.h"

namespace tp {
namespace {

// indices[i] is the index of the key that is i-th in the result, counted from the first key of the first row.
template <class W>
std::vector<int64_t> sorted_indices(const sort::Args& args) {
  const auto* keys = static_cast<const W*>(args.keys);
  const KeyOrder<W> order = args.order<W>();
  std::vector<int64_t> indices(size_t(args.size()));
  std::iota(indices.begin(), indices.end(), int64_t(0));
  for (int64_t row = 0; row < args.rows; ++row) {
    std::stable_sort(indices.begin() + args.begin(row), indices.begin() + args.begin(row + 1),
                     [&](int64_t a, int64_t b) { return order.less(keys[a], keys[b]); });
  }
  return indices;
}

void sort_rows(const sort::Args& args) {
  std::vector<int64_t> indices;
  with_key_word(args.type, [&](auto type) { indices = sorted_indices<typename decltype(type)::type>(args); });
  const auto copy = [](const void* from, void* to, int64_t index, int64_t i, int bytes) {
    std::memcpy(static_cast<char*>(to) + i * bytes, static_cast<const char*>(from) + index * bytes, size_t(bytes));
  };
  for (int64_t i = 0; i < args.size(); ++i) {
    const int64_t index = indices[size_t(i)], position = args.offsets ? index : index % args.n;
    if (args.keys_out) copy(args.keys, args.keys_out, index, i, args.type.bytes);
    if (args.values) copy(args.values, args.values_out, index, i, args.value_bytes);
    if (args.positions() && args.value_bytes == 8) static_cast<int64_t*>(args.values_out)[i] = position;
    if (args.positions() && args.value_bytes == 4) static_cast<int32_t*>(args.values_out)[i] = int32_t(position);
  }
}

}  // namespace

void sort::sequential(const Args& args, Context&) { sort_rows(args); }
void segment_sort::sequential(const Args& args, Context&) { sort_rows(args); }

}  // namespace tp
