// The distinct columns of rows of C with few products: a hash table in shared memory finds them, and a bitonic sort
// puts them in order.
#pragma once
#include "sparse/spgemm/factors.h"

namespace tp::sparse {

// Keeps the first column that claims an empty slot of the table.
template <class I>
struct Claim {
  static TP_HD I combine(I earlier, I later) { return earlier < 0 ? later : earlier; }
};

// Finds the distinct columns of each row that is not short and whose number of products is of one group.
template <class I>
struct FindColumns {
  Factors<I> factors;
  int group, room;
  int share;
  I* columns;       // [products]: those of each row begin where its products begin
  int64_t* counts;  // [rows + 1]
  boolean* noted;   // the groups of the rows of C
  int64_t products;

  // The size of the table. If it is small, so much room that few columns collide costs little.
  static TP_HD constexpr int slots(int products) { return products <= 256 ? 2 * products : products + products / 4; }
  int64_t shared_bytes() const {
    const Group g = groups[group];
    return g.threads * Entries<I, simt::HostBlock>::bytes_per_thread + (slots(g.room) + g.room) * int64_t(sizeof(I)) +
           ChosenRows<simt::HostBlock>::shared_bytes + 16;
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int threads = block.threads();
    const auto x = factors.bind(block);
    const auto to = block.global("columns", columns, products);
    const auto to_counts = block.global("counts", counts, factors.rows + 1);
    const auto to_noted = block.global("noted", noted, group_count, simt::Sharing::idempotent);
    const Entries<I, Block> b(block);
    const auto table = block.template shared<I>("table", slots(room));
    const auto list = block.template shared<I>("list", room);
    const auto found = block.template shared<int>("found", 1);
    const auto is_own = [&](int64_t i) {
      const Row row = x.row(i);
      return !row.is_short() && row.products() > 0 && group_of(row.products()) == group;
    };
    ChosenRows<Block>(block).each(block, factors.rows, share, is_own, [&](int64_t i) {
      const Row row = b.row_of(block, x, i);
      const int n = int(row.products()), size = slots(n);
      // Empty the table, as much of it as the row needs.
      block.phase("clear", [&](int t) {
        for (int k = t; k < size; k += threads) table[k] = I(-1);
        if (t == 0) found[0] = 0;
      });
      // Enter the columns of all products. Each entry of A gets as many lanes as a row of B of average length keeps
      // busy.
      const int entries = int(tp::min(row.entries(), row.products()));  // more of them get one lane each, too
      const int bits = tp::min(bits_of(ceil_div(n, entries)), bits_of(threads)), lanes = 1 << bits;
      b.each(
          block, x, row, [](int, int64_t) {},
          [&](int count) {
            block.phase("enter", [&](int t) {
              for (int q = t >> bits; q < count; q += threads >> bits) {
                const int64_t start = b.starts[q];
                const int length = b.lengths[q];
                for (int w = t & (lanes - 1); w < length; w += lanes)
                  enter(table, size, I(x.b_idx[start + w]), list, found);
              }
            });
          });
      const int distinct = block.uniform("distinct", [&] { return int(found[0]); });
      sort(block, list, distinct);
      // Write the columns, in order, and tell the second launch which groups there are.
      block.phase("store", [&](int t) {
        for (int k = t; k < distinct; k += threads) to[row.first + k] = list[k];
        if (t > 0) return;
        to_counts[i] = distinct;
        const boolean noted_before = to_noted[group_of(distinct)];
        if (!bool(noted_before)) to_noted[group_of(distinct)] = boolean(true);  // writes to one address are slow
      });
    });
  }

  // Enters a column in the table, and also in the list if it is new.
  template <class Table, class Found>
  static TP_HD void enter(const Table& table, int size, I column, const Table& list, const Found& found) {
    int slot = int(uint64_t(uint32_t(column) * 2654435769u) * uint64_t(size) >> 32);
    for (;;) {
      const I there = table.template atomic<Claim<I>>(slot, column);
      if (there == column) return;
      if (there < 0) break;
      slot = slot + 1 == size ? 0 : slot + 1;
    }
    const int number = found.template atomic<Sum<int>>(0, 1);
    list[number] = column;
  }

  // Bitonic sort; the list is filled up to a power of two.
  template <class Block, class List>
  static TP_HD void sort(Block& block, const List& list, int n) {
    const int threads = block.threads();
    const int whole = 1 << bits_of(n);
    block.phase("fill", [&](int t) {
      for (int k = n + t; k < whole; k += threads) list[k] = std::numeric_limits<I>::max();
    });
    for (int run = 2; run <= whole; run *= 2) {
      for (int stride = run / 2; stride > 0; stride /= 2) {
        // Each lane puts pairs at this distance in order; every other run of the list is in descending order.
        block.phase("sort", [&](int t) {
          for (int k = t; k < whole / 2; k += threads) {
            const int low = 2 * k - (k & (stride - 1)), high = low + stride;
            const I first = list[low], second = list[high];
            if ((first > second) != ((low & run) == 0)) continue;
            list[low] = second;
            list[high] = first;
          }
        });
      }
    }
  }
};

}  // namespace tp::sparse
