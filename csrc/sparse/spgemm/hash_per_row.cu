// One block per row of C, whose table in shared memory finds the distinct columns of the row (Nagasaka, Nukada and
// Matsuoka, High-performance and memory-saving sparse general matrix-matrix multiplication for NVIDIA Pascal GPUs,
// 2017). There are two launches per group of rows, which have about as many products, or columns, so that most rows
// take little shared memory:
//
// 1. find_columns.h enters the columns of all products of a row in a hash table, and sorts the distinct ones. Their
//    numbers are scanned, and the host reads the sum.
// 2. add_products.h adds up the products: each finds its position among the sorted columns.
//
// Rows with more products than the largest table has room for are divided into windows of columns (pieces.h). There,
// bits in place of a hash table mark the columns; the products are added up in the same way, but only those in the
// window. So no row is too long, and the blocks of one long row run at the same time. Rows of few products share
// blocks, which compare columns with each other instead of hashing them (short_rows.h).
//
// Sums have the same bits in every run: the products of an entry of C are added in the order of the entries of A.
//
// Rows of B that are not in order are sorted first; equal columns may follow each other. The expansion
// (expand_sort_compress) computes the values for a known structure.
#include "core/for_each.h"
#include "scan/scan.h"
#include "sparse/check_columns.h"
#include "sparse/spgemm/add_products.h"
#include "sparse/spgemm/find_columns.h"
#include "sparse/spgemm/pieces.h"
#include "sparse/spgemm/rows.h"
#include "sparse/spgemm/short_rows.h"
#include "sparse/spgemm/sort_columns.h"

namespace tp {
namespace {

using namespace sparse;

constexpr const char* rung = "hash_per_row";

// What the host reads as one number: which groups there are, whether an operand is invalid, and how the columns of B
// are.
enum { short_rows = group_count, wrong, disordered, repeated, facts };

// Checks all row pointers, notes the group of each row of C, and counts the pieces of those that are too long for all
// groups. What else it finds is not used if pointers are wrong.
template <class I>
struct NoteGroups {
  Factors<I> factors;
  int64_t cols;
  boolean* noted;
  int64_t* pieces;
  int64_t* counts;  // [rows + 1]: 0 for rows without products, which no other launch sees, and for the last

  TP_HD int64_t size() const { return tp::max(factors.rows, factors.inner) + 1; }
  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = factors.bind(block);
    const auto to = block.global("noted", noted, facts, simt::Sharing::idempotent);
    const auto all_pieces = block.global("pieces", pieces, 1);
    const auto columns = block.global("counts", counts, factors.rows + 1);
    const auto products_before = [&](int64_t row) {
      const int64_t entry = x.a_ptrs[row];
      const int64_t products = x.before[tp::max(int64_t(0), tp::min(entry, factors.a_entries))];
      return products;
    };
    simt::for_each(block, "groups", size(), [&](int64_t row) {
      if (row <= factors.inner && wrong_pointer(x.b_ptrs, row, factors.inner, factors.b_entries))
        to[wrong] = boolean(true);
      if (row > factors.rows) return;
      if (wrong_pointer(x.a_ptrs, row, factors.rows, factors.a_entries)) to[wrong] = boolean(true);
      const int64_t n = row < factors.rows ? products_before(row + 1) - products_before(row) : 0;
      if (n == 0) {
        columns[row] = 0;
      } else if (is_short(x.a_ptrs[row + 1] - x.a_ptrs[row], n)) {
        to[short_rows] = boolean(true);
      } else if (group_of(n) < group_count) {
        to[group_of(n)] = boolean(true);
      } else {
        all_pieces.template atomic<Sum<int64_t>>(0, pieces_of(n, cols));
      }
    });
  }
};

template <class S>
class Product {
  using T = typename S::T;
  using I = typename S::I;

 public:
  Product(const S& s, Context& context)
      : s_(s), context_(context), a_(s.args), factors_{s.a_ptrs, s.a_idx,  s.b_ptrs,     s.b_idx,     nullptr,
                                                       a_.rows,  a_.inner, a_.a_entries, a_.b_entries} {}

