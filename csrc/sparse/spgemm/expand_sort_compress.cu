// Writes out all products, row by row of A, sorts them by their position in C and adds them up (Bell, Dalton and Olson,
// Exposing fine-grained parallelism in algebraic multigrid methods, 2012). The library's own scan, sort and segmented
// reduction do the work, so it is balanced whatever the lengths of the rows and the order of the columns.
//
// Product p comes from entry owner[p] of A. The products of one owner are contiguous, so p's distance from the first of
// them is the distance of its entry of B from the start of the row of B. Products are already grouped by row, so only
// the columns within each row have to be sorted; the sort is stable, so each sum adds its products in their order. If
// C's structure is known, each product looks up its entry of C. The gradient of A's values needs no sort; that of B's
// values sorts by the entry of B.
#include "core/for_each.h"
#include "scan/scan.h"
#include "segmented/segmented.h"
#include "sparse/check_columns.h"
#include "sparse/spgemm/factors.h"
#include "sparse/spgemm/products.h"
#include "sparse/spgemm/sort_columns.h"

namespace tp {
namespace {

using namespace sparse;

constexpr const char* rung = "expand_sort_compress";

// to[i] = from[at[i]], or i if `from` is null.
template <class I, class To>
struct Gather {
  const int64_t* from;
  const I* at;
  To* to;
  int64_t n, size;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto source = block.global("from", from, size);
    const auto index = block.global("at", at, n);
    const auto target = block.global("to", to, n);
    simt::for_each(block, "gather", n, [&](int64_t i) {
      if (from == nullptr) {
        target[i] = To(i);
      } else {
        const int64_t k = index[i], value = source[k];
        target[i] = To(value);
      }
    });
  }
};

// The keys by which products are sorted: the column, the entry of C, or the entry of B. If C lacks the entry of a
// product, its key is the next entry's.
template <class I>
struct Keys {
  Lists<I> lists;
  I* keys;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto s = lists.bind(block);
    const auto to = block.global("keys", keys, lists.products);
    simt::for_each(block, "keys", lists.products, [&](int64_t p) {
      const int64_t e = s.owner[p], g = s.entry_of_b(p, e);
      int64_t key = g;
      if (lists.wanted != Wanted::b) key = s.b_idx[g];
      bool found = false;
      if (lists.wanted == Wanted::c) key = tp::min(s.entry_of_c(s.row_of(e), key, found), lists.c_entries - 1);
      to[p] = I(key);
    });
  }
};

// Flags every position where a sorted column differs from the one before it.
template <class I>
struct Differ {
  const I* sorted;
  boolean* first;
  int64_t n;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = block.global("sorted", sorted, n);
    const auto to = block.global("first", first, n + 1);
    simt::for_each(block, "differ", n, [&](int64_t p) {
      const int64_t key = keys[p], left = p > 0 ? int64_t(keys[p - 1]) : -1;
      to[p] = boolean(key != left);
    });
  }
};

// Flags also every position where a row begins.
struct BeginRows {
  const int64_t* begins;
  boolean* first;
  int64_t rows, n;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto from = block.global("begins", begins, rows + 1);
    const auto to = block.global("first", first, n + 1, simt::Sharing::idempotent);
    simt::for_each(block, "begin rows", rows + 1, [&](int64_t i) {
      const int64_t p = from[i];
      to[p] = boolean(true);
    });
  }
};

// Writes the column of each entry of C and the number of its first product.
template <class I>
struct Compress {
  const I* sorted;
  const boolean* first;
  const int64_t* entries;
  I* columns;
  int64_t *starts, n, found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = block.global("sorted", sorted, n);
    const auto is_first = block.global("first", first, n + 1);
    const auto at = block.global("entries", entries, n + 1);
    const auto to = block.global("columns", columns, found);
    const auto begin = block.global("starts", starts, found + 1);
    simt::for_each(block, "compress", n + 1, [&](int64_t p) {
      const boolean here = is_first[p];
      if (!bool(here)) return;
      const int64_t entry = at[p];
      begin[entry] = p;
      if (p == n) return;
      const I key = keys[p];
      to[entry] = key;
    });
  }
};

// Finds the first product of each output among the sorted keys.
template <class I>
struct Starts {
  const I* sorted;
  int64_t* starts;
  int64_t n, outputs;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto keys = block.global("sorted", sorted, n);
    const auto to = block.global("starts", starts, outputs + 1);
    simt::for_each(block, "starts", outputs + 1, [&](int64_t output) {
      to[output] = partition_point(int64_t(0), n, [&](int64_t p) { return int64_t(keys[p]) < output; });
    });
  }
};

// Sets *wrong if a pointer or a column of a matrix is out of range.
template <class I>
struct CheckStructure {
  const I *ptrs, *idx;
  int64_t rows, cols, entries;
  boolean* wrong;

