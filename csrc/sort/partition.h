// A stable partition of every row by a digit: the split of sample sort. A pass of a radix sort is the same (Figs. 13.5
// to 13.10; those kernels are in radix_shared, radix_multibit and radix_coarsened).
//
// Each block first sorts its tile by the digit, bit by bit, in shared memory, and writes the sizes of its buckets to a
// table with one row per digit and one column per tile. An exclusive scan of the table in memory order gives the index
// in the row at which every local bucket begins. The last launch copies whole buckets there, and neighbouring threads
// write to neighbouring addresses within a bucket.
//
// digit.bind(block, rows) binds a Digit to a block's arrays; the result maps an item of a row to its digit, which is
// less than 1 << digit.bits.
#pragma once
#include "scan/scan.h"
#include "sort/items.h"

namespace tp::sort {

template <class W>
struct Tiles {
  Rows<W> rows;
  int64_t tiles;  // per row
  int digits;
  Items<W> items, spare;
  int32_t* sizes;   // the table: [rows, digits, tiles]
  int64_t* begins;  // the table, scanned
  TP_HD int64_t entries() const { return rows.rows * digits * tiles; }
};

// Replaces s by its inclusive sums: Kogge-Stone (Fig. 11.3).
template <class Block, class Array>
TP_HD void scan_lanes(Block& block, Array s) {
  auto left = block.template per_lane<int>("left");
  for (int stride = 1; stride < threads; stride *= 2) {
    block.phase("read", [&](int t) { left[t] = t >= stride ? int(s[t - stride]) : 0; });
    block.phase("add", [&](int t) { s[t] += left[t]; });
  }
}

// First launch: sorts every tile of `items` by the digit, into `spare`, and fills in the table.
template <class W, class Digit, int each>
struct SortTiles {
  static constexpr int tile = threads * each;
  Tiles<W> p;
  Digit digit;

  struct ThreadItems {  // what a thread keeps between phases: consecutive items of the tile
    Item<W> items[each];
    uint16_t digits[each];
    int ones;
  };

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = p.rows.n;
    const auto in = p.items.bind(block, "items", "indices", p.rows.size());
    const auto out = p.spare.bind(block, "items out", "indices out", p.rows.size());
    const auto table = block.global("sizes", p.sizes, p.entries());
    const auto digit_of = digit.bind(block, p.rows);
    const auto s = shared_items<W>(block, tile, in.indexed);
    const auto d = block.template shared<uint16_t>("digits", tile);
    const auto ones = block.template shared<int>("ones", threads);
    for (int64_t id = block.index().x; id < p.rows.rows * p.tiles; id += block.grid().x) {
      const int64_t row = id / p.tiles, column = id % p.tiles, first = column * tile;
      const int count = int(tp::min(int64_t(tile), n - first));
      block.phase("load", [&](int t) {  // positions past the end of the row have all bits set, so they stay last
        for (int i = t; i < tile; i += threads) {
          const bool real = i < count;
          const Item<W> x = real ? in.get(row * n + first + i) : Item<W>{W(0), 0};
          s.set(i, x);
          d[i] = real ? uint16_t(digit_of(row, x)) : uint16_t(0xffff);
        }
      });
      for (int bit = 0; bit < digit.bits; ++bit) sort_bit(block, s, d, ones, bit);
      block.phase("store", [&](int t) {
        for (int i = t; i < count; i += threads) out.set(row * n + first + i, s.get(i));
        for (int i = t; i < p.digits; i += threads) table[(row * p.digits + i) * p.tiles + column] = 0;
      });
      block.phase("sizes", [&](int t) {  // finds the bounds of each bucket, where the digit changes
        for (int i = t; i < count; i += threads) {
          const int mine = d[i];
          if (i + 1 < count && int(d[i + 1]) == mine) continue;
          table[(row * p.digits + mine) * p.tiles + column] = i + 1 - lower_bound(d, i, mine);
        }
      });
    }
  }

 private:
  template <class Array>
  TP_HD static int lower_bound(const Array& d, int n, int value) {
    int low = 0;
    while (low < n) {
      const int middle = (low + n) / 2;
      if (int(d[middle]) < value) {
        low = middle + 1;
      } else {
        n = middle;
      }
    }
    return low;
  }

