// One block per row of C, whose table in shared memory finds the distinct columns of the row (Nagasaka, Nukada and
// Matsuoka, High-performance and memory-saving sparse general matrix-matrix multiplication for NVIDIA Pascal GPUs,
// 2017). A first launch enters the columns of all products of a row in a hash table, lists the distinct ones and sorts
// them. Their numbers are scanned, the host reads the sum, and a second launch adds up the products: each finds its
// place among the sorted columns.
//
// Sums have the same bits in every run, because the products at a place are added in the order of the entries of A. The
// lanes compute the products of several entries of A at once, but add those of one entry after another, with a barrier
// between. No two products of one entry have the same place, because columns in a row of B are distinct.
//
// Rows are launched in groups, by the number of their products, and then by their number of columns, so that most take
// little shared memory. The expansion (expand_sort_compress) does everything else: rows with more products than the
// largest table has room for, rows of B that are not in order, and the values for a known structure.
#include "core/for_each.h"
#include "scan/scan.h"
#include "sparse/check_columns.h"
#include "sparse/spgemm/factors.h"
#include "sparse/spgemm/rows.h"

namespace tp {
namespace {

using namespace sparse;

constexpr const char* rung = "hash_per_row";
constexpr int together = 4;  // products that a lane computes at once

// Groups of rows: by how many products, or columns, a row may have; and the number of threads for one row.
struct Group {
  int room, threads;
};
constexpr Group groups[] = {{64, 64}, {256, 64}, {1024, 64}, {2048, 128}};
constexpr int group_count = int(std::size(groups));

TP_HD inline int group_of(int64_t n) {
  return n <= 64 ? 0 : n <= 256 ? 1 : n <= 1024 ? 2 : n <= 2048 ? 3 : group_count;
}

// What the host reads as one number: which groups there are, whether rows are too long, and whether B is in order.
enum { too_long = group_count, disordered, facts };

// Notes the group of each row.
template <class I>
struct NoteGroups {
  Factors<I> factors;
  boolean* noted;
  int64_t* counts;  // [rows + 1]: 0 for rows without products, which no other launch sees, and for the last

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = factors.bind(block);
    const auto to = block.global("noted", noted, facts, simt::Sharing::idempotent);
    const auto columns = block.global("counts", counts, factors.rows + 1);
    simt::for_each(block, "groups", factors.rows + 1, [&](int64_t row) {
      const int64_t n = row < factors.rows ? x.products_before(row + 1) - x.products_before(row) : 0;
      if (n == 0) {
        columns[row] = 0;
      } else {
        to[group_of(n)] = boolean(true);
      }
    });
  }
};

// Keeps the first column that claims an empty place of the table.
template <class I>
struct Claim {
  static TP_HD I combine(I earlier, I later) { return earlier < 0 ? later : earlier; }
};

// Finds the distinct columns of each row whose number of products is of one group.
template <class I>
struct FindColumns {
  Factors<I> factors;
  int group, room;
  I* columns;       // [products]: those of each row begin where its products begin
  int64_t* counts;  // [rows + 1]
  boolean* noted;   // the groups of the rows of C
  int64_t products;

  // The size of the table. If it is small, so much room that few columns collide costs little.
  static TP_HD constexpr int places(int products) { return products <= 256 ? 2 * products : products + products / 4; }
  int64_t shared_bytes() const {
    const Group g = groups[group];
    return g.threads * Entries<I, simt::HostBlock>::bytes_per_thread + (places(g.room) + g.room) * int64_t(sizeof(I)) +
           16;
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int threads = block.threads();
    const auto x = factors.bind(block);
    const auto to = block.global("columns", columns, products);
    const auto to_counts = block.global("counts", counts, factors.rows + 1);
    const auto to_noted = block.global("noted", noted, group_count, simt::Sharing::idempotent);
    const Entries<I, Block> b(block);
    const auto table = block.template shared<I>("table", places(room));
    const auto list = block.template shared<I>("list", room);
    const auto found = block.template shared<int>("found", 1);
    for (int64_t i = block.index().x; i < factors.rows; i += block.grid().x) {
      const Row row = b.row_of(block, x, i);
      const int64_t n = row.last - row.first;
      if (n == 0 || group_of(n) != group) continue;
      const int size = places(int(n));
      block.phase("clear", [&](int t) {
        for (int k = t; k < size; k += threads) table[k] = I(-1);
        if (t == 0) found[0] = 0;
      });
      // Each entry of A gets as many lanes as a row of B of average length keeps busy.
      const int bits = tp::min(bits_of(ceil_div(n, row.end - row.begin)), bits_of(threads)), lanes = 1 << bits;
      b.each(
          block, x, row, [](int, int64_t) {},
          [&](int entries) {
            block.phase("enter", [&](int t) {
              for (int q = t >> bits; q < entries; q += threads >> bits) {
                const int64_t start = b.starts[q];
                const int length = b.lengths[q];
                for (int w = t & (lanes - 1); w < length; w += lanes)
                  enter(table, size, I(x.b_idx[start + w]), list, found);
              }
            });
          });
      const int distinct = block.uniform("distinct", [&] { return int(found[0]); });
      sort(block, list, distinct);
      block.phase("store", [&](int t) {
        for (int k = t; k < distinct; k += threads) to[row.first + k] = list[k];
        if (t > 0) return;
        to_counts[i] = distinct;
        to_noted[group_of(distinct)] = boolean(true);
      });
    }
  }

