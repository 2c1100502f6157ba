// The distinct columns of rows of C with many products. Such a row is divided into pieces: windows of columns of equal
// width, about one per 4,096 products, each for a block of its own. A block marks the columns of its products as bits
// in shared memory, from which it reads them in order, so nothing is hashed or sorted. The products of an entry of A in
// a window are one range of a row of B, which a binary search finds.
#pragma once
#include "core/bits.h"
#include "sparse/spgemm/factors.h"
#include "sparse/spgemm/row_groups.h"

namespace tp::sparse {

// A piece is no wider than there are bits, and not so narrow that its block would search more than it marks.
constexpr int64_t products_per_piece = 1 << 12, widest_piece = 1 << 17, narrowest_piece = 1 << 11;

// The number of pieces of a row with n products; 0 if it is short.
TP_HD inline int64_t pieces_of(int64_t n, int64_t cols) {
  if (group_of(n) < group_count) return 0;
  return tp::max(ceil_div(cols, widest_piece),
                 tp::min(ceil_div(n, products_per_piece), ceil_div(cols, narrowest_piece)));
}

// A piece: its row, the first piece of the row, and its columns.
struct Piece {
  int64_t row, first;
  Row of;
  Window window;
};

// All pieces. Those of a row follow each other, in the order of their columns; rows are in any order.
template <class I>
struct Pieces {
  Factors<I> factors;
  int64_t cols, count;
  const int64_t *rows, *firsts;  // [count]: the row, and the first piece of the row

  template <class X, class Long>
  struct Bound {
    X x;
    Long rows, firsts;
    int64_t cols;
    template <class Block>
    TP_HD Piece piece(Block& block, int64_t p) const {
      return block.uniform("piece", [&] {
        const int64_t i = rows[p], first = firsts[p], begin = x.a_ptrs[i], end = x.a_ptrs[i + 1],
                      products = x.before[begin], products_end = x.before[end];
        const int64_t width = ceil_div(cols, pieces_of(products_end - products, cols)), low = (p - first) * width;
        return Piece{i, first, {begin, end, products, products_end}, {tp::min(low, cols), tp::min(low + width, cols)}};
      });
    }
  };
  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto x = factors.bind(block);
    const auto of_piece = block.global("rows", rows, count);
    return Bound<std::decay_t<decltype(x)>, std::decay_t<decltype(of_piece)>>{
        x, of_piece, block.global("firsts", firsts, count), cols};
  }
};

// Lists the pieces of all rows.
template <class I>
struct ListPieces {
  Factors<I> factors;
  int64_t cols, count, *rows, *firsts, *listed;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = factors.bind(block);
    const auto to_rows = block.global("rows", rows, count);
    const auto to_firsts = block.global("firsts", firsts, count);
    const auto next = block.global("listed", listed, 1);
    simt::for_each(block, "list", factors.rows, [&](int64_t i) {
      const int64_t n = pieces_of(x.products_before(i + 1) - x.products_before(i), cols);
      if (n == 0) return;
      const int64_t first = next.template atomic<Sum<int64_t>>(0, n);
      for (int64_t p = first; p < first + n; ++p) to_rows[p] = i, to_firsts[p] = first;
    });
  }
};

// Finds the distinct columns of each piece.
template <class I>
struct FindPieces {
  static constexpr int threads = 256, most_words = widest_piece / 32;
  static constexpr int64_t shared_bytes =
      threads * EntriesWithin<I, simt::HostBlock>::bytes_per_thread + most_words * 4 + 32;