  TP_HD int64_t size() const { return tp::max(rows + 1, entries); }
  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto row_ptrs = block.global("row_ptrs", ptrs, rows + 1);
    const auto columns = block.global("col_idx", idx, entries);
    const auto to = block.global("wrong", wrong, 1, simt::Sharing::idempotent);
    simt::for_each(block, "check", size(), [&](int64_t i) {
      const int64_t column = i < entries ? int64_t(columns[i]) : 0;
      if ((i <= rows && wrong_pointer(row_ptrs, i, rows, entries)) || (i < entries && !inside(column, cols)))
        to[0] = boolean(true);
    });
  }
};

// Computes the products themselves, in the order in which they are added up.
template <class T, class I>
struct Terms {
  using Acc = acc_t<T>;
  Lists<I> lists;
  const T *a, *b, *c;
  const I* order;  // null if products stay in their order
  Acc* terms;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto s = lists.bind(block);
    const auto a_values = block.global("a_values", a, lists.a_entries);
    const auto b_values = block.global("b_values", b, lists.b_entries);
    const auto c_values = block.global("c_values", c, lists.c_entries);
    const auto from = block.global("order", order, lists.products);
    const auto to = block.global("terms", terms, lists.products);
    simt::for_each(block, "terms", lists.products, [&](int64_t q) {
      const int64_t p = order == nullptr ? q : int64_t(from[q]), e = s.owner[p], g = s.entry_of_b(p, e);
      bool found = true;
      int64_t h = 0;
      if (lists.wanted != Wanted::product) {
        const int64_t column = s.b_idx[g];
        h = s.entry_of_c(s.row_of(e), column, found);
      }
      if (!found) {
        to[q] = Acc(0);
        return;
      }
      T x, y;
      if (lists.wanted == Wanted::a) {
        x = c_values[h];
      } else {
        x = a_values[e];
      }
      if (lists.wanted == Wanted::b) {
        y = c_values[h];
      } else {
        y = b_values[g];
      }
      to[q] = Acc(x) * Acc(y);
    });
  }
};

void run_segments(segmented::Step step, const void* in, DType dtype, const int64_t* offsets, int64_t segments,
                  int64_t n, void* out, Context& context) {
  segmented::Args args{};
  args.step = step;
  args.in = in;
  args.offsets = offsets;
  args.long_offsets = true;
  args.out = out;
  args.n = n;
  args.width = 1;
  args.segments = segments;
  args.dtype = dtype;
  args.op = OpId::sum;
  const char* choice = segment_reduce::choose(args, context.device);
  find(segment_reduce::ladder, "segment_reduce", choice, context.device.cuda).run(args, context);
}

// Sorts keys less than `limit`, with their positions, within each row, or all together if there are no rows.
template <class I>
void sort_products(const I* keys, I* sorted, I* order, int64_t n, int64_t limit, const int64_t* offsets, int64_t rows,
                   Context& context) {
  I* positions = context.workspace<I>(n);
  simt::launch_for_each(context, rung, n, Gather<I, I>{nullptr, nullptr, positions, n, 0});
  sort::Args args{};
  args.keys = keys;
  args.keys_out = sorted;
  args.values = positions;
  args.values_out = order;
  args.rows = rows;
  args.n = n;
  args.offsets = offsets;
  args.long_offsets = true;
  args.value_bytes = int(sizeof(I));
  sort_below<I>(limit, args, context);
}

template <class S>
class Expansion {
  using T = typename S::T;
  using I = typename S::I;
  using Acc = typename S::Acc;

 public:
  Expansion(const S& s, Context& context) : s_(s), context_(context), a_(s.args) {
    lists_ = {s.a_ptrs,     s.a_idx,      s.b_ptrs,     s.b_idx, s.c_ptrs, s.c_idx, nullptr,  nullptr,
              a_.a_entries, a_.b_entries, a_.c_entries, a_.rows, a_.inner, 0,       a_.wanted};
    count_products();
  }

  void run() {
    if (a_.refuses(lists_.products)) return;
    if (lists_.products > std::numeric_limits<I>::max()) {
      fail(ErrorKind::value, a_.op, ": ", lists_.products, " products of entries are more than indices of ",
           name(dtype_of<I>::value), " can count");
    }
    if (lists_.products == 0) return give_zeros();
    find_owners();
    I* order = nullptr;
    const int64_t* starts = lists_.before;
    if (a_.wanted != Wanted::a) {
      I *keys = workspace(), *sorted = workspace();
      order = workspace();
      launch(lists_.products, Keys<I>{lists_, keys});
      if (a_.wanted == Wanted::b) {
        sort_products(keys, sorted, order, lists_.products, a_.b_entries, nullptr, 1, context_);
        starts = starts_of(sorted, a_.b_entries);
      } else {
        const int64_t* begins = begins_of_rows();
        const int64_t limit = a_.wanted == Wanted::c ? a_.c_entries : a_.cols;
        sort_products(keys, sorted, order, lists_.products, limit, begins, a_.rows, context_);
        starts = a_.wanted == Wanted::c ? starts_of(sorted, a_.c_entries) : compress(sorted, begins);
      }
    }
    Acc* terms = context_.workspace<Acc>(lists_.products);
    launch(lists_.products, Terms<T, I>{lists_, s_.a, s_.b, s_.c, order, terms});
    using Sum = sum_t<Acc>;
    Sum* sums = context_.workspace<Sum>(outputs_);
    run_segments(segmented::Step::reduce, terms, dtype_of<Acc>::value, starts, outputs_, lists_.products, sums,
                 context_);
    launch(outputs_, simt::Convert<Sum, T>{sums, s_.out, outputs_});
  }

