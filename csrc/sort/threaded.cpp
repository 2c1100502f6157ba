// The production sort of the CPU.
//
// Keys are replaced by their images, so that the passes see only unsigned digits; they are restored at the end of each
// range, while it is in the cache. If different keys may have the same image, because there is a -0.0 or a NaN, the
// sort moves original indices as payloads and then gathers the keys by them. Values that are neither 4 nor 8 bytes are
// gathered in the same way; for argsort, the indices are the result.
//
// Rows (or segments) are distributed over the threads by their numbers of keys. If a row is longer than a thread's fair
// share, all threads together partition it by its leading digit, chunk by chunk, and its buckets are distributed
// instead. Within a bucket, the keys of a chunk follow those of earlier chunks, so the partition is stable, and the
// result does not depend on the number of threads.
#include "sort/threaded.h"

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "block/on_vectors.h"
#include "sort/row_network.h"

namespace tp {
namespace sort::host {
namespace {

// Calls f(begin, end, worker) for 0 .. n in pieces of `grain` elements. A worker takes the next piece as soon as it is
// free.
template <class F>
void share(Context& context, int64_t n, int64_t grain, F f) {
  std::atomic<int64_t> next{0};
  const int64_t workers = tp::min(int64_t(context.device.threads), ceil_div(n, grain));
  context.parallel_for(workers, 1, [&](int64_t first, int64_t last) {
    for (int64_t worker = first; worker < last; ++worker) {
      for (int64_t i; (i = next.fetch_add(grain)) < n;) f(i, tp::min(i + grain, n), worker);
    }
  });
}

template <class W, class Payload>
class Sorter {
  using L = Buffer<W, Payload>;

  struct Range {
    int64_t begin, n, origin;  // origin: the position of the key with index 0
    W window;                  // the bits by which the keys are still to be sorted
    bool in_spare;
  };

 public:
  // `indices`: the payloads are original indices, not values. `lossy`: keys cannot be restored from their images, so
  // they are gathered by original indices.
  Sorter(const Args& args, Context& context, bool lossy, bool indices)
      : args_(args),
        context_(context),
        order_(args.order<W>()),
        keys_(static_cast<const W*>(args.keys)),
        lossy_(lossy),
        indices_(indices),
        whole_(!L::has_payload && args.begin_bit == 0 && args.end_bit == args.type.bits),
        fair_(tp::max(tp::max(int64_t(1) << 15, args.size() / (4 * context.device.threads)),
                      whole_ && context.device.threads == 1 ? most_in_network<W> : int64_t(0))) {
    const int64_t size = args.size();
    for (int64_t row = 0; row < args.rows; ++row) {
      (length(row) > fair_ ? longest_ : longest_small_) =
          tp::max(length(row) > fair_ ? longest_ : longest_small_, length(row));
    }
    const int64_t workers = tp::min(int64_t(context.device.threads), args.rows);
    scratch_size_ = ceil_div(longest_small_, int64_t(64)) * 64;
    const int64_t spare = tp::max(longest_ > 0 ? size : int64_t(0), workers * scratch_size_);
    out_.keys = args.keys_out && !lossy ? static_cast<W*>(args.keys_out) : context.workspace<W>(size);
    spare_.keys = context.workspace<W>(spare);
    if constexpr (L::has_payload) {
      const bool direct =
          args.values_out && (!indices || (args.positions() && args.value_bytes == int(sizeof(Payload))));
      out_.payloads = direct ? static_cast<Payload*>(args.values_out) : context.workspace<Payload>(size);
      spare_.payloads = context.workspace<Payload>(spare);
      converts_ = args.values_out && !direct;
    }
  }

