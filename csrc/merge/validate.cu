// One thread per key compares it with its predecessor. If the order is wrong there, an atomic minimum keeps the first
// such position.
#include "merge/elements.h"
#include "merge/validate.h"

namespace tp::merge {
namespace {

constexpr int threads = 256;

template <class Word>
struct FindDescents {
  Keys<Word> keys;
  int64_t* first;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = keys.bind(block);
    const auto least = block.global("first", first, 2);
    const int64_t of_a = keys.rows * keys.m, count = of_a + keys.rows * keys.n;
    for (int64_t begin = block.index().x * threads; begin < count; begin += block.grid().x * threads) {
      block.phase("compare", [&](int t) {
        const int64_t i = begin + t, j = i - of_a;
        if (i >= count) return;
        if (i < of_a) {
          if (i % x.m > 0 && falls(x.order, x.a, i)) least.template atomic<Min<int64_t>>(0, i);
        } else {
          if (j % x.n > 0 && falls(x.order, x.b, j)) least.template atomic<Min<int64_t>>(1, j);
        }
      });
    }
  }

 private:
  template <class Array>
  TP_HD static bool falls(const KeyOrder<Word>& order, const Array& x, int64_t i) {
    const Word before = x[i - 1], key = x[i];
    return order.image(key) < order.image(before);
  }
};

}  // namespace

void find_descents(const Sequences& in, int64_t* first, Context& context) {
  with_key_word(in.type, [&](auto type) {
    const Keys<typename decltype(type)::type> keys(in);
    const int64_t blocks = ceil_div(in.rows * (in.m + in.n), int64_t(threads));
    simt::launch(context, "find_descents", {tp::min(blocks, max_grid)}, threads, 0,
                 FindDescents<typename decltype(type)::type>{keys, first});
  });
}

}  // namespace tp::merge
