// Rows of C with few products. A block takes the next rows of A, and distributes their products evenly over its lanes,
// so that rows of a few products keep lanes busy, too. Each product looks for its column among those before it in the
// row, so that products of one column form a chain. The first of each chain counts the smaller columns, which is its
// position in the row, and adds up the chain. Nothing is hashed or sorted. A second launch copies the rows to C, once
// all of them are counted.
#pragma once
#include "sparse/spgemm/add_products.h"

namespace tp::sparse {

// The products of consecutive rows, and of each product its column and its row. They are found in batches: runs of
// short rows, with as many products as there is room for.
template <class I, class Block>
class ShortRows {
 public:
  static constexpr int rows = 32, threads = 128, room = 1024, none = 255;
  static_assert(most_short < none && most_short <= room, "numbers in a row are bytes, and a row fits in the room");
  static constexpr int64_t shared_bytes = 2 * (rows + 1) * 8 + (rows + 1) * 4 + room * (int64_t(sizeof(I)) + 3) + 16;

  // Rows [begin, end), and how many products they have.
  struct Batch {
    int begin, end, products;
  };

  TP_HD explicit ShortRows(Block& block)
      : entries_(block.template shared<int64_t>("entries", rows + 1)),
        products_(block.template shared<int64_t>("products", rows + 1)),
        long_rows_(block.template shared<int>("long rows", 1)),
        distinct_(block.template shared<int>("distinct", rows)),
        columns_(block.template shared<I>("columns", room)),
        row_of_(block.template shared<uint8_t>("row of", room)),
        next_(block.template shared<uint8_t>("next", room)),
        number_(block.template shared<uint8_t>("number", room)) {}

  // Finds the products of the short rows among those from `row` on. Calls load(product, entry of A, entry of B) for
  // each of them, and use(batch) for each batch, once its distinct columns have numbers.
  template <class X, class Load, class Use>
  TP_HD void each(Block& block, const X& x, int64_t row, int64_t all_rows, Load load, Use use) const {
    // Load where the entries and products of each row begin.
    block.phase("rows", [&](int t) {
      if (t == 0) long_rows_[0] = 0;
      if (t < rows) distinct_[t] = 0;
      if (t > rows) return;
      const int64_t entry = x.a_ptrs[tp::min(row + t, all_rows)], product = x.before[entry];
      entries_[t] = entry;
      products_[t] = product;
    });
    block.phase("long rows", [&](int t) {
      if (t < rows && !is_short_row(t)) long_rows_.template atomic<BitOr<int>>(0, int(1u << t));
    });
    for (int begin = 0; begin < rows;) {
      const Batch b = block.uniform("batch", [&] { return batch_from(begin); });
      begin = b.end;
      if (b.products == 0) continue;
      // Load the columns of all products, link those of one column, and number the first of each.
      block.phase("products", [&](int t) { find_products(x, b, t, load); });
      block.phase("chains", [&](int t) {
        for (int p = t; p < b.products; p += threads) find_previous(b, p);
      });
      use(b);
    }
  }

  TP_HD I column(int p) const { return columns_[p]; }
  TP_HD int row_of(int p) const { return row_of_[p]; }
  // The first product of row r of a batch.
  TP_HD int start(const Batch& b, int r) const { return int(products_[r] - products_[b.begin]); }
  TP_HD int products_of(int r) const { return int(products_[r + 1] - products_[r]); }
  // The number of distinct columns of row r.
  TP_HD int distinct(int r) const { return distinct_[r]; }
  // If product p is the first with its column, the number of that column in its row, in any order; else none.
  TP_HD int number(int p) const { return number_[p]; }
  // The next product with the same column, as a number in its row; 0 if there is none.
  TP_HD int next(int p) const { return next_[p]; }

