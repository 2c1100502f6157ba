// A + B, A - B and A * B on the device: the launches of entrywise_tiles.h, rows that are not in order, and values at
// the positions of another structure.
//
// A matrix whose rows are not in order is multiplied by the identity: that product has sorted, distinct columns and
// adds up duplicates.
#include <array>

#include "core/for_each.h"
#include "scan/scan.h"
#include "sparse/check_columns.h"
#include "sparse/entrywise_passes.h"
#include "sparse/spgemm.h"

namespace tp::sparse {
namespace {

using namespace entrywise_tiles;
constexpr const char* kernel_name = "entrywise";

// ---- rows that are not in order; values at other positions

// The identity: entry i is 1, in row and column i.
template <class T, class I>
struct Identity {
  I* numbers;  // [rows + 1]: both the row pointers and the columns
  T* ones;
  int64_t rows;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto to = block.global("numbers", numbers, rows + 1);
    const auto values = block.global("ones", ones, rows);
    simt::for_each(block, "identity", rows + 1, [&](int64_t i) {
      to[i] = I(i);
      if (i < rows) values[i] = T(1);
    });
  }
};

// Finds the value of A at the position of each entry of B. A's rows are in order; B's columns may be in any order.
template <class T, class I>
struct LookUp {
  Operands<I> operands;
  const T* a;
  T* out;
  Findings found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = operands.bind(block);
    const auto values = block.global("a_values", a, operands.a.entries);
    const auto to = block.global("out", out, operands.b.entries);
    const auto notes = found.bind(block);
    for_each_entry(block, "look_up", x.b_ptrs, operands.b.rows, operands.b.entries, [&](int64_t e, auto row_of) {
      const int64_t column = x.b_idx[e], row = row_of(), begin = x.a_ptrs[row], end = x.a_ptrs[row + 1];
      const int64_t at = partition_point(begin, end, [&](int64_t i) { return int64_t(x.a_idx[i]) < column; });
      const int64_t there = at < end ? int64_t(x.a_idx[at]) : -1;
      T value(0);
      if (there == column) value = values[at];
      to[e] = value;
      if (!inside(column, operands.b.cols)) notes[invalid] = boolean(true);
    });
  }
};

template <class T, class I>
class OnDevice {
 public:
  OnDevice(const EntrywiseArgs& args, Context& context)
      : args_(args), context_(context), operands_{of(args.a), of(args.b)} {}

  void combine(Entrywise op, I* ptrs, const std::function<Room(int64_t)>& room) {
    const T *a = values(args_.a), *b = values(args_.b);
    Counted counted = count(op);
    const auto found = counted.found;
    if (found[a_not_in_order]) a = put_in_order(operands_.a, a);
    if (found[b_not_in_order]) b = put_in_order(operands_.b, b);
    if (found[a_not_in_order] || found[b_not_in_order]) counted = count(op);
    const Room to = room(counted.n);
    const Output<T, I> c{
        counted.tiles, op, a, b, counted.before, ptrs, static_cast<I*>(to.col_idx), static_cast<T*>(to.values),
        counted.n};
    if (counted.found[some_pairs]) launch(counted.tiles, 0, WritePairs<T, I>{c});
    if (counted.found[some_others]) launch(counted.tiles, WriteEntries<T, I>::shared_bytes, WriteEntries<T, I>{c});
  }

  void values_at(T* out) {
    const T* a = values(args_.a);
    const Structure<I>& m = operands_.a;
    found_ = {context_.workspace<int64_t>(1)};
    check_pointers();
    boolean* const findings = found_.data();
    const CheckColumns<I> check{m.ptrs,
                                m.idx,
                                m.rows,
                                m.cols,
                                m.entries,
                                findings + invalid,
                                findings + a_not_in_order,
                                findings + a_not_in_order};
    launch_for_each_entry(context_, kernel_name, m.entries, check);
    if (read_found()[a_not_in_order]) a = put_in_order(operands_.a, a);
    launch_for_each_entry(context_, kernel_name, args_.b.entries, LookUp<T, I>{operands_, a, out, found_});
    read_found();
  }

 private:
  Structure<I> of(const Operand& m) const {
    return {static_cast<const I*>(m.ptrs), static_cast<const I*>(m.idx), m.entries, args_.rows, args_.cols};
  }
  static const T* values(const Operand& m) { return static_cast<const T*>(m.values); }

  template <class Kernel>
  void each(int64_t n, const Kernel& kernel) {
    simt::launch_for_each(context_, kernel_name, n, kernel);
  }
  template <class Kernel>
  void launch(const Tiles<I>& tiles, int64_t shared_bytes, const Kernel& kernel) {
    simt::launch(context_, kernel_name, {tp::min(tiles.tiles, max_grid)}, threads, shared_bytes, kernel);
  }