  void run() {
    count_products();
    if (a_.refuses(products_)) return;
    if (is_noted(facts_, disordered)) sort_rows_of_b();
    pieces_.factors = factors_;
    const bool has_short = is_noted(facts_, short_rows);
    const int share = has_short ? ChosenRows<simt::HostBlock>::share_of(a_.rows) : 1;
    const FoundRows<T, I> found_rows = has_short ? multiply_short_rows() : FoundRows<T, I>{};
    columns_ = context_.workspace<I>(has_long_rows() ? products_ : 0);
    boolean* const noted = reinterpret_cast<boolean*>(of_c_ + 1);
    for (int g = 0; g < group_count; ++g) {
      if (!is_noted(facts_, g)) continue;
      const FindColumns<I> find{factors_, g, groups[g].room, share, columns_, lengths_, noted, products_};
      launch(ceil_div(a_.rows, int64_t(share)), groups[g].threads, find.shared_bytes(), find);
    }
    if (pieces_.count > 0) find_pieces();
    scan::scan_counts(context_, lengths_, a_.ptrs, 1, a_.rows + 1);
    each(1, simt::Convert<int64_t, int64_t>{a_.ptrs + a_.rows, of_c_, 1});
    int64_t found[2];
    a_.read(of_c_, 2, found);
    const auto room = a_.room(found[0]);
    const Addition<T, I> sums{factors_,
                              s_.a,
                              s_.b,
                              columns_,
                              a_.ptrs,
                              static_cast<I*>(room.col_idx),
                              static_cast<T*>(room.values),
                              products_,
                              found[0],
                              is_noted(facts_, disordered) || is_noted(facts_, repeated)};
    if (has_short) {
      const int bits = bits_of_copying_lanes(sums.entries, a_.rows);
      const CopyShortRows<T, I> copy{factors_, found_rows, a_.ptrs, sums.idx, sums.values, sums.entries, bits};
      each(copy.size(), copy);
    }
    for (int g = 0; g < group_count; ++g) {
      if (!is_noted(found[1], g)) continue;
      const AddProducts<T, I> add{sums, g, groups[g].room, share};
      launch(ceil_div(a_.rows, int64_t(share)), groups[g].threads, add.shared_bytes(), add);
    }
    using Add = AddPieces<T, I>;
    launch(pieces_.count, Add::threads, Add::shared_bytes, Add{sums, pieces_, piece_starts_, piece_columns_});
  }

 private:
  // Checks the operands, and whether B is in order, and counts the products of all rows and the pieces of long ones.
  // The host waits once for all of this.
  void count_products() {
    int64_t* const counts = context_.workspace<int64_t>(a_.a_entries + 1);
    int64_t* const before = context_.workspace<int64_t>(a_.a_entries + 5);
    int64_t* const total = before + a_.a_entries;  // then the facts, the number of pieces, and what is found about C
    of_c_ = total + 3;
    boolean* const noted = reinterpret_cast<boolean*>(total + 1);
    static_assert(facts <= sizeof(*total));
    context_.clear(noted, 4 * sizeof(*total));
    each(a_.a_entries + 1, CountProducts<I, int64_t>{factors_, counts, noted + wrong});
    scan::scan_counts(context_, counts, before, 1, a_.a_entries + 1);
    factors_.before = before;
    lengths_ = context_.workspace<int64_t>(a_.rows + 1);
    const NoteGroups<I> note{factors_, a_.cols, noted, total + 2, lengths_};
    each(note.size(), note);
    const CheckColumns<I> check{s_.b_ptrs,    s_.b_idx,      a_.inner,           a_.cols,
                                a_.b_entries, noted + wrong, noted + disordered, noted + repeated};
    launch_for_each_entry(context_, rung, a_.b_entries, check);
    int64_t found[3];
    a_.read(total, 3, found);
    products_ = found[0], facts_ = found[1];
    a_.require_valid(!is_noted(facts_, wrong));
    pieces_ = {factors_, a_.cols, found[2], nullptr, nullptr};
  }