  void run() {
    const int64_t first = args_.begin(0), last = args_.begin(args_.rows), size = args_.size();
    sort_small_rows();  // first: it uses spare memory that the other steps fill
    for (int64_t row = 0; row < args_.rows; ++row) {
      if (length(row) > fair_) split_row(row);
    }
    std::sort(rest_.begin(), rest_.end(), [](const Range& a, const Range& b) { return a.n > b.n; });
    // If no range uses the spare memory, each worker uses the same part of it again and again, which stays in its
    // cache.
    const int64_t longest = rest_.empty() ? 0 : rest_[0].n;
    const bool local = longest * context_.device.threads <= size &&
                       std::none_of(rest_.begin(), rest_.end(), [](const Range& x) { return x.in_spare; });
    share(context_, int64_t(rest_.size()), 1, [&](int64_t i, int64_t, int64_t worker) {
      const Range& x = rest_[size_t(i)];
      const L other = local ? spare_.at(worker * longest) : buffer(!x.in_spare).at(x.begin);
      sort_range(buffer(x.in_spare).at(x.begin), other, x.n, x.window, x.in_spare, whole_);
      store(x.begin, x.n, x.origin);
    });
    for (const auto& gap : {std::pair{int64_t(0), first}, std::pair{last, size}}) {  // keys outside all segments
      load(gap.first, gap.second - gap.first, 0, out_.at(gap.first));
      store(gap.first, gap.second - gap.first, 0);
    }
  }

 private:
  const L& buffer(bool spare) const { return spare ? spare_ : out_; }
  int64_t length(int64_t row) const { return args_.begin(row + 1) - args_.begin(row); }
  int64_t origin(int64_t row) const { return args_.offsets ? 0 : args_.begin(row); }
  W window() const { return W(order_.mask << order_.begin); }

  void sort_small_rows() {
    const int64_t mean = args_.size() / tp::max(args_.rows, int64_t(1));
    share(context_, args_.rows, 1 + (1 << 14) / (1 + mean), [&](int64_t row, int64_t last, int64_t worker) {
      const L scratch = spare_.at(worker * scratch_size_);
      for (; row < last; ++row) {
        const int64_t begin = args_.begin(row), n = length(row);
        if (n > fair_) continue;
        load(begin, n, origin(row), scratch);
        sort_range(scratch, out_.at(begin), n, window(), true, whole_);
        store(begin, n, origin(row));
      }
    });
  }

  void split_row(int64_t row) {
    const int64_t begin = args_.begin(row), n = length(row), chunk = chunk_of(n);
    std::vector<W> differ(size_t(ceil_div(n, chunk)));
    const W first = order_.image(keys_[begin]);
    share(context_, n, chunk, [&](int64_t i, int64_t end, int64_t) {
      load(begin + i, end - i, origin(row), spare_.at(begin + i));
      differ[size_t(i / chunk)] = differing(spare_.keys + begin + i, end - i, first);
    });
    W bits = 0;
    for (const W d : differ) bits = W(bits | d);
    split({begin, n, origin(row), W(window() & bits), true});
  }

  // Partitions every range that is longer than a fair share by its leading digit, with all threads, until no part is
  // longer.
  void split(const Range& x) {
    if (x.n <= fair_ || !x.window) return rest_.push_back(x);
    const Digit<W> digit = leading_digit(x.window);
    const L from = buffer(x.in_spare).at(x.begin), to = buffer(!x.in_spare).at(x.begin);
    const int64_t chunk = chunk_of(x.n), chunks = ceil_div(x.n, chunk);
    std::vector<std::array<int64_t, radix>> next(size_t(chunks), std::array<int64_t, radix>{});
    share(context_, x.n, chunk, [&](int64_t i, int64_t end, int64_t) {
      auto& counts = next[size_t(i / chunk)];
      for (; i < end; ++i) ++counts[digit(from.keys[i])];
    });
    std::array<int64_t, radix + 1> bounds{};
    int64_t sum = 0;
    for (size_t d = 0; d < size_t(radix); ++d) {
      for (auto& counts : next) sum += std::exchange(counts[d], sum);
      bounds[d + 1] = sum;
    }
    share(context_, x.n, chunk, [&](int64_t i, int64_t end, int64_t) {
      auto begins = next[size_t(i / chunk)];
      scatter_by_size(from.at(i), to, end - i, x.n, digit, begins.data());
    });
    for (size_t d = 0; d < size_t(radix); ++d) {
      if (bounds[d] < bounds[d + 1])
        split({x.begin + bounds[d], bounds[d + 1] - bounds[d], x.origin, below(x.window, digit), !x.in_spare});
    }
  }
  static int64_t chunk_of(int64_t n) { return tp::max(int64_t(1) << 14, ceil_div(n, int64_t(256))); }

