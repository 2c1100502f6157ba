#include "segmented/groups.h"

#include <algorithm>
#include <atomic>

#include "block/on_vectors.h"
#include "segmented/combine.h"
#include "segmented/elements.h"
#include "segmented/exact_sum.h"
#include "segmented/group_atomics.h"

namespace tp::segmented {
namespace {

constexpr int64_t most_chunks = 64, rows_per_group = 16;

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

template <class E, class I>
class GroupTables {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Bound = decltype(std::declval<E>().bind(simt::Pointers{}));

 public:
  GroupTables(const E& e, const I* index, int64_t groups, int64_t most_chunks, Context& context)
      : e_(e),
        index_(index),
        groups_(groups),
        cells_(groups * e.width),
        chunks_(tp::max(int64_t(1), tp::min(e.n / tp::max(rows_per_group * groups, int64_t(1)), most_chunks))),
        context_(context),
        tables_(context.workspace<Acc>(chunks_ * cells_)),
        counts_(E::mean ? context.workspace<int64_t>(chunks_ * groups) : nullptr) {}

  bool run() {
    std::atomic<bool> valid{true};
    context_.parallel_for(chunks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        if (!fill(c)) valid = false;
      }
    });
    context_.parallel_for(groups_, tp::max(4096 / tp::max(e_.width, int64_t(1)), int64_t(1)),
                          [&](int64_t begin, int64_t end) { join(begin, end); });
    return valid;
  }

 private:
  // The data of a chunk, held by value: otherwise the compiler must assume that writing an int64 table may change it.
  struct Chunk {
    const typename E::Input* x;
    const I* index;
    int64_t begin, end, groups, width;
    Acc* table;
    int64_t* counts;

    template <bool single>
    bool fill() const {
      bool valid = true;
      for (int64_t row = begin; row < end; ++row) {
        const auto group = uint64_t(int64_t(index[row]));
        if (group >= uint64_t(groups)) {
          valid = false;
          continue;
        }
        if (E::mean) ++counts[group];
        if (single) {
          table[group] = combine<M>(table[group], Bound::operand(x[row], row));
          continue;
        }
        Acc* cell = table + int64_t(group) * width;
        const typename E::Input* from = x + row * width;
        TP_INDEPENDENT
        for (int64_t j = 0; j < width; ++j) cell[j] = combine<M>(cell[j], Bound::operand(from[j], row));
      }
      return valid;
    }
  };

  bool fill(int64_t c) const {
    Acc* table = tables_ + c * cells_;
    int64_t* counts = E::mean ? counts_ + c * groups_ : nullptr;
    std::fill(table, table + cells_, M::identity());
    if (E::mean) std::fill(counts, counts + groups_, 0);
    const Chunk chunk{e_.in, index_, c * e_.n / chunks_, (c + 1) * e_.n / chunks_, groups_, e_.width, table, counts};
    bool valid;
    bool* to = &valid;
    on_vectors([=] { *to = chunk.width == 1 ? chunk.template fill<true>() : chunk.template fill<false>(); });
    return valid;
  }

  void join(int64_t begin, int64_t end) const {
    for (int64_t c = 1; E::mean && c < chunks_; ++c) {
      for (int64_t group = begin; group < end; ++group) counts_[group] += counts_[c * groups_ + group];
    }
    constexpr int64_t some = 256;
    const int64_t width = e_.width;
    const Bound x = e_.bind(simt::Pointers{});
    for (int64_t first = begin * width; first < end * width; first += some) {
      const int64_t cells = tp::min(some, end * width - first);
      Acc running[some];
      std::fill(running, running + cells, M::identity());
      for (int64_t c = 0; c < chunks_; ++c) {
        const Acc* from = tables_ + c * cells_ + first;
        for (int64_t j = 0; j < cells; ++j) running[j] = combine<M>(running[j], from[j]);
      }
      for (int64_t j = 0; j < cells; ++j) {
        e_.out[first + j] = x.result_of(running[j], count_of(running[j], (first + j) / width));
      }
    }
  }

  // The number of rows of a group, if its result depends on it.
  int64_t count_of(const Acc& value, int64_t group) const {
    if constexpr (M::id == OpId::variance) {
      return int64_t(value.count);
    } else {
      return E::mean ? counts_[group] : 0;
    }
  }

  const E& e_;
  const I* index_;
  const int64_t groups_, cells_, chunks_;
  Context& context_;
  Acc* tables_;
  int64_t* counts_;
};

// If most groups have no rows, a table of all of them takes much longer than the rows do. So those that have rows are
// numbered in the order in which they come, and reduced by these numbers. Numbering takes as long as few elements.
bool has_few_rows(int64_t rows, int64_t width, int64_t groups) { return rows <= groups / (width < 4 ? 16 : 2); }