 private:
  template <class Kernel>
  void launch(int64_t n, const Kernel& kernel) {
    simt::launch_for_each(context_, rung, n, kernel);
  }
  I* workspace() { return context_.workspace<I>(lists_.products); }

  // Checks the operands, unless the caller has, and counts the products of each entry of A. The host waits once.
  void count_products() {
    I* const counts = context_.workspace<I>(a_.a_entries + 1);
    int64_t* const before = context_.workspace<int64_t>(a_.a_entries + 2);
    int64_t* const total = before + a_.a_entries;
    boolean* const wrong = reinterpret_cast<boolean*>(total + 1);
    context_.clear(wrong, sizeof(*total));
    const auto check = [&](const I* ptrs, const I* idx, int64_t rows, int64_t cols, int64_t entries) {
      const CheckStructure<I> kernel{ptrs, idx, rows, cols, entries, wrong};
      launch(kernel.size(), kernel);
    };
    if (a_.explain) {
      check(s_.a_ptrs, s_.a_idx, a_.rows, a_.inner, a_.a_entries);
      check(s_.b_ptrs, s_.b_idx, a_.inner, a_.cols, a_.b_entries);
      if (a_.wanted != Wanted::product) check(s_.c_ptrs, s_.c_idx, a_.rows, a_.cols, a_.c_entries);
    }
    const Factors<I> factors{s_.a_ptrs, s_.a_idx, s_.b_ptrs,    s_.b_idx,    nullptr,
                             a_.rows,   a_.inner, a_.a_entries, a_.b_entries};
    launch(a_.a_entries + 1, CountProducts<I, I>{factors, counts, wrong});
    scan::scan_counts(context_, counts, before, 1, a_.a_entries + 1);
    int64_t found[2];
    a_.read(total, 2, found);
    a_.require_valid(found[1] == 0);
    lists_.before = before;
    lists_.products = found[0];
  }

  void give_zeros() {
    if (a_.wanted == Wanted::product) {
      context_.clear(a_.ptrs, (a_.rows + 1) * int64_t(sizeof(int64_t)));
      a_.room(0);
    } else {
      const int64_t entries = a_.wanted == Wanted::a   ? a_.a_entries
                              : a_.wanted == Wanted::b ? a_.b_entries
                                                       : a_.c_entries;
      context_.clear(s_.out, entries * int64_t(sizeof(T)));
    }
  }

  void find_owners() {
    I *entries = context_.workspace<I>(a_.a_entries), *owner = workspace();
    launch(a_.a_entries, Gather<I, I>{nullptr, nullptr, entries, a_.a_entries, 0});
    run_segments(segmented::Step::expand, entries, dtype_of<I>::value, lists_.before, a_.a_entries, lists_.products,
                 owner, context_);
    lists_.owner = owner;
  }

  // Where the products of each row begin.
  const int64_t* begins_of_rows() {
    int64_t* begins = context_.workspace<int64_t>(a_.rows + 1);
    launch(a_.rows + 1, Gather<I, int64_t>{lists_.before, s_.a_ptrs, begins, a_.rows + 1, a_.a_entries + 1});
    return begins;
  }

  const int64_t* starts_of(const I* sorted, int64_t outputs) {
    int64_t* starts = context_.workspace<int64_t>(outputs + 1);
    launch(outputs + 1, Starts<I>{sorted, starts, lists_.products, outputs});
    outputs_ = outputs;
    return starts;
  }

  // Finds the entries of C: its row pointers, its columns and the first product of each.
  const int64_t* compress(const I* sorted, const int64_t* begins) {
    const int64_t n = lists_.products;
    boolean* first = context_.workspace<boolean>(n + 1);
    int64_t* entries = context_.workspace<int64_t>(n + 1);
    launch(n, Differ<I>{sorted, first, n});
    launch(a_.rows + 1, BeginRows{begins, first, a_.rows, n});
    scan::scan_counts(context_, first, entries, 1, n + 1);
    launch(a_.rows + 1, Gather<int64_t, int64_t>{entries, begins, a_.ptrs, a_.rows + 1, n + 1});
    outputs_ = a_.read_one(a_.ptrs + a_.rows);
    const auto room = a_.room(outputs_);
    s_.take(room);
    int64_t* starts = context_.workspace<int64_t>(outputs_ + 1);
    launch(n + 1, Compress<I>{sorted, first, entries, static_cast<I*>(room.col_idx), starts, n, outputs_});
    return starts;
  }

  S s_;
  Context& context_;
  const SpgemmArgs& a_;
  Lists<I> lists_{};
  int64_t outputs_ = a_.a_entries;
};

}  // namespace

void spgemm::expand_sort_compress(const Args& args, Context& context) {
  with_spgemm(args, [&](const auto& s) { Expansion(s, context).run(); });
}

}  // namespace tp
