// The sums of C, once its columns are known. They are in shared memory: those of a row, or of a part of a long row.
//
// The lanes compute the products of several entries of A at once, but add those of one entry after another, with a
// barrier between. So sums have the same bits in every run. No two lanes add to the same sum: columns in a row of B
// are distinct, or the first of several equal ones, which are neighbours, stands for all of them.
#pragma once
#include "sparse/spgemm/pieces.h"

namespace tp::sparse {

constexpr int together = 4;  // products that a lane computes at once

// What both kernels read and write.
template <class T, class I>
struct Addition {
  Factors<I> factors;
  const T *a, *b;
  const I* columns;     // [products]: as they were found
  const int64_t* ptrs;  // the row pointers of C
  I* idx;
  T* values;
  int64_t products, entries;
  bool repeats;  // whether rows of B may have equal columns
};

// `n` consecutive entries of a row of C, of which `begin` is the first; their columns were found at `from`.
struct Part {
  int64_t from, begin;
  int n;
};

// Adds up the products of some entries of C. If they are a part of a row (within), then the products in its window.
template <class T, class I, class Block, bool within>
class Adder {
  using Acc = acc_t<T>;
  using Rows = std::conditional_t<within, EntriesWithin<I, Block>, Entries<I, Block>>;
  // Entries of A whose products are computed by as many lanes each as the longest of them needs.
  static constexpr int batch = within ? 32 : 1024;

 public:
  static constexpr int64_t shared_bytes(int room, int threads) {
    return threads * (Rows::bytes_per_thread + int64_t(sizeof(Acc))) + room * int64_t(sizeof(I) + sizeof(Acc)) + 32;
  }

  TP_HD Adder(Block& block, const Addition<T, I>& s, int room)
      : x(s.factors.bind(block)),
        a_(block.global("a_values", s.a, s.factors.a_entries)),
        b_(block.global("b_values", s.b, s.factors.b_entries)),
        from_(block.global("columns", s.columns, s.products)),
        idx_(block.global("col_idx", s.idx, s.entries)),
        values_(block.global("values", s.values, s.entries)),
        sums_(block.template shared<Acc>("sums", room)),
        own_(block.template shared<I>("own", room)),
        scales_(block.template shared<Acc>("scales", block.threads())),
        rows(block),
        repeats_(s.repeats) {}

  TP_HD void add(Block& block, const Row& row, const Part& part) const {
    const int threads = block.threads(), n = part.n, whole = 1 << bits_of(n);
    // Load the columns, and copy them to C; behind them, up to a power of two, are columns that no product has.
    block.phase("columns", [&](int t) {
      for (int k = t; k < whole; k += threads) {
        I column = std::numeric_limits<I>::max();
        if (k < n) {
          column = from_[part.from + k];
          idx_[part.begin + k] = column;
          sums_[k] = Acc(0);
        }
        own_[k] = column;
      }
    });
    const auto load = [&](int t, int64_t e) {
      const T value = a_[e];
      scales_[t] = Acc(value);
    };
    const auto use = [&](int entries) {
      for (int first = 0; first < entries; first += batch)
        add_entries(block, first, tp::min(entries, first + batch), whole);
    };
    if constexpr (within) {
      const Window window = block.uniform("window", [&] {
        const I low = own_[0], last = own_[n - 1];
        return Window{int64_t(low), int64_t(last) + 1};
      });
      rows.each(block, x, row, window, load, use);
    } else {
      rows.each(block, x, row, load, use);
    }
    // Write the sums.
    block.phase("store", [&](int t) {
      for (int k = t; k < n; k += threads) {
        const Acc sum = sums_[k];
        values_[part.begin + k] = T(sum);
      }
    });
  }

  const decltype(std::declval<const Factors<I>&>().bind(std::declval<Block&>())) x;

 private:
  // The products of a lane, and the positions of their columns among those of the part, or -1.
  struct Mine {
    int position[together];
    Acc term[together];
  };

  // The number of columns that are less than the given one, which is among them.
  TP_HD int position_of(I column, int whole) const {
    int position = 0;
    for (int step = whole / 2; step > 0; step /= 2) {
      const I there = own_[position + step - 1];
      if (there < column) position += step;
    }
    return position;
  }

  // Product u of a lane is product w of entry q, if there are so many.
  TP_HD void multiply(Mine& m, int u, int q, int w, int end, int whole) const {
    m.position[u] = -1;
    if (q >= end) return;
    const int length = rows.lengths[q];
    if (w >= length) return;
    const int64_t start = rows.starts[q];
    const I column = x.b_idx[start + w];
    const T value = b_[start + w];
    const Acc scale = scales_[q];
    m.term[u] = scale * Acc(value);
    if (repeats_) {
      if (w > 0 && x.b_idx[start + w - 1] == column) return;
      for (int v = w + 1; v < length && x.b_idx[start + v] == column; ++v) {
        const T other = b_[start + v];
        m.term[u] += scale * Acc(other);
      }
    }
    m.position[u] = position_of(column, whole);
  }

  TP_HD void add_entries(Block& block, int begin, int end, int whole) const {
    const int longest = block.uniform("longest", [&] {
      int most = 0;
      for (int q = begin; q < end; ++q) most = tp::max(most, int(rows.lengths[q]));
      return most;
    });
    if (longest <= block.threads()) {
      add_several(block, begin, end, bits_of(longest), whole);
    } else {
      for (int q = begin; q < end; ++q) add_one(block, q, longest, whole);
    }
  }