 private:
  TP_HD bool is_short_row(int r) const {
    return is_short(entries_[r + 1] - entries_[r], products_[r + 1] - products_[r]);
  }
  TP_HD Batch batch_from(int begin) const {
    const uint32_t long_rows = uint32_t(int(long_rows_[0]));
    while (begin < rows && (long_rows >> begin & 1) != 0) ++begin;
    const int64_t first = products_[begin];
    int end = rows;
    if (long_rows != 0 || products_[end] - first > room) {
      for (end = begin; end < rows && (long_rows >> end & 1) == 0 && products_[end + 1] - first <= room;) ++end;
    }
    return {begin, end, int(products_[end] - first)};
  }
  // Each entry of A gets as many lanes as a row of B of average length keeps busy.
  template <class X, class Load>
  TP_HD void find_products(const X& x, const Batch& b, int t, Load load) const {
    const int64_t first_entry = entries_[b.begin];
    const int entries = int(entries_[b.end] - first_entry);
    const int bits = tp::min(bits_of(ceil_div(b.products, entries)), bits_of(threads)), lanes = 1 << bits;
    for (int i = t >> bits; i < entries; i += threads >> bits) {
      const int64_t e = first_entry + i;
      const int r = partition_point(b.begin, b.end - 1, [&](int other) { return entries_[other + 1] <= e; });
      const int64_t k = x.a_idx[e], before = x.before[e], begin = x.b_ptrs[k], end = x.b_ptrs[k + 1];
      const int length = int(end - begin), first = int(before - products_[b.begin]);
      for (int w = t & (lanes - 1); w < length; w += lanes) {
        columns_[first + w] = x.b_idx[begin + w];
        row_of_[first + w] = uint8_t(r);
        next_[first + w] = 0;
        load(first + w, e, begin + w);
      }
    }
  }
  TP_HD void find_previous(const Batch& b, int p) const {
    const int r = row_of_[p], begin = start(b, r);
    const I column = columns_[p];
    int previous = -1;
    for (int q = begin; q < p; ++q) previous = columns_[q] == column ? q : previous;
    number_[p] = uint8_t(previous < 0 ? distinct_.template atomic<Sum<int>>(r, 1) : none);
    if (previous >= 0) next_[previous] = uint8_t(p - begin);
  }

  Shared<Block, int64_t> entries_, products_;  // [rows + 1]: the first entry of A, and the first of all products
  Shared<Block, int> long_rows_;               // one bit per row
  Shared<Block, int> distinct_;                // [rows]
  Shared<Block, I> columns_;
  Shared<Block, uint8_t> row_of_, next_, number_;
};

// The short rows of C until it is known where they begin in C: each batch of rows takes the next free entries.
template <class T, class I>
struct FoundRows {
  int64_t* used;    // the number of entries that are taken
  int64_t* starts;  // [rows]: the first entry of each short row
  I* columns;       // [room]
  T* values;        // [room]
  int64_t rows, room;

  template <class Block>
  struct Bound {
    Global<Block, int64_t> used, starts;
    Global<Block, I> columns;
    Global<Block, T> values;
  };
  template <class Block>
  TP_HD Bound<Block> bind(Block& block) const {
    return {block.global("used", used, 1), block.global("starts", starts, rows),
            block.global("found columns", columns, room), block.global("found values", values, room)};
  }
};

// Computes the columns and values of each short row, and how many there are.
template <class T, class I>
struct MultiplyShortRows {
  using Acc = acc_t<T>;
  using Host = ShortRows<I, simt::HostBlock>;
  static constexpr int rows = Host::rows, threads = Host::threads, room = Host::room;
  static constexpr int64_t shared_bytes =
      Host::shared_bytes + room * int64_t(sizeof(Acc) + sizeof(I) + sizeof(uint16_t)) + (rows + 1) * 4 + 8 + 16;

