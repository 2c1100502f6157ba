// The production merge of the CPU: chunks of the output on all threads, between two co-ranks each.
//
// Which head is smaller cannot be predicted, so the inner loop has no branch: both pointers move by what the comparison
// says. Its cost is then the wait for the comparison, and while one merge waits, others run: a chunk is cut once more,
// by co-ranks, into `lanes` merges that go side by side. As many steps as the shortest side has elements need no check
// of bounds. The cut depends on the shape alone, so even input that is not sorted gives one result on any number of
// threads.
//
// With values, the loop also writes where each key came from, and the values of the chunk follow from the cache.
#include <algorithm>
#include <memory>

#include "merge/elements.h"
#include "merge/order.h"

namespace tp {
namespace {

constexpr int64_t chunk = 1 << 15;
constexpr int lanes = 4;

// A merge under way. `from`, if anybody asks: i for element i of A's chunk, ~j for element j of B's.
template <class Word>
struct Lane {
  const Word *a, *a_end, *b, *b_end;
  Word* out;
  int32_t from_a, from_b;
  int32_t* from;

  int64_t safe() const { return std::min(a_end - a, b_end - b); }

  template <bool with_from, class Order>
  void step(const Order& order) {
    const Word x = *a, y = *b;
    const bool later = order.image(x) > order.image(y);
    *out++ = later ? y : x;
    a += !later;
    b += later;
    if (with_from) {
      const int32_t of_b = -int32_t(later);
      *from++ = from_a ^ ((from_a ^ ~from_b) & of_b);
      from_a += 1 + of_b;
      from_b -= of_b;
    }
  }
  template <bool with_from>
  void finish() {
    out = std::copy(b, b_end, std::copy(a, a_end, out));
    if (with_from) {
      for (; a < a_end; ++a) *from++ = from_a++;
      for (; b < b_end; ++b) *from++ = ~from_b++;
    }
  }
};

template <bool with_from, class Word, class Order>
void run_lanes(Lane<Word> (&lane)[lanes], const Order& order) {
  static_assert(lanes == 4, "the loop names its lanes, so that each lives in registers");
  Lane<Word> p = lane[0], q = lane[1], r = lane[2], s = lane[3];
  while (const int64_t steps = std::min(std::min(p.safe(), q.safe()), std::min(r.safe(), s.safe()))) {
    for (int64_t i = 0; i < steps; ++i) {
      p.template step<with_from>(order);
      q.template step<with_from>(order);
      r.template step<with_from>(order);
      s.template step<with_from>(order);
    }
  }
  for (Lane<Word>* each : {&p, &q, &r, &s}) {
    while (const int64_t steps = each->safe()) {
      for (int64_t i = 0; i < steps; ++i) each->template step<with_from>(order);
    }
    each->template finish<with_from>();
  }
}

template <class V>
void follow(const int32_t* from, int64_t count, const void* a_values, const void* b_values, void* values) {
  const V* const side[] = {static_cast<const V*>(a_values), static_cast<const V*>(b_values)};
  V* out = static_cast<V*>(values);
  for (int64_t k = 0; k < count; ++k) {
    const int32_t of_b = from[k] >> 31;  // all ones or zero
    out[k] = side[of_b & 1][from[k] ^ of_b];
  }
}

struct Wide {
  uint64_t low, high;
};

auto follow_by(int bytes) {
  switch (bytes) {
    case 1:
      return follow<uint8_t>;
    case 2:
      return follow<uint16_t>;
    case 4:
      return follow<uint32_t>;
    case 8:
      return follow<uint64_t>;
    default:
      return follow<Wide>;
  }
}

template <class Word, class Order>
class Threaded {
 public:
  Threaded(const merge::Args& args, const Order& order)
      : args_(args), order_(order), m_(args.in.m), n_(args.in.n), follow_(follow_by(args.value_bytes)) {}

  void run(Context& context) {
    const int64_t total = m_ + n_, chunks = ceil_div(total, chunk);
    context.parallel_for(args_.in.rows * chunks, ceil_div(chunk, total), [&](int64_t begin, int64_t end) {
      const std::unique_ptr<int32_t[]> from(args_.value_bytes ? new int32_t[size_t(tp::min(chunk, total))] : nullptr);
      for (int64_t id = begin; id < end; ++id) {
        const int64_t k = id % chunks * chunk;
        merge_chunk(id / chunks, k, tp::min(k + chunk, total), from.get());
      }
    });
  }