template <class E, class I>
class FewRows {
  using Output = typename E::Output;

 public:
  FewRows(const E& e, const I* index, int64_t groups, Context& context)
      : e_(e),
        index_(index),
        groups_(groups),
        context_(context),
        numbers_(context.workspace<int64_t>(e.n)),
        numbered_(context.workspace<int64_t>(e.n)) {}

  bool run() {
    const int64_t found = number_groups();
    E e = e_;
    e.out = context_.workspace<Output>(found * e.width);
    const bool valid = GroupTables<E, int64_t>(e, numbers_, found, 1, context_).run();
    const Output none = e.bind(simt::Pointers{}).result_of(E::Monoid::identity(), 0);
    context_.parallel_for(groups_ * e.width, int64_t(1) << 15,
                          [&](int64_t begin, int64_t end) { std::fill(e_.out + begin, e_.out + end, none); });
    for (int64_t number = 0; number < found; ++number) {
      std::copy_n(e.out + number * e.width, e.width, e_.out + numbered_[number] * e.width);
    }
    return valid;
  }

 private:
  // Numbers the groups that have rows, by a hash table, and returns how many there are. Wrong indices get -1.
  int64_t number_groups() {
    int bits = 1;
    while (int64_t(1) << bits < 2 * e_.n) ++bits;
    int64_t* const table = context_.workspace<int64_t>(int64_t(1) << bits);
    std::fill_n(table, int64_t(1) << bits, -1);
    int64_t found = 0;
    for (int64_t row = 0; row < e_.n; ++row) {
      const int64_t group = index_[row];
      numbers_[row] = -1;
      if (uint64_t(group) >= uint64_t(groups_)) continue;
      uint64_t slot = uint64_t(group) * 0x9e3779b97f4a7c15u >> (64 - bits);
      while (table[slot] >= 0 && numbered_[table[slot]] != group) slot = (slot + 1) & ((uint64_t(1) << bits) - 1);
      if (table[slot] < 0) numbered_[table[slot] = found++] = group;
      numbers_[row] = table[slot];
    }
    return found;
  }

  const E& e_;
  const I* index_;
  const int64_t groups_;
  Context& context_;
  int64_t *numbers_, *numbered_;  // [rows]: the number of its group; of the first `found` numbers, the group
};

// Whether exact sums are possible, and worth the memory that their words may need, of which most values use a small
// part. Random atomics are fast only if the words of the first bin stay in the L2 cache (50 MB on an H200). Rows with
// many columns have atomics on neighbouring words.
template <class T>
bool can_sum_exactly(const Groups& g) {
  constexpr int64_t word = sizeof(int64_t), bytes_per_element = 16, least_bytes = 1 << 20, cached = 48 << 20,
                    columns = 8;
  const int64_t cells = g.groups * g.args.width, elements = g.args.n * g.args.width;
  const int64_t most_words = Bins<T>::most_words(Bins<T>::width_for(g.args.n));
  return g.args.n < Bins<T>::most_rows &&
         cells <= tp::max(bytes_per_element * elements, least_bytes) / (word * most_words) &&
         (g.args.width >= columns || cells <= cached / word);
}

}  // namespace

bool can_reduce_groups(const Device& device, const Groups& g) {
  const DType dtype = g.args.dtype;
  if (!device.cuda) return true;
  switch (g.args.op) {
    case OpId::sum:
      return dtype == DType::float32    ? can_sum_exactly<float>(g)
             : dtype == DType::float16  ? can_sum_exactly<half>(g)
             : dtype == DType::bfloat16 ? can_sum_exactly<bfloat16>(g)
                                        : dtype < DType::float16;
    case OpId::prod:
      return dtype < DType::float16;
    case OpId::max:
    case OpId::min:
    case OpId::bitwise_and:
    case OpId::bitwise_or:
    case OpId::bitwise_xor:
      return true;
    default:
      return false;
  }
}

bool reduce_groups(const Groups& g, Context& context) {
#ifdef TP_WITH_CUDA
  if (context.device.cuda) {
    reduce_groups_by_atomics(g, context);
    return true;
  }
#endif
  bool valid = true;
  with_reduction<wide_t>(g.args, [&](const auto& e) {
    using E = std::decay_t<decltype(e)>;
    const auto reduce = [&](const auto* index) {
      using I = std::decay_t<decltype(*index)>;
      valid = has_few_rows(e.n, e.width, g.groups) ? FewRows<E, I>(e, index, g.groups, context).run()
                                                   : GroupTables<E, I>(e, index, g.groups, most_chunks, context).run();
    };
    g.long_index ? reduce(static_cast<const int64_t*>(g.index)) : reduce(static_cast<const int32_t*>(g.index));
  });
  return valid;
}

}  // namespace tp::segmented