  Factors<I> factors;
  const T *a, *b;
  int64_t* counts;  // [rows + 1]
  FoundRows<T, I> found;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = factors.bind(block);
    const auto a_values = block.global("a_values", a, factors.a_entries);
    const auto b_values = block.global("b_values", b, factors.b_entries);
    const auto lengths = block.global("counts", counts, factors.rows + 1);
    const auto to = found.bind(block);
    const ShortRows<I, Block> short_rows(block);
    const auto first_entry = block.template shared<int64_t>("first entry", 1);
    const auto terms = block.template shared<Acc>("terms", room);
    const auto distinct = block.template shared<I>("distinct columns", room);
    const auto product_of = block.template shared<uint16_t>("product of", room);  // the first with that column
    const auto starts = block.template shared<int>("starts", rows + 1);
    for (int64_t row = block.index().x * rows; row < factors.rows; row += block.grid().x * rows) {
      const auto load = [&](int p, int64_t e, int64_t g) {
        const T left = a_values[e], right = b_values[g];
        terms[p] = Acc(left) * Acc(right);
      };
      short_rows.each(block, x, row, factors.rows, load, [&](const auto& batch) {
        // Gather the distinct columns of all rows.
        block.phase("starts", [&](int t) {
          const int end = batch.begin + t;
          if (end > batch.end) return;
          int start = 0;
          for (int r = batch.begin; r < end; ++r) start += short_rows.distinct(r);
          starts[end] = start;
          if (end < batch.end && short_rows.products_of(end) > 0) lengths[row + end] = short_rows.distinct(end);
        });
        block.phase("gather", [&](int t) {
          if (t == 0) first_entry[0] = to.used.template atomic<Sum<int64_t>>(0, int64_t(int(starts[batch.end])));
          for (int p = t; p < batch.products; p += threads) {
            const int number = short_rows.number(p);
            if (number == Host::none) continue;
            const int at = starts[short_rows.row_of(p)] + number;
            distinct[at] = short_rows.column(p);
            product_of[at] = uint16_t(p);
          }
        });
        // Each of them finds its position in its row, and adds up its products in their order.
        const int count = block.uniform("distinct", [&] { return int(starts[batch.end]); });
        block.phase("add", [&](int t) {
          const int64_t first = first_entry[0];
          const int own = batch.begin + t;
          if (own < batch.end && short_rows.products_of(own) > 0) to.starts[row + own] = first + starts[own];
          for (int i = t; i < count; i += threads) {
            const int p = product_of[i], r = short_rows.row_of(p), end = starts[r + 1];
            const I column = distinct[i];
            int position = starts[r];
            for (int j = starts[r]; j < end; ++j) position += distinct[j] < column;
            Acc sum = Acc(0) + Acc(terms[p]);
            const int first_product = short_rows.start(batch, r);
            for (int n = short_rows.next(p); n != 0; n = short_rows.next(first_product + n))
              sum += Acc(terms[first_product + n]);
            to.columns[first + position] = column;
            to.values[first + position] = T(sum);
          }
        });
      });
    }
  }
};

// Copies the short rows to C, by as many lanes per row as one of average length keeps busy, up to eight.
inline int bits_of_copying_lanes(int64_t entries, int64_t rows) {
  return tp::min(bits_of(tp::max(int64_t(1), entries / rows)), 3);
}

template <class T, class I>
struct CopyShortRows {
  Factors<I> factors;
  FoundRows<T, I> found;
  const int64_t* ptrs;  // the row pointers of C
  I* idx;
  T* values;
  int64_t entries;
  int bits;  // of the number of lanes

  TP_HD int64_t size() const { return factors.rows << bits; }
  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = factors.bind(block);
    const auto from = found.bind(block);
    const auto c_ptrs = block.global("row_ptrs", ptrs, factors.rows + 1);
    const auto c_idx = block.global("col_idx", idx, entries);
    const auto c_values = block.global("values", values, entries);
    simt::for_each(block, "copy", size(), [&](int64_t i) {
      const int64_t row = i >> bits, lanes = int64_t(1) << bits, a_begin = x.a_ptrs[row], a_end = x.a_ptrs[row + 1];
      const int64_t products = x.before[a_end] - x.before[a_begin];
      if (products == 0 || !is_short(a_end - a_begin, products)) return;
      const int64_t begin = c_ptrs[row], length = c_ptrs[row + 1] - begin, first = from.starts[row];
      for (int64_t k = i & (lanes - 1); k < length; k += lanes) {
        c_idx[begin + k] = from.columns[first + k];
        c_values[begin + k] = from.values[first + k];
      }
    });
  }
};

}  // namespace tp::sparse