  template <class Block, class Tile, class Digits, class Ones>
  TP_HD void sort_bit(Block& block, const Tile& s, const Digits& d, const Ones& ones, int bit) const {
    auto mine = block.template per_lane<ThreadItems>("mine");
    block.phase("take", [&](int t) {
      int sum = 0;
      for (int i = 0; i < each; ++i) {
        mine[t].items[i] = s.get(t * each + i);
        mine[t].digits[i] = d[t * each + i];
        sum += mine[t].digits[i] >> bit & 1;
      }
      ones[t] = mine[t].ones = sum;
    });
    scan_lanes(block, ones);
    const int zeros = tile - block.uniform("ones", [&] { return int(ones[threads - 1]); });
    block.phase("put", [&](int t) {
      int before = ones[t] - mine[t].ones;
      for (int i = 0; i < each; ++i) {
        const int one = mine[t].digits[i] >> bit & 1;
        const int to = one ? zeros + before : t * each + i - before;
        s.set(to, mine[t].items[i]);
        d[to] = mine[t].digits[i];
        before += one;
      }
    });
  }
};

// Last launch: copies every local bucket from `spare` to its range of `items`.
template <class W, class Digit, int each>
struct CopyBuckets {
  static constexpr int tile = threads * each;
  Tiles<W> p;
  Digit digit;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int64_t n = p.rows.n;
    const auto in = p.spare.bind(block, "items", "indices", p.rows.size());
    const auto out = p.items.bind(block, "items out", "indices out", p.rows.size());
    const auto table = block.global("begins", p.begins, p.entries());
    const auto digit_of = digit.bind(block, p.rows);
    const auto d = block.template shared<uint16_t>("digits", tile);
    const auto begin = block.template shared<int>("begin", p.digits);
    for (int64_t id = block.index().x; id < p.rows.rows * p.tiles; id += block.grid().x) {
      const int64_t row = id / p.tiles, column = id % p.tiles, first = column * tile;
      const int count = int(tp::min(int64_t(tile), n - first));
      block.phase("digits", [&](int t) {
        for (int i = t; i < count; i += threads) d[i] = uint16_t(digit_of(row, in.get(row * n + first + i)));
      });
      block.phase("begins", [&](int t) {
        for (int i = t; i < count; i += threads) {
          const int mine = d[i];
          if (i == 0 || int(d[i - 1]) != mine) begin[mine] = i;
        }
      });
      block.phase("copy", [&](int t) {
        for (int i = t; i < count; i += threads) {
          const int mine = d[i];
          const int64_t bucket = table[(row * p.digits + mine) * p.tiles + column];
          out.set(row * n + bucket + i - int(begin[mine]), in.get(row * n + first + i));
        }
      });
    }
  }
};

// Partitions the items of every row, `each` per thread; `spare` is as large as the items.
template <int each, class W>
class Partition {
  static constexpr int tile = threads * each;

 public:
  Partition(Context& context, const Rows<W>& rows, const Items<W>& items, const Items<W>& spare, int most_bits)
      : context_(context), p_{rows, ceil_div(rows.n, int64_t(tile)), 1 << most_bits, items, spare, nullptr, nullptr} {
    p_.sizes = context.workspace<int32_t>(p_.entries());
    p_.begins = context.workspace<int64_t>(p_.entries());
  }

  template <class Digit>
  void run(const Digit& digit) {
    p_.digits = 1 << digit.bits;
    const simt::Dim grid{tp::min(p_.rows.rows * p_.tiles, max_grid)};
    const int64_t items = shared_bytes<W>(tile), digits = tile * int64_t(sizeof(uint16_t));
    simt::launch(context_, p_.rows.rung, grid, threads, items + digits + threads * 4,
                 SortTiles<W, Digit, each>{p_, digit});
    scan::scan_counts(context_, p_.sizes, p_.begins, p_.rows.rows, p_.digits * p_.tiles);
    simt::launch(context_, p_.rows.rung, grid, threads, digits + p_.digits * 4, CopyBuckets<W, Digit, each>{p_, digit});
  }
  // After run(): bucket d of row r begins at begins[(r * digits + d) * tiles] of its row.
  const Tiles<W>& tiles() const { return p_; }

 private:
  Context& context_;
  Tiles<W> p_;
};

}  // namespace tp::sort
