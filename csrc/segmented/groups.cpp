#include "segmented/groups.h"

#include <algorithm>
#include <atomic>

#include "segmented/elements.h"

namespace tp::segmented {
namespace {

constexpr int64_t most_chunks = 64, rows_per_group = 4;

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

template <class E, class I>
class GroupTables {
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Bound = decltype(std::declval<E>().bind(simt::Pointers{}));

 public:
  GroupTables(const E& e, const I* index, int64_t groups, Context& context)
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
    context_.parallel_for(groups_, 1024, [&](int64_t begin, int64_t end) { join(begin, end); });
    return valid;
  }

 private:
  bool fill(int64_t c) {
    Acc* table = tables_ + c * cells_;
    int64_t* counts = counts_ + (E::mean ? c * groups_ : 0);
    std::fill(table, table + cells_, M::identity());
    if (E::mean) std::fill(counts, counts + groups_, 0);
    bool valid = true;
    const int64_t end = (c + 1) * e_.n / chunks_;
    for (int64_t row = c * e_.n / chunks_; row < end; ++row) {
      const auto group = uint64_t(int64_t(index_[row]));
      if (group >= uint64_t(groups_)) {
        valid = false;
        continue;
      }
      if (E::mean) ++counts[group];
      Acc* cell = table + int64_t(group) * e_.width;
      const typename E::Input* x = e_.in + row * e_.width;
      for (int64_t j = 0; j < e_.width; ++j) cell[j] = M::combine(cell[j], Bound::operand(x[j], row));
    }
    return valid;
  }

  void join(int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      int64_t count = 0;
      for (int64_t c = 0; E::mean && c < chunks_; ++c) count += counts_[c * groups_ + group];
      for (int64_t j = 0; j < e_.width; ++j) {
        Acc running = M::identity();
        for (int64_t c = 0; c < chunks_; ++c) {
          running = M::combine(running, tables_[c * cells_ + group * e_.width + j]);
        }
        e_.out[group * e_.width + j] = result(running, count);
      }
    }
  }

  typename E::Output result(Acc value, int64_t count) const {
    if constexpr (E::mean) {
      return typename E::Output(count > 0 ? value / Acc(count) : Acc(0));
    } else {
      return e_.bind(simt::Pointers{}).result(0, value);
    }
  }

  const E& e_;
  const I* index_;
  const int64_t groups_, cells_, chunks_;
  Context& context_;
  Acc* tables_;
  int64_t* counts_;
};

}  // namespace

bool reduce_groups(const Groups& g, Context& context) {
  bool valid = true;
  with_reduction<wide_t>(g.args, [&](const auto& e) {
    using E = std::decay_t<decltype(e)>;
    const auto reduce = [&](const auto* index) {
      using I = std::decay_t<decltype(*index)>;
      valid = GroupTables<E, I>(e, index, g.groups, context).run();
    };
    g.long_index ? reduce(static_cast<const int64_t*>(g.index)) : reduce(static_cast<const int32_t*>(g.index));
  });
  return valid;
}

}  // namespace tp::segmented