 private:
  int64_t search(const Word* a, int64_t m, const Word* b, int64_t n, int64_t k) const {
    return co_rank(k, m, n, [&](int64_t i, int64_t j) { return order_.image(a[i]) > order_.image(b[j]); });
  }

  void merge_chunk(int64_t row, int64_t k, int64_t k_end, int32_t* from) const {
    const Word *a = static_cast<const Word*>(args_.in.a) + row * m_,
               *b = static_cast<const Word*>(args_.in.b) + row * n_;
    const int64_t i = search(a, m_, b, n_, k), j = k - i;
    const int64_t of_a = merge::share_of_a(i, search(a, m_, b, n_, k_end), k_end - k), of_b = k_end - k - of_a;
    a += i, b += j;
    Word* const out = static_cast<Word*>(args_.keys) + row * (m_ + n_) + k;
    Lane<Word> lane[lanes];
    for (int64_t l = 0, p = 0, c = 0; l < lanes; ++l) {
      const int64_t c_end = (k_end - k) * (l + 1) / lanes, q = c - p;
      const int64_t from_a = merge::share_of_a(p, search(a, of_a, b, of_b, c_end), c_end - c),
                    from_b = c_end - c - from_a;
      lane[l] = {a + p, a + p + from_a, b + q, b + q + from_b, out + c, int32_t(p), int32_t(q), from ? from + c : from};
      p += from_a, c = c_end;
    }
    if (!from) return run_lanes<false>(lane, order_);
    run_lanes<true>(lane, order_);
    const auto at = [&](const void* values, int64_t place) {
      return static_cast<const char*>(values) + place * args_.value_bytes;
    };
    follow_(from, k_end - k, at(args_.a_values, row * m_ + i), at(args_.b_values, row * n_ + j),
            static_cast<char*>(args_.values) + (row * (m_ + n_) + k) * args_.value_bytes);
  }

  const merge::Args& args_;
  const Order order_;
  const int64_t m_, n_;
  decltype(&follow<Wide>) follow_;
};

// Unmerges elements begin to end of one side: before(e, f) says whether element f of the other side, which has `most`,
// comes before e. Ranks ascend where the input is sorted, so the search gallops on from the last one.
template <class Before, class Give>
void unmerge_side(int64_t begin, int64_t end, int64_t most, Before before, Give give) {
  for (int64_t e = begin, rank = 0; e < end; ++e) {
    int64_t hi = most;
    for (int64_t step = 1; rank < hi; step *= 2) {
      const int64_t probe = std::min(rank + step, hi) - 1;
      if (before(e, probe)) {
        rank = probe + 1;
      } else {
        hi = probe;
      }
      if (hi == probe) break;
    }
    rank = partition_point(rank, hi, [&](int64_t f) { return before(e, f); });
    give(e, e + rank);
  }
}

}  // namespace

void merge::threaded(const Args& args, Context& context) {
  with_order(args.in,
             [&](auto order) { Threaded<typename decltype(order)::Word, decltype(order)>(args, order).run(context); });
}

void co_rank_ladder::threaded(const Args& args, Context& context) {
  with_key_word(args.in.type, [&](auto type) {
    const merge::Keys<typename decltype(type)::type> keys(args.in);
    const auto x = keys.bind(simt::Pointers{});
    const auto v = merge::Unmerge(args).bind(simt::Pointers{});
    if (args.step == Step::co_rank) {
      context.parallel_for(keys.rows * args.queries, 256, [&](int64_t begin, int64_t end) {
        for (int64_t q = begin; q < end; ++q) args.ranks[q] = x.co_rank(q / args.queries, args.k[q]);
      });
      return;
    }
    const int64_t chunks_a = ceil_div(x.m, chunk), chunks = chunks_a + ceil_div(x.n, chunk);
    context.parallel_for(keys.rows * chunks, ceil_div(chunk, x.m + x.n), [&](int64_t begin, int64_t end) {
      for (int64_t id = begin; id < end; ++id) {
        const int64_t row = id / chunks, c = id % chunks;
        if (c < chunks_a) {
          unmerge_side(
              c * chunk, std::min((c + 1) * chunk, x.m), x.n, [&](int64_t i, int64_t j) { return x.later(row, i, j); },
              [&](int64_t i, int64_t k) { v.give_a(row, i, k); });
        } else {
          const int64_t first = (c - chunks_a) * chunk;
          unmerge_side(
              first, std::min(first + chunk, x.n), x.m, [&](int64_t j, int64_t i) { return !x.later(row, i, j); },
              [&](int64_t j, int64_t k) { v.give_b(row, j, k); });
        }
      }
    });
  });
}

}  // namespace tp