  // Loads n keys and payloads from `begin` on.
  void load(int64_t begin, int64_t n, int64_t origin, const L& to) const {
    on_vectors([n, order = order_, from = keys_ + begin, keys = to.keys] {
      TP_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) keys[i] = order.image(from[i]);
    });
    if constexpr (L::has_payload) {
      if (indices_) {
        for (int64_t i = 0; i < n; ++i) to.payloads[i] = Payload(begin + i - origin);
      } else {
        std::copy_n(static_cast<const Payload*>(args_.values) + begin, n, to.payloads);
      }
    }
  }

  // Copies a sorted range from `out_` to the requested outputs.
  void store(int64_t begin, int64_t n, int64_t origin) const {
    const int64_t end = begin + n;
    if (args_.keys_out && !lossy_) {
      on_vectors([n, order = order_, keys = out_.keys + begin] {
        TP_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) keys[i] = order.raw(keys[i]);
      });
    }
    if constexpr (L::has_payload) {
      if (args_.keys_out && lossy_) {
        auto* keys = static_cast<W*>(args_.keys_out);
        for (int64_t i = begin; i < end; ++i) keys[i] = keys_[origin + int64_t(out_.payloads[i])];
      }
      if (!converts_) return;
      with_word(args_.value_bytes, [&](auto type) {
        using V = typename decltype(type)::type;
        auto* to = static_cast<V*>(args_.values_out);
        if (args_.values) {
          const auto* from = static_cast<const V*>(args_.values) + origin;
          for (int64_t i = begin; i < end; ++i) to[i] = from[out_.payloads[i]];
        } else if constexpr (std::is_integral<V>::value) {
          for (int64_t i = begin; i < end; ++i) to[i] = V(out_.payloads[i]);
        }
      });
    }
  }

