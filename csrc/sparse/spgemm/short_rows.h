// Rows of C with few products. A block takes the next rows of A, and distributes their products evenly over its lanes,
// so that rows of a few products keep lanes busy, too. Each product looks for its column among those before it in the
// row, so that products of one column form a chain. The first of each chain counts the smaller columns, which is its
// position in C, and adds up the chain. Nothing is hashed or sorted.
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
  // each of them, and use(batch) for each batch, once its distinct columns are numbered.
  template <class X, class Load, class Use>
  TP_HD void each(Block& block, const X& x, int64_t row, int64_t all_rows, Load load, Use use) const {
    // Load where the entries and products of each row begin.
    block.phase("rows", [&](int t) {
      if (t == 0) long_rows_[0] = 0;
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
      block.phase("numbers", [&](int t) {
        if (b.begin + t < b.end) number_columns(b, b.begin + t);
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
    const int begin = start(b, row_of_[p]);
    const I column = columns_[p];
    int previous = -1;
    for (int q = begin; q < p; ++q) previous = columns_[q] == column ? q : previous;
    number_[p] = uint8_t(previous < 0 ? 0 : none);
    if (previous >= 0) next_[previous] = uint8_t(p - begin);
  }
  TP_HD void number_columns(const Batch& b, int r) const {
    const int first = start(b, r), end = first + products_of(r);
    int count = 0;
    for (int p = first; p < end; ++p) {
      if (number_[p] != none) number_[p] = uint8_t(count++);
    }
    distinct_[r] = count;
  }

  Shared<Block, int64_t> entries_, products_;  // [rows + 1]: the first entry of A, and the first of all products
  Shared<Block, int> long_rows_;               // one bit per row
  Shared<Block, int> distinct_;                // [rows]
  Shared<Block, I> columns_;
  Shared<Block, uint8_t> row_of_, next_, number_;
};

// Counts the distinct columns of each short row.
template <class I>
struct CountColumns {
  using Host = ShortRows<I, simt::HostBlock>;
  static constexpr int rows = Host::rows, threads = Host::threads;
  static constexpr int64_t shared_bytes = Host::shared_bytes;

  Factors<I> factors;
  int64_t* counts;  // [rows + 1]

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = factors.bind(block);
    const auto to = block.global("counts", counts, factors.rows + 1);
    const ShortRows<I, Block> short_rows(block);
    for (int64_t row = block.index().x * rows; row < factors.rows; row += block.grid().x * rows) {
      const auto load = [](int, int64_t, int64_t) {};
      short_rows.each(block, x, row, factors.rows, load, [&](const auto& batch) {
        block.phase("count", [&](int t) {
          const int r = batch.begin + t;
          if (r < batch.end && short_rows.products_of(r) > 0) to[row + r] = short_rows.distinct(r);
        });
      });
    }
  }
};

// Computes the columns and values of each short row.
template <class T, class I>
struct AddInShortRows {
  using Acc = acc_t<T>;
  using Host = ShortRows<I, simt::HostBlock>;
  static constexpr int rows = Host::rows, threads = Host::threads, room = Host::room;
  static constexpr int64_t shared_bytes =
      Host::shared_bytes + room * int64_t(sizeof(Acc) + sizeof(I) + sizeof(uint16_t)) + (rows + 1) * 4 + 16;

  Addition<T, I> s;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = s.factors.bind(block);
    const auto a = block.global("a_values", s.a, s.factors.a_entries);
    const auto b = block.global("b_values", s.b, s.factors.b_entries);
    const auto c_ptrs = block.global("row_ptrs", s.ptrs, s.factors.rows + 1);
    const auto idx = block.global("col_idx", s.idx, s.entries);
    const auto values = block.global("values", s.values, s.entries);
    const ShortRows<I, Block> short_rows(block);
    const auto terms = block.template shared<Acc>("terms", room);
    const auto distinct = block.template shared<I>("distinct columns", room);
    const auto product_of = block.template shared<uint16_t>("product of", room);  // the first with that column
    const auto starts = block.template shared<int>("starts", rows + 1);
    for (int64_t row = block.index().x * rows; row < s.factors.rows; row += block.grid().x * rows) {
      const auto load = [&](int p, int64_t e, int64_t g) {
        const T left = a[e], right = b[g];
        terms[p] = Acc(left) * Acc(right);
      };
      short_rows.each(block, x, row, s.factors.rows, load, [&](const auto& batch) {
        // Gather the distinct columns of all rows.
        block.phase("starts", [&](int t) {
          if (batch.begin + t > batch.end) return;
          int start = 0;
          for (int r = batch.begin; r < batch.begin + t; ++r) start += short_rows.distinct(r);
          starts[batch.begin + t] = start;
        });
        block.phase("gather", [&](int t) {
          for (int p = t; p < batch.products; p += threads) {
            const int number = short_rows.number(p);
            if (number == Host::none) continue;
            const int to = starts[short_rows.row_of(p)] + number;
            distinct[to] = short_rows.column(p);
            product_of[to] = uint16_t(p);
          }
        });
        // Each of them finds its position in its row, and adds up its products in their order.
        const int count = block.uniform("distinct", [&] { return int(starts[batch.end]); });
        block.phase("add", [&](int t) {
          for (int i = t; i < count; i += threads) {
            const int p = product_of[i], r = short_rows.row_of(p), end = starts[r + 1];
            const I column = distinct[i];
            int position = 0;
            for (int j = starts[r]; j < end; ++j) position += distinct[j] < column;
            Acc sum = Acc(0) + Acc(terms[p]);
            const int first = short_rows.start(batch, r);
            for (int n = short_rows.next(p); n != 0; n = short_rows.next(first + n)) sum += Acc(terms[first + n]);
            const int64_t to = c_ptrs[row + r] + position;
            idx[to] = column;
            values[to] = T(sum);
          }
        });
      });
    }
  }
};

}  // namespace tp::sparse
