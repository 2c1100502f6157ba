// The production merge of the CPU: chunks of the output on all threads, each between two co-ranks.
//
// Which of two heads is smaller cannot be predicted, so the inner loop has no branch: both pointers advance by the
// result of the comparison. The loop then takes the latency of the comparison, during which other merges can run. So a
// chunk is divided again, by co-ranks, into `lanes` merges that are interleaved. No bounds have to be checked for as
// many steps as the shortest side has elements. The partition depends only on the shape, so even input that is not
// sorted gives the same result for any number of threads.
//
// With values, the loop also records where each key came from, and the values of the chunk are then gathered from the
// cache.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "merge/elements.h"
#include "merge/order.h"

namespace tp {
namespace {

constexpr int64_t chunk = 1 << 15;
constexpr int lanes = 4;

// A merge in progress. `from`, if recorded, is i for element i of A's chunk, and ~j for element j of B's chunk.
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
    const int32_t of_b = from[k] >> 31;  // all ones, or zero
    out[k] = side[of_b & 1][from[k] ^ of_b];
  }
}

template <class Word, class Order>
class Threaded {
 public:
  Threaded(const merge::Args& args, const Order& order)
      : args_(args),
        order_(order),
        m_(args.in.m),
        n_(args.in.n),
        follow_(with_word(args.value_bytes, [](auto type) { return &follow<typename decltype(type)::type>; })) {}

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
    const auto at = [&](const void* values, int64_t index) {
      return static_cast<const char*>(values) + index * args_.value_bytes;
    };
    follow_(from, k_end - k, at(args_.a_values, row * m_ + i), at(args_.b_values, row * n_ + j),
            static_cast<char*>(args_.values) + (row * (m_ + n_) + k) * args_.value_bytes);
  }

  const merge::Args& args_;
  const Order order_;
  const int64_t m_, n_;
  decltype(&follow<Word16>) follow_;
};

// unmerge, one chunk of one side at a time. First a merge that only records ranks finds the ranks of its elements in
// the other side, between those of the first and the last one; then values are copied from index plus rank.
template <class Order>
class Unmerger {
  using Word = typename Order::Word;
  static constexpr int64_t elements = 1 << 13,
                           sparse = 16;  // per chunk; if it has fewer elements, searches are faster than a merge

 public:
  Unmerger(const co_rank_ladder::Args& args, const Order& order) : args_(args), order_(order) {}

  void run(Context& context) {
    const merge::Sequences& in = args_.in;
    const int64_t chunks_a = ceil_div(in.m, elements), chunks = chunks_a + ceil_div(in.n, elements);
    context.parallel_for(in.rows * chunks, ceil_div(elements, in.m + in.n), [&](int64_t begin, int64_t end) {
      const std::unique_ptr<int64_t[]> ranks(new int64_t[elements]);
      for (int64_t id = begin; id < end; ++id) {
        const int64_t row = id / chunks, c = id % chunks;
        const Word *a = static_cast<const Word*>(in.a) + row * in.m, *b = static_cast<const Word*>(in.b) + row * in.n;
        if (c < chunks_a) {
          const auto before = [&](Word other, Word own) { return order_.image(other) < order_.image(own); };
          unmerge(row, c * elements, a, in.m, b, in.n, before, args_.a_out, ranks.get());
        } else {
          const auto before = [&](Word other, Word own) { return order_.image(other) <= order_.image(own); };
          unmerge(row, (c - chunks_a) * elements, b, in.n, a, in.m, before, args_.b_out, ranks.get());
        }
      }
    });
  }

 private:
  template <class Before>
  void unmerge(int64_t row, int64_t first, const Word* own, int64_t own_count, const Word* other, int64_t other_count,
               Before before, void* out, int64_t* ranks) const {
    const int64_t count = std::min(elements, own_count - first);
    own += first;
    const auto rank = [&](Word key, int64_t lo, int64_t hi) {
      return partition_point(lo, hi, [&](int64_t f) { return before(other[f], key); });
    };
    int64_t e = 0, f = rank(own[0], 0, other_count);
    const int64_t f_end = std::max(f, rank(own[count - 1], 0, other_count));
    if (f_end - f > sparse * count) {
      for (; e < count; ++e) ranks[e] = rank(own[e], f, f_end);
    }
    while (e < count && f < f_end) {
      const bool passed = before(other[f], own[e]);
      ranks[e] = f;
      f += passed;
      e += !passed;
    }
    for (; e < count; ++e) ranks[e] = f;
    const int64_t bytes = args_.value_bytes, merged = row * (own_count + other_count) + first;
    gather_by(int(bytes))(static_cast<const char*>(args_.merged) + merged * bytes, ranks, count,
                          static_cast<char*>(out) + (row * own_count + first) * bytes);
  }