  // Several entries at once, each by 2^bits lanes.
  TP_HD void add_several(Block& block, int begin, int end, int bits, int whole) const {
    auto mine = block.template per_lane<Mine>("mine");
    const int across = block.threads() >> bits;
    for (int first = begin; first < end; first += together * across) {
      block.phase("multiply", [&](int t) {
        Mine m{};
        for (int u = 0; u < together; ++u) {
          multiply(m, u, first + u * across + (t >> bits), t & ((1 << bits) - 1), end, whole);
        }
        mine[t] = m;
      });
      for (int u = 0; u < together; ++u) {
        for (int q = 0; q < across && first + u * across + q < end; ++q) {
          // The lanes of one entry add their products.
          block.phase("add", [&](int t) {
            const Mine& m = mine[t];
            if (t >> bits == q && m.position[u] >= 0) sums_[m.position[u]] += m.term[u];
          });
        }
      }
    }
  }

  // One entry, by all lanes.
  TP_HD void add_one(Block& block, int q, int longest, int whole) const {
    auto mine = block.template per_lane<Mine>("mine");
    const int threads = block.threads();
    for (int first = 0; first < longest; first += together * threads) {
      block.phase("multiply", [&](int t) {
        Mine m{};
        for (int u = 0; u < together; ++u) multiply(m, u, q, first + u * threads + t, q + 1, whole);
        mine[t] = m;
      });
      block.phase("add", [&](int t) {
        const Mine& m = mine[t];
        for (int u = 0; u < together; ++u) {
          if (m.position[u] >= 0) sums_[m.position[u]] += m.term[u];
        }
      });
    }
  }

  Global<Block, const T> a_, b_;
  Global<Block, const I> from_;
  Global<Block, I> idx_;
  Global<Block, T> values_;
  Shared<Block, Acc> sums_;
  Shared<Block, I> own_;
  Shared<Block, Acc> scales_;
  Rows rows;
  bool repeats_;
};

// Adds up the products of each short row whose number of columns is of one group.
template <class T, class I>
struct AddProducts {
  Addition<T, I> s;
  int group, room;
  int share;

  int64_t shared_bytes() const {
    return Adder<T, I, simt::HostBlock, false>::shared_bytes(room, groups[group].threads) +
           ChosenRows<simt::HostBlock>::shared_bytes;
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto c_ptrs = block.global("row_ptrs", s.ptrs, s.factors.rows + 1);
    const Adder<T, I, Block, false> adder(block, s, room);
    const auto span_of = [&](int64_t i) {
      const int64_t begin = c_ptrs[i], end = c_ptrs[i + 1];
      return Span{begin, end - begin};
    };
    // MultiplyShortRows and AddPieces add up the products of other rows.
    const auto is_own = [&](int64_t i) {
      const int64_t count = span_of(i).count;
      if (count == 0 || group_of(count) != group) return false;
      const Row row = adder.x.row(i);
      return !row.is_short() && group_of(row.products()) < group_count;
    };
    ChosenRows<Block>(block).each(block, s.factors.rows, share, is_own, [&](int64_t i) {
      const Span c_row = block.uniform("part of c", [&] { return span_of(i); });
      const Row row = Entries<I, Block>::row_of(block, adder.x, i);
      adder.add(block, row, {row.first, c_row.begin, int(c_row.count)});
    });
  }

 private:
  struct Span {
    int64_t begin, count;
  };
};

// Adds up the products of each piece of a long row, part by part.
template <class T, class I>
struct AddPieces {
  // As many columns as 32 KB of shared memory hold, a power of two. On an H200, 256 threads with room for 4,096 columns
  // take 15.5 ms for the square of 2^18 power-law rows; 128 threads with room for 2,048 take 16.2.
  static constexpr int threads = 256, room = sizeof(I) + sizeof(acc_t<T>) <= 8 ? 4096 : 2048;
  static constexpr int64_t shared_bytes = Adder<T, I, simt::HostBlock, true>::shared_bytes(room, threads);

  Addition<T, I> s;
  Pieces<I> pieces;
  const int64_t *starts, *before;  // [pieces], [pieces + 1]: where its columns are; how many there are before them

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto c_ptrs = block.global("row_ptrs", s.ptrs, s.factors.rows + 1);
    const auto all = pieces.bind(block);
    const auto from = block.global("starts", starts, pieces.count);
    const auto columns_before = block.global("columns_before", before, pieces.count + 1);
    const Adder<T, I, Block, true> adder(block, s, room);
    for (int64_t p = block.index().x; p < pieces.count; p += block.grid().x) {
      const Piece piece = all.piece(block, p);
      const Span span = block.uniform("part of c", [&] {
        const int64_t row = c_ptrs[piece.row], first = columns_before[piece.first], here = columns_before[p],
                      end = columns_before[p + 1], start = from[p];
        return Span{row + here - first, end - here, start};
      });
      for (int64_t at = 0; at < span.count; at += room) {
        const int n = int(tp::min(span.count - at, int64_t(room)));
        adder.add(block, piece.of, {span.from + at, span.begin + at, n});
      }
    }
  }

 private:
  struct Span {
    int64_t begin, count, from;
  };
};

}  // namespace tp::sparse
