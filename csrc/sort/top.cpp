#include "sort/top.h"

#include "block/offsets.h"
#include "block/on_vectors.h"

namespace tp::sort {
namespace {

constexpr int64_t grain = 1 << 14;  // keys that pay for a thread
constexpr int64_t group = 16;       // keys that are compared with the last of the best at once

// The best keys seen so far, in order; among equal images the earlier row comes first.
template <class W>
struct Best {
  const int64_t k;
  int64_t count = 0;
  W images[most_selected];
  int64_t rows[most_selected];

  explicit Best(int64_t k) : k(k) {}

  bool takes(W image) const { return count < k || image < images[k - 1]; }
  void insert(W image, int64_t row) {
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && images[at - 1] > image; --at) {
      images[at] = images[at - 1];
      rows[at] = rows[at - 1];
    }
    images[at] = image;
    rows[at] = row;
  }
};

// Visits keys in groups, because their images are computed on vectors, and most groups hold no better key.
template <class W>
void find_best(const W* keys, int64_t n, int64_t begin, int64_t end, const KeyOrder<W>& order, Best<W>& best) {
  best.count = 0;
  for (int64_t row = begin; row < end; row += group) {
    const int64_t count = tp::min(group, end - row);
    W images[group] = {};
    if (row + group <= n) {  // those past the end of the segment are not used
      for (int64_t j = 0; j < group; ++j) images[j] = order.image(keys[row + j]);
    } else {
      for (int64_t j = 0; j < count; ++j) images[j] = order.image(keys[row + j]);
    }
    if (best.count == best.k) {
      const W last = best.images[best.k - 1];
      W better = 0;
      for (int64_t j = 0; j < group; ++j) better |= W(images[j] < last);
      if (!better) continue;
    }
    for (int64_t j = 0; j < count; ++j) {
      if (best.takes(images[j])) best.insert(images[j], row + j);
    }
  }
}

}  // namespace

void select_top(const Top& t, Context& context) {
  const block::Offsets offsets(t.offsets, t.long_offsets, t.segments, t.n);
  with_key_word(t.type, [&](auto word) {
    using W = typename decltype(word)::type;
    const KeyOrder<W> order(t.type, t.descending);
    const int64_t least = ceil_div(grain * t.segments, tp::max(t.n, int64_t(1)));
    context.parallel_for(t.segments, least, [&](int64_t first, int64_t last) {
      on_vectors([=, bound = offsets.bind(simt::Pointers{}), keys = static_cast<const W*>(t.keys)] {
        Best<W> best(t.k);
        for (int64_t s = first; s < last; ++s) {
          find_best(keys, t.n, bound.begin(s), bound.end(s), order, best);
          W* const out = static_cast<W*>(t.keys_out) + s * t.k;
          int64_t* const rows = t.rows + s * t.k;
          for (int64_t i = 0; i < t.k; ++i) {
            rows[i] = i < best.count ? best.rows[i] : -1;
            out[i] = i < best.count ? keys[best.rows[i]] : W(t.absent);
          }
        }
      });
    });
  });
}

}  // namespace tp::sort