  template <class V>
  static void gather(const void* merged, const int64_t* ranks, int64_t count, void* out) {
    for (int64_t e = 0; e < count; ++e) static_cast<V*>(out)[e] = static_cast<const V*>(merged)[e + ranks[e]];
  }
  static auto gather_by(int bytes) {
    return with_word(bytes, [](auto type) { return &gather<typename decltype(type)::type>; });
  }

  const co_rank_ladder::Args& args_;
  const Order order_;
};

// co_rank. Searches for neighbouring ranks read the same elements, so the ranks of a block are processed in the order
// of their leading bits: a counting sort takes a fraction of the time of fetching elements that have left the cache.
template <class Find>
class RankSearches {
  static constexpr int64_t block = 1 << 17, few = 1 << 10;
  static constexpr int bucket_bits = 11;

 public:
  // find(k) gives the answer for any rank k, from 0 to `total` or outside.
  RankSearches(int64_t total, Find find) : total_(total), find_(find) {
    while (total >> shift_ >= int64_t(1) << bucket_bits) ++shift_;
  }

  void run(const int64_t* k, int64_t n, int64_t* ranks) const {
    for (int64_t first = 0; first < n; first += block) {
      run_block(k + first, tp::min(block, n - first), ranks + first);
    }
  }

 private:
  int64_t bucket(int64_t k) const { return tp::max(int64_t(0), tp::min(k, total_)) >> shift_; }

  void run_block(const int64_t* k, int64_t n, int64_t* ranks) const {
    if (n < few || shift_ == 0 || std::is_sorted(k, k + n)) {
      for (int64_t q = 0; q < n; ++q) ranks[q] = find_(k[q]);
      return;
    }
    std::vector<uint32_t> order(static_cast<size_t>(n));
    std::array<uint32_t, (1 << bucket_bits) + 1> begins{};
    for (int64_t q = 0; q < n; ++q) ++begins[size_t(bucket(k[q])) + 1];
    for (size_t b = 1; b < begins.size(); ++b) begins[b] += begins[b - 1];
    for (int64_t q = 0; q < n; ++q) order[begins[size_t(bucket(k[q]))]++] = uint32_t(q);
    for (const uint32_t q : order) ranks[q] = find_(k[q]);
  }

  int64_t total_;
  Find find_;
  int shift_ = 0;
};

// Ranks in order, of sequences that are sorted: the answers are in order, too, and no further apart than the ranks, so
// that each search is short. Of other sequences it would find other answers than a search by itself.
template <class Keys>
bool find_ranks_in_order(const Keys& x, int64_t row, const int64_t* k, int64_t n, int64_t* ranks) {
  constexpr int64_t few = 8;  // elements that are looked at for each rank
  const auto before = [&](auto one, auto other) { return x.order.image(one) < x.order.image(other); };
  const auto sorted = [&](const auto* keys, int64_t count) { return std::is_sorted(keys, keys + count, before); };
  const bool suits = (x.m + x.n) / few <= n && std::is_sorted(k, k + n);
  if (!suits || !sorted(x.a + row * x.m, x.m) || !sorted(x.b + row * x.n, x.n)) return false;
  int64_t last = 0, answer = 0;
  for (int64_t q = 0; q < n; ++q) {
    const int64_t next = tp::max(int64_t(0), tp::min(k[q], x.m + x.n));
    answer = partition_point(tp::max(answer, next - x.n), tp::min(answer + next - last, x.m),
                             [&](int64_t i) { return !x.later(row, i, next - 1 - i); });
    ranks[q] = answer, last = next;
  }
  return true;
}

}  // namespace

void merge::threaded(const Args& args, Context& context) {
  with_order(args.in,
             [&](auto order) { Threaded<typename decltype(order)::Word, decltype(order)>(args, order).run(context); });
}

void co_rank_ladder::threaded(const Args& args, Context& context) {
  if (args.step == Step::unmerge) {
    return merge::with_order(args.in, [&](auto order) { Unmerger<decltype(order)>(args, order).run(context); });
  }
  with_key_word(args.in.type, [&](auto type) {
    const auto x = merge::Keys<typename decltype(type)::type>(args.in).bind(simt::Pointers{});
    context.parallel_for(args.in.rows * args.queries, 256, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t row = begin / args.queries, n = tp::min(end, (row + 1) * args.queries) - begin;
        if (!find_ranks_in_order(x, row, args.k + begin, n, args.ranks + begin)) {
          const RankSearches searches(args.in.m + args.in.n, [&x, row](int64_t k) { return x.co_rank(row, k); });
          searches.run(args.k + begin, n, args.ranks + begin);
        }
        begin += n;
      }
    });
  });
}

}  // namespace tp
