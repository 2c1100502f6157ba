// The production sort of the CPU.
//
// Keys are replaced by words that hold their images, so that the passes see only unsigned digits; results are made from
// the words of each range, while it is in the cache. A word of a key of at most 32 bits also holds its position in the
// row, or a value of 32 bits. Positions are the result of argsort. By them, values of other sizes are gathered, and
// keys whose image does not tell them apart, because there is a -0.0 or a NaN.
//
// Rows (or segments) are distributed over the threads by their numbers of keys. If a row is longer than a thread's fair
// share, all threads together partition it by its leading digit, chunk by chunk, and its buckets are distributed
// instead. Within a bucket, the keys of a chunk follow those of earlier chunks, so the partition is stable, and the
// result does not depend on the number of threads.
#include "sort/threaded.h"

#include <atomic>
#include <vector>

#include "block/on_vectors.h"
#include "sort/host_items.h"
#include "sort/rows_by_network.h"

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

template <class Items>
class Sorter {
  using W = typename Items::Word;
  using L = typename Items::Lines;

  struct Range {
    int64_t begin, n, row;  // row: where its row begins
    W window;               // the bits by which the keys are still to be sorted
    bool in_spare;
  };

 public:
  Sorter(const Args& args, const Items& items, Context& context)
      : args_(args),
        items_(items),
        context_(context),
        fair_(tp::max(tp::max(int64_t(1) << 15, args.size() / (4 * context.device.threads)),
                      context.device.threads == 1 ? items.most_in_network() : int64_t(0))),
        out_(items.sorted(context)) {
    const int64_t size = args.size();
    for (int64_t row = 0; row < args.rows; ++row) {
      (length(row) > fair_ ? longest_ : longest_small_) =
          tp::max(length(row) > fair_ ? longest_ : longest_small_, length(row));
    }
    const int64_t workers = tp::min(int64_t(context.device.threads), args.rows);
    scratch_size_ = ceil_div(longest_small_, int64_t(64)) * 64;
    const int64_t spare = tp::max(longest_ > 0 ? size : int64_t(0), workers * scratch_size_);
    spare_.keys = context.workspace<W>(spare);
    if constexpr (L::has_payload) spare_.payloads = context.workspace<std::decay_t<decltype(*spare_.payloads)>>(spare);
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
      sort_range(buffer(x.in_spare).at(x.begin), other, x.n, x.window, x.in_spare, items_.most_in_network());
      store(x.begin, x.n, x.row);
    });
    copy(0, first);
    copy(last, size);
  }

 private:
  const L& buffer(bool spare) const { return spare ? spare_ : out_; }
  int64_t length(int64_t row) const { return args_.begin(row + 1) - args_.begin(row); }

  void sort_small_rows() {
    const int64_t mean = args_.size() / tp::max(args_.rows, int64_t(1));
    share(context_, args_.rows, 1 + (1 << 14) / (1 + mean), [&](int64_t row, int64_t last, int64_t worker) {
      const L scratch = spare_.at(worker * scratch_size_);
      for (; row < last; ++row) {
        const int64_t begin = args_.begin(row), n = length(row);
        if (n > fair_) continue;
        load(begin, n, begin, scratch);
        sort_range(scratch, out_.at(begin), n, items_.window(), true, items_.most_in_network());
        store(begin, n, begin);
      }
    });
  }

  void split_row(int64_t row) {
    const int64_t begin = args_.begin(row), n = length(row), chunk = chunk_of(n);
    std::vector<W> differ(size_t(ceil_div(n, chunk)));
    load(begin, 1, begin, spare_.at(begin));
    const W first = spare_.keys[begin];
    share(context_, n, chunk, [&](int64_t i, int64_t end, int64_t) {
      load(begin + i, end - i, begin, spare_.at(begin + i));
      differ[size_t(i / chunk)] = differing(spare_.keys + begin + i, end - i, first);
    });
    W bits = 0;
    for (const W d : differ) bits = W(bits | d);
    split({begin, n, begin, W(items_.window() & bits), true});
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
        split({x.begin + bounds[d], bounds[d + 1] - bounds[d], x.row, below(x.window, digit), !x.in_spare});
    }
  }
  static int64_t chunk_of(int64_t n) { return tp::max(int64_t(1) << 14, ceil_div(n, int64_t(256))); }

  // Copies keys begin .. end, which are outside all segments, to the result. Each piece counts as a row of its own.
  void copy(int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; i += fair_) {
      const int64_t n = tp::min(fair_, end - i);
      load(i, n, i, out_.at(i));
      store(i, n, i);
    }
  }

  void load(int64_t begin, int64_t n, int64_t row, const L& to) const {
    on_vectors([=, items = items_] { items.load(begin, n, row, to); });
  }
  // Makes results from a sorted range of `out_`.
  void store(int64_t begin, int64_t n, int64_t row) const {
    on_vectors([=, items = items_, from = out_.at(begin)] { items.store(from, begin, n, row); });
  }

  const Args& args_;
  const Items items_;
  Context& context_;
  const int64_t fair_;
  L out_, spare_{};
  int64_t longest_ = 0, longest_small_ = 0;  // longest row above a fair share, and longest of the other rows
  int64_t scratch_size_ = 0;                 // elements of `spare_` for each worker, for the other rows
  std::vector<Range> rest_;
};