  const Args& args_;
  Context& context_;
  const KeyOrder<W> order_;
  const W* keys_;
  L out_{}, spare_{};
  const bool lossy_, indices_;
  bool converts_ = false;  // whether indices become positions of another width, or values
  const bool whole_;       // whether there are keys alone, which are compared by all their bits
  const int64_t fair_;
  int64_t longest_ = 0, longest_small_ = 0;  // longest row above a fair share, and longest of the other rows
  int64_t scratch_size_ = 0;                 // elements of `spare_` for each worker, for the other rows
  std::vector<Range> rest_;
};

template <class W>
bool any_lossy(const Args& args, Context& context) {
  if (args.type.kind != KeyKind::floating) return false;
  const KeyOrder<W> order = args.order<W>();
  const auto* keys = static_cast<const W*>(args.keys);
  std::atomic<bool> found{false};
  share(context, args.size(), 1 << 16, [&](int64_t begin, int64_t end, int64_t) {
    W any = 0;
    on_vectors([=, &any] {
      for (int64_t i = begin; i < end; ++i) any |= W(order.lossy(keys[i]));
    });
    if (any) found = true;
  });
  return found;
}

#ifdef TP_WITH_ROW_NETWORKS
// The greatest number of keys in a row that is sorted by a network. Above it, the log^2 n steps of a network cost more
// than digits do. For long rows of this kind, every thread still gets some.
template <class W>
constexpr int64_t most_network_keys = sizeof(W) == 8 ? 1 << 13 : 1 << 16;
constexpr int64_t few_network_keys = 1 << 10;

// Sorts many short rows without payloads, compared by all bits.
template <class W>
bool suits_network(const Args& args, int threads) {
  return !args.offsets && args.n > 1 && args.n <= most_network_keys<W> &&
         args.rows >= RowNetwork<W>::lanes * (args.n <= few_network_keys ? 1 : threads) && args.begin_bit == 0 &&
         args.end_bit == args.type.bits;
}

template <class W>
void sort_by_network(const Args& args, Context& context) {
  using Network = RowNetwork<W>;
  using S = typename Network::S;
  using V = typename Network::V;
  constexpr int64_t lanes = Network::lanes;
  constexpr W sign = W(W(1) << (8 * sizeof(W) - 1));
  const int64_t n = args.n, rows = args.rows;
  constexpr int64_t unit = tp::max(lanes, int64_t(Network::block));
  const int64_t padded = ceil_div(n, unit) * unit;
  context.parallel_for(ceil_div(rows, lanes), 1 + (1 << 14) / (lanes * n), [&](int64_t begin, int64_t end) {
    // [lanes, padded] as words and [padded, lanes] as vectors.
    struct alignas(64) Line {
      S words[64 / sizeof(S)];
    };
    const std::unique_ptr<Line[]> lines(new Line[size_t(2 * padded * lanes) * sizeof(S) / sizeof(Line)]);
    S* const space = lines[0].words;
    const auto* keys = static_cast<const W*>(args.keys);
    auto* out = static_cast<W*>(args.keys_out);
    on_vectors([=, order = args.order<W>(), by_row = space, x = reinterpret_cast<V*>(space + padded * lanes)] {
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = group * lanes, count = tp::min(lanes, rows - first);
        for (int64_t l = 0; l < lanes; ++l) {
          const W* from = keys + (first + tp::min(l, count - 1)) * n;
          S* to = by_row + l * padded;
          TP_INDEPENDENT
          for (int64_t i = 0; i < n; ++i) to[i] = S(W(order.image(from[i]) ^ sign));
          std::fill(to + n, to + padded, std::numeric_limits<S>::max());
        }
        for (int64_t i = 0; i < padded; i += lanes) {
          for (int64_t l = 0; l < lanes; ++l) std::memcpy(x + i + l, by_row + l * padded + i, sizeof(V));
          Network::transpose(x + i);
        }
        Network::sort(x, padded);
        for (int64_t i = 0; i < padded; i += lanes) {
          Network::transpose(x + i);
          for (int64_t l = 0; l < lanes; ++l) std::memcpy(by_row + l * padded + i, x + i + l, sizeof(V));
        }
        for (int64_t l = 0; l < count; ++l) {
          const S* from = by_row + l * padded;
          W* to = out + (first + l) * n;
          TP_INDEPENDENT
          for (int64_t i = 0; i < n; ++i) to[i] = order.raw(W(W(from[i]) ^ sign));
        }
      }
    });
  });
}
#endif

void sort_rows(const Args& args, Context& context) {
  with_key_word(args.type, [&](auto type) {
    using W = typename decltype(type)::type;
    const bool lossy = any_lossy<W>(args, context);
    const bool moves = args.values && (args.value_bytes == 4 || args.value_bytes == 8);
    if (!args.values_out && !lossy) {
#ifdef TP_WITH_ROW_NETWORKS
      if constexpr (sizeof(W) > 1) {
        if (suits_network<W>(args, context.device.threads)) return sort_by_network<W>(args, context);
      }
#endif
      return Sorter<W, NoPayload>(args, context, false, false).run();
    }
    const bool indices = lossy || !moves;
    const bool narrow = indices ? args.n <= int64_t(1) << 32 : args.value_bytes == 4;
    if (narrow) return Sorter<W, uint32_t>(args, context, lossy, indices).run();
    Sorter<W, uint64_t>(args, context, lossy, indices).run();
  });
}

}  // namespace
}  // namespace sort::host

void sort::threaded(const Args& args, Context& context) { host::sort_rows(args, context); }
void segment_sort::threaded(const Args& args, Context& context) { sort::host::sort_rows(args, context); }

}  // namespace tp