  Pieces<I> pieces;
  I* columns;                        // [products]: those of each row are where its products are, piece by piece
  int64_t *starts, *counts, *taken;  // [pieces]: where its columns are; how many; and, for a first piece, in the row
  int64_t products;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto all = pieces.bind(block);
    const auto to = block.global("columns", columns, products);
    const auto to_starts = block.global("starts", starts, pieces.count);
    const auto to_counts = block.global("counts", counts, pieces.count + 1);
    const auto next = block.global("taken", taken, pieces.count);
    const EntriesWithin<I, Block> b(block);
    const auto marks = block.template shared<int>("marks", most_words);
    const auto start = block.template shared<int64_t>("start", 1);
    for (int64_t p = block.index().x; p < pieces.count; p += block.grid().x) {
      const Piece piece = all.piece(block, p);
      const int words = int(ceil_div(piece.window.high - piece.window.low, int64_t(32)));
      const int share = ceil_div(words, threads) | 1;  // words per lane; odd, so that lanes are in different banks
      const auto word_of = [&](int k) {
        const int word = marks[k];
        return uint32_t(word);
      };
      block.phase("clear", [&](int t) {
        for (int k = t; k < words; k += threads) marks[k] = 0;
      });
      mark(block, b, all.x, piece, marks);
      // Count the columns of each lane's words, and add up the counts.
      block.phase("count", [&](int t) {
        int n = 0;
        for (int k = t * share; k < tp::min((t + 1) * share, words); ++k) n += count_bits(word_of(k));
        b.sums[t] = n;
      });
      const int from = running_sums(block, b.sums);
      // Take room for them. Which of the row's pieces comes first there does not matter.
      block.phase("take", [&](int t) {
        if (t > 0) return;
        const int n = b.sums[from + threads - 1];
        const int64_t position = piece.of.first + next.template atomic<Sum<int64_t>>(piece.first, int64_t(n));
        start[0] = position;
        to_starts[p] = position;
        to_counts[p] = n;
        if (p == pieces.count - 1) to_counts[p + 1] = 0;
      });
      // Write the columns of each lane's words, in order.
      block.phase("store", [&](int t) {
        int64_t position = start[0];
        if (t > 0) position += int(b.sums[from + t - 1]);
        for (int k = t * share; k < tp::min((t + 1) * share, words); ++k) {
          for (uint32_t bits = word_of(k); bits != 0; bits &= bits - 1)
            to[position++] = I(piece.window.low + 32 * k + lowest_bit(bits));
        }
      });
    }
  }

  struct Lengths {
    int sum, longest;
  };

  // Marks the columns of all products of a piece.
  template <class Block, class X, class Marks>
  static TP_HD void mark(Block& block, const EntriesWithin<I, Block>& b, const X& x, const Piece& piece,
                         const Marks& marks) {
    b.each(
        block, x, piece.of, piece.window, [](int, int64_t) {},
        [&](int entries) {
          // Each entry of A gets enough lanes for the average, and enough that none takes many rounds.
          const Lengths lengths = block.uniform("lengths", [&] {
            Lengths found{0, 0};
            for (int q = 0; q < entries; ++q) {
              const int length = b.lengths[q];
              found.sum += length, found.longest = tp::max(found.longest, length);
            }
            return found;
          });
          const int wanted = tp::max(ceil_div(lengths.sum, entries), ceil_div(lengths.longest, 16));
          const int bits = tp::min(bits_of(wanted), bits_of(threads)), lanes = 1 << bits;
          block.phase("mark", [&](int t) {
            for (int q = t >> bits; q < entries; q += threads >> bits) {
              const int64_t start = b.starts[q];
              const int length = b.lengths[q];
              for (int w = t & (lanes - 1); w < length; w += lanes) {
                const int64_t column = x.b_idx[start + w], at = column - piece.window.low;
                marks.template atomic<BitOr<int>>(int(at / 32), int(1u << (at % 32)));
              }
            }
          });
        });
  }
};

// Tells the number of columns of each row that has pieces.
template <class I>
struct CountInRows {
  Pieces<I> pieces;
  const int64_t* before;  // [pieces + 1]: the numbers of columns before each piece
  int64_t* counts;        // [rows + 1]

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto all = pieces.bind(block);
    const auto from = block.global("columns_before", before, pieces.count + 1);
    const auto to = block.global("counts", counts, pieces.factors.rows + 1);
    simt::for_each(block, "rows", pieces.count, [&](int64_t p) {
      const int64_t row = all.rows[p], first = all.firsts[p];
      const int64_t next = p + 1 < pieces.count ? int64_t(all.firsts[p + 1]) : -1;
      if (next == first) return;
      const int64_t begin = from[first], end = from[p + 1];
      to[row] = end - begin;
    });
  }
};

}  // namespace tp::sparse