  // Replaces B by a copy whose rows are in order.
  void sort_rows_of_b() {
    I* const columns = context_.workspace<I>(a_.b_entries);
    T* const values = context_.workspace<T>(a_.b_entries);
    sort::Args sorting{};
    sorting.keys = factors_.b_idx, sorting.keys_out = columns;
    sorting.values = s_.b, sorting.values_out = values, sorting.value_bytes = int(sizeof(T));
    sorting.rows = a_.inner, sorting.n = a_.b_entries;
    sorting.offsets = factors_.b_ptrs, sorting.long_offsets = sizeof(I) == sizeof(int64_t);
    sort_below<I>(a_.cols, sorting, context_);
    factors_.b_idx = columns, s_.b = values;
  }

  FoundRows<T, I> multiply_short_rows() {
    const int64_t room = tp::min(products_, a_.rows * most_short);
    const FoundRows<T, I> found{numbers(1),
                                context_.workspace<int64_t>(a_.rows),
                                context_.workspace<I>(room),
                                context_.workspace<T>(room),
                                a_.rows,
                                room};
    using Multiply = MultiplyShortRows<T, I>;
    launch(ceil_div(a_.rows, int64_t(Multiply::rows)), Multiply::threads, Multiply::shared_bytes,
           Multiply{factors_, s_.a, s_.b, lengths_, found});
    return found;
  }

  // Finds the columns of the pieces of long rows, and how many each row has.
  void find_pieces() {
    const int64_t n = pieces_.count;
    int64_t *const rows = context_.workspace<int64_t>(n), *const firsts = context_.workspace<int64_t>(n);
    each(a_.rows, ListPieces<I>{factors_, a_.cols, n, rows, firsts, numbers(1)});
    pieces_.rows = rows, pieces_.firsts = firsts;
    piece_starts_ = context_.workspace<int64_t>(n);
    piece_columns_ = context_.workspace<int64_t>(n + 1);
    int64_t* const counts = context_.workspace<int64_t>(n + 1);
    using Find = FindPieces<I>;
    launch(n, Find::threads, Find::shared_bytes, Find{pieces_, columns_, piece_starts_, counts, numbers(n), products_});
    scan::scan_counts(context_, counts, piece_columns_, 1, n + 1);
    each(n, CountInRows<I>{pieces_, piece_columns_, lengths_});
  }

  bool has_long_rows() const {
    bool any = pieces_.count > 0;
    for (int g = 0; g < group_count; ++g) any = any || is_noted(facts_, g);
    return any;
  }
  static bool is_noted(int64_t word, int fact) { return (word >> (8 * fact) & 0xff) != 0; }
  // Numbers that are zero.
  int64_t* numbers(int64_t n) {
    int64_t* const all = context_.workspace<int64_t>(n);
    context_.clear(all, n * int64_t(sizeof(int64_t)));
    return all;
  }
  template <class Kernel>
  void each(int64_t n, const Kernel& kernel) {
    simt::launch_for_each(context_, rung, n, kernel);
  }
  template <class Kernel>
  void launch(int64_t blocks, int threads, int64_t shared_bytes, const Kernel& kernel) {
    simt::launch(context_, rung, {tp::min(blocks, max_grid)}, threads, shared_bytes, kernel);
  }

  S s_;
  Context& context_;
  const SpgemmArgs& a_;
  Factors<I> factors_;
  int64_t products_ = 0, facts_ = 0;
  int64_t* of_c_ = nullptr;     // the number of entries of C, and the groups of its rows
  int64_t* lengths_ = nullptr;  // [rows + 1]: of the rows of C
  I* columns_ = nullptr;
  Pieces<I> pieces_{};
  int64_t *piece_starts_ = nullptr, *piece_columns_ = nullptr;
};

}  // namespace

void spgemm::hash_per_row(const Args& args, Context& context) {
  if (args.wanted != Wanted::product) return expand_sort_compress(args, context);
  with_spgemm(args, [&](const auto& s) { Product(s, context).run(); });
}

}  // namespace tp