  using Found = std::array<bool, findings>;

  void check_pointers() {
    context_.clear(found_.word, sizeof(int64_t));
    each(args_.rows + 1, CheckPointers<I>{operands_.a, found_});
    each(args_.rows + 1, CheckPointers<I>{operands_.b, found_});
  }

  // Takes apart what the device has found, and refuses operands that are invalid.
  Found found(int64_t word) const {
    Found all{};
    for (int i = 0; i < findings; ++i) all[size_t(i)] = (word >> (8 * i) & 0xff) != 0;
    if (all[bad_pointers] || all[invalid]) {
      args_.explain();
      fail(ErrorKind::index, args_.op, ": an index is out of range");
    }
    return all;
  }
  // Waits for the device, and reads what it has found so far.
  Found read_found() const {
    int64_t word;
    args_.read(found_.word, 1, &word);
    return found(word);
  }

  // The tiles, how many entries of C come before each, and how many there are. Waits for the device.
  struct Counted {
    Tiles<I> tiles;
    const int64_t* before;
    int64_t n;
    Found found;
  };
  Counted count(Entrywise op) {
    const int64_t items = operands_.items(), n = tp::max(int64_t(1), ceil_div(items, int64_t(tile)));
    int64_t *const rows = context_.workspace<int64_t>(n + 1), *const of_a = context_.workspace<int64_t>(n + 1);
    int64_t *const counts = context_.workspace<int64_t>(n + 1), *const before = context_.workspace<int64_t>(n + 2);
    int *const leads = context_.workspace<int>(n + 1), *const paired = context_.workspace<int>(n);
    found_ = {before + n + 1};  // behind the number of entries, so that both are read at once
    check_pointers();
    each(n + 1, Cut<I>{operands_, found_, rows, of_a, n, items, leads});
    const Tiles<I> tiles{operands_, found_, op == Entrywise::multiply, rows, of_a, leads, paired, n, items};
    launch(tiles, Tiles<I>::shared_bytes, CountEntries<I>{tiles, counts, paired});
    scan::scan_counts(context_, counts, before, 1, n + 1);
    int64_t numbers[2];
    args_.read(before + n, 2, numbers);
    return {tiles, before, numbers[0], found(numbers[1])};
  }

  // Replaces a structure by the one whose rows are in order, and returns its values.
  const T* put_in_order(Structure<I>& m, const T* values) {
    I* const numbers = context_.workspace<I>(m.rows + 1);
    T* const ones = context_.workspace<T>(m.rows);
    each(m.rows + 1, Identity<T, I>{numbers, ones, m.rows});
    SpgemmArgs product{};
    product.op = args_.op;
    product.wanted = Wanted::product;
    product.a_ptrs = product.a_idx = numbers, product.a = ones;
    product.b_ptrs = m.ptrs, product.b_idx = m.idx, product.b = values;
    product.a_entries = product.rows = product.inner = m.rows;
    product.b_entries = m.entries, product.cols = m.cols;
    product.dtype = args_.dtype, product.long_index = args_.long_index;
    product.ptrs = context_.workspace<int64_t>(m.rows + 1);
    product.read = args_.read;
    const T* sums = nullptr;
    product.room = [&](int64_t n) {
      I* const idx = context_.workspace<I>(n);
      T* const own = context_.workspace<T>(n);
      m.idx = idx, m.entries = n, sums = own;
      return SpgemmArgs::Room{idx, own};
    };
    spgemm::expand_sort_compress(product, context_);
    I* const ptrs = context_.workspace<I>(m.rows + 1);
    each(m.rows + 1, simt::Convert<int64_t, I>{product.ptrs, ptrs, m.rows + 1});
    m.ptrs = ptrs;
    return sums;
  }

  const EntrywiseArgs& args_;
  Context& context_;
  Findings found_{};
  Operands<I> operands_;
};

}  // namespace

void entrywise_in_tiles(Entrywise op, const EntrywiseArgs& args, void* ptrs, const std::function<Room(int64_t)>& room,
                        Context& context) {
  with_types(args, [&](auto type, auto index) {
    using I = typename decltype(index)::type;
    OnDevice<typename decltype(type)::type, I>(args, context).combine(op, static_cast<I*>(ptrs), room);
  });
}

void look_up_values(const EntrywiseArgs& args, void* out, Context& context) {
  with_types(args, [&](auto type, auto index) {
    using T = typename decltype(type)::type;
    OnDevice<T, typename decltype(index)::type>(args, context).values_at(static_cast<T*>(out));
  });
}

}  // namespace tp::sparse