  // Enters a column in the table, and also in the list if it is new.
  template <class Table, class Found>
  static TP_HD void enter(const Table& table, int size, I column, const Table& list, const Found& found) {
    int place = int(uint64_t(uint32_t(column) * 2654435769u) * uint64_t(size) >> 32);
    for (;;) {
      const I there = table.template atomic<Claim<I>>(place, column);
      if (there == column) return;
      if (there < 0) break;
      place = place + 1 == size ? 0 : place + 1;
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

// Adds up the products of each row whose number of columns is of one group.
template <class T, class I>
struct AddProducts {
  using Acc = acc_t<T>;
  Factors<I> factors;
  int group, room;
  const T *a, *b;
  const I* columns;  // as FindColumns has found them
  const int64_t* ptrs;
  I* idx;
  T* values;
  int64_t products, entries;

  struct Places {
    int64_t begin, count;
  };
  // The products of a lane, and their places in the row of C, or -1.
  struct Mine {
    int place[together];
    Acc term[together];
  };

  int64_t shared_bytes() const {
    const Group g = groups[group];
    return g.threads * (Entries<I, simt::HostBlock>::bytes_per_thread + int64_t(sizeof(Acc))) +
           g.room * int64_t(sizeof(I) + sizeof(Acc)) + 32;
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const int threads = block.threads();
    const auto x = factors.bind(block);
    const auto a_values = block.global("a_values", a, factors.a_entries);
    const auto b_values = block.global("b_values", b, factors.b_entries);
    const auto from = block.global("columns", columns, products);
    const auto c_ptrs = block.global("row_ptrs", ptrs, factors.rows + 1);
    const auto c_idx = block.global("col_idx", idx, entries);
    const auto c = block.global("values", values, entries);
    const auto sums = block.template shared<Acc>("sums", room);
    const auto own = block.template shared<I>("own", room);
    const auto scales = block.template shared<Acc>("scales", threads);
    const Entries<I, Block> rows(block);
    auto mine = block.template per_lane<Mine>("mine");
    for (int64_t i = block.index().x; i < factors.rows; i += block.grid().x) {
      const Places c_row = block.uniform("places", [&] {
        const int64_t begin = c_ptrs[i], end = c_ptrs[i + 1];
        return Places{begin, end - begin};
      });
      if (c_row.count == 0 || group_of(c_row.count) != group) continue;
      const int64_t begin = c_row.begin;
      const int n = int(c_row.count), whole = 1 << bits_of(n);
      const Row row = rows.row_of(block, x, i);
      block.phase("columns", [&](int t) {
        for (int k = t; k < whole; k += threads) {
          I column = std::numeric_limits<I>::max();
          if (k < n) {
            column = from[row.first + k];
            c_idx[begin + k] = column;
            sums[k] = Acc(0);
          }
          own[k] = column;
        }
      });
      // The number of columns that are less than the given one, which the row has.
      const auto place_of = [&](I column) {
        int place = 0;
        for (int step = whole / 2; step > 0; step /= 2) {
          const I there = own[place + step - 1];
          if (there < column) place += step;
        }
        return place;
      };
      const auto load = [&](int t, int64_t e) {
        const T value = a_values[e];
        scales[t] = Acc(value);
      };
      // Product u of a lane is product w of entry q, if there are so many.
      const auto multiply = [&](Mine& m, int u, int q, int w, int entries) {
        m.place[u] = -1;
        if (q >= entries) return;
        const int length = rows.lengths[q];
        if (w >= length) return;
        const int64_t start = rows.starts[q];
        const I column = x.b_idx[start + w];
        const T value = b_values[start + w];
        const Acc scale = scales[q];
        m.term[u] = scale * Acc(value);
        m.place[u] = place_of(column);
      };
      rows.each(block, x, row, load, [&](int entries) {
        const int longest = block.uniform("longest", [&] {
          int most = 0;
          for (int q = 0; q < entries; ++q) most = tp::max(most, int(rows.lengths[q]));
          return most;
        });
        if (longest <= threads) {  // several entries at once, each by some of the lanes
          const int bits = bits_of(longest), across = threads >> bits;
          for (int first = 0; first < entries; first += together * across) {
            block.phase("multiply", [&](int t) {
              Mine m{};
              for (int u = 0; u < together; ++u) {
                multiply(m, u, first + u * across + (t >> bits), t & ((1 << bits) - 1), entries);
              }
              mine[t] = m;
            });
            for (int u = 0; u < together; ++u) {
              for (int q = 0; q < across && first + u * across + q < entries; ++q) {
                block.phase("add", [&](int t) {
                  const Mine& m = mine[t];
                  if (t >> bits == q && m.place[u] >= 0) sums[m.place[u]] += m.term[u];
                });
              }
            }
          }
          return;
        }
        for (int q = 0; q < entries; ++q) {  // one entry after another
          for (int first = 0; first < longest; first += together * threads) {
            block.phase("multiply", [&](int t) {
              Mine m{};
              for (int u = 0; u < together; ++u) multiply(m, u, q, first + u * threads + t, entries);
              mine[t] = m;
            });
            block.phase("add", [&](int t) {
              const Mine& m = mine[t];
              for (int u = 0; u < together; ++u) {
                if (m.place[u] >= 0) sums[m.place[u]] += m.term[u];
              }
            });
          }
        }
      });
      block.phase("store", [&](int t) {
        for (int k = t; k < n; k += threads) {
          const Acc sum = sums[k];
          c[begin + k] = T(sum);
        }
      });
    }
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

  // Returns whether it could.
  bool run() {
    int64_t* const counts = context_.workspace<int64_t>(a_.a_entries + 1);
    int64_t* const before = context_.workspace<int64_t>(a_.a_entries + 1);
    each(a_.a_entries + 1, CountProducts<I, int64_t>{factors_, counts});
    scan::scan_counts(context_, counts, before, 1, a_.a_entries + 1);
    factors_.before = before;
    int64_t* const words = context_.workspace<int64_t>(2);  // the facts of A and B, and those of C
    static_assert(facts <= sizeof(*words));
    context_.clear(words, 2 * sizeof(*words));
    boolean *const noted = reinterpret_cast<boolean*>(words), *const noted_of_c = noted + sizeof(*words);
    int64_t* const lengths = context_.workspace<int64_t>(a_.rows + 1);
    each(a_.rows + 1, NoteGroups<I>{factors_, noted, lengths});
    boolean* const unfit = noted + disordered;
    const CheckColumns<I> check{s_.b_ptrs, s_.b_idx, a_.inner, a_.cols, a_.b_entries, unfit, unfit};
    launch_for_each_entry(context_, rung, a_.b_entries, check);
    const int64_t found = a_.read(words);
    if (is_noted(found, too_long) || is_noted(found, disordered)) return false;
    const int64_t products = a_.read(before + a_.a_entries);
    I* const columns = context_.workspace<I>(products);
    for (int g = 0; g < group_count; ++g) {
      if (!is_noted(found, g)) continue;
      launch(FindColumns<I>{factors_, g, groups[g].room, columns, lengths, noted_of_c, products});
    }
    scan::scan_counts(context_, lengths, a_.ptrs, 1, a_.rows + 1);
    const int64_t entries = a_.read(a_.ptrs + a_.rows);
    const auto room = a_.room(entries);
    const int64_t found_of_c = a_.read(words + 1);
    for (int g = 0; g < group_count; ++g) {
      if (!is_noted(found_of_c, g)) continue;
      launch(AddProducts<T, I>{factors_, g, groups[g].room, s_.a, s_.b, columns, a_.ptrs, static_cast<I*>(room.col_idx),
                               static_cast<T*>(room.values), products, entries});
    }
    return true;
  }

 private:
  static bool is_noted(int64_t word, int fact) { return (word >> (8 * fact) & 0xff) != 0; }
  template <class Kernel>
  void each(int64_t n, const Kernel& kernel) {
    simt::launch_for_each(context_, rung, n, kernel);
  }
  template <class Kernel>
  void launch(const Kernel& kernel) {
    const int threads = groups[kernel.group].threads;
    simt::launch(context_, rung, {tp::min(a_.rows, max_grid)}, threads, kernel.shared_bytes(), kernel);
  }

  S s_;
  Context& context_;
  const SpgemmArgs& a_;
  Factors<I> factors_;
};

}  // namespace

void spgemm::hash_per_row(const Args& args, Context& context) {
  bool done = false;
  if (args.wanted == Wanted::product) {
    with_spgemm(args, context, [&](const auto& s) { done = Product(s, context).run(); });
  }
  if (!done) expand_sort_compress(args, context);
}

}  // namespace tp