// Values of rows of up to so many keys are gathered by positions, and do not move with the keys.
template <class Key>
constexpr int64_t most_gathered = sizeof(Key) < 4 ? 1 << 14 : 1 << 12;

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

template <class Items>
void sort_items(const Args& args, const Items& items, Context& context) {
#ifdef TP_WITH_ROW_NETWORKS
  if constexpr (has_network<Items>) {
    if (suits_network(args, items, context.device.threads)) return sort_rows_by_network(args, items, context);
  }
#endif
  Sorter<Items>(args, items, context).run();
}

int64_t longest_row(const Args& args) {
  if (!args.offsets) return args.n;
  int64_t longest = 0;
  for (int64_t row = 0; row < args.rows; ++row) longest = tp::max(longest, args.begin(row + 1) - args.begin(row));
  return longest;
}

// Sorts keys with values, or to positions, or keys that cannot be restored from their images.
template <class Key>
void sort_with_payload(const Args& args, bool lossy, Context& context) {
  const bool four = args.values && args.value_bytes == 4, eight = args.values && args.value_bytes == 8;
  const int64_t longest = longest_row(args);
  const bool gathers = lossy || !(four || eight) || longest <= most_gathered<Key>;
  if constexpr (sizeof(Key) == 8) {
    const bool positions = lossy || !(four || eight);
    if (positions ? args.size() <= int64_t(1) << 32 : four) {
      return sort_items(args, Beside<Key, uint32_t>(args, lossy, positions), context);
    }
    return sort_items(args, Beside<Key, uint64_t>(args, lossy, positions), context);
  } else {
    if constexpr (sizeof(Key) < 4) {
      using Items = Packed<Key, uint32_t>;
      if (gathers && longest <= Items::most_positions) return sort_items(args, Items(args, lossy, true), context);
    }
    using Items = Packed<Key, uint64_t>;
    if (gathers ? longest <= Items::most_positions : four) {
      return sort_items(args, Items(args, lossy, gathers), context);
    }
    return sort_items(args, Beside<Key, uint64_t>(args, lossy, gathers), context);
  }
}

void sort_rows(const Args& args, Context& context) {
  with_key_word(args.type, [&](auto type) {
    using Key = typename decltype(type)::type;
    const bool lossy = any_lossy<Key>(args, context);
    if (args.values_out || lossy) return sort_with_payload<Key>(args, lossy, context);
    sort_items(args, KeysAlone<Key>(args), context);
  });
}

}  // namespace
}  // namespace sort::host

void sort::threaded(const Args& args, Context& context) { host::sort_rows(args, context); }
void segment_sort::threaded(const Args& args, Context& context) { sort::host::sort_rows(args, context); }

}  // namespace tp
