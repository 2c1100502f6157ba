// The driver that makes a whole scan of a block algorithm (§11.6, Fig. 11.9): split every row into sections that one
// block can scan, scan the sections' totals in the same way, and combine each section with all that comes before it.
//
// An Algorithm says how many elements a block scans (`section`), with how many `threads`, how much shared memory it
// wants beside the section itself, and scans the shared array in place, in phases. It is inclusive unless it says that
// it is `exclusive` by nature. A Source has `rows` of `n` operands of a Monoid: scan/elements.h shows what it binds.
//
// Between the first and the last launch the results of the sections are kept as accumulators, so that half types are
// rounded once and affine maps stay whole (keep).
#pragma once
#include "core/simt.h"

namespace tp::block {

// The totals of a row's sections, scanned in place.
template <class M>
struct Totals {
  using Monoid = M;
  using Acc = typename M::Acc;
  Acc* values;
  int64_t rows, n;
  static constexpr bool exclusive = false;
  void allocate(Context&) {}

  template <class Array>
  struct Bound {
    Array values;
    int64_t n;
    TP_HD Acc element(int64_t row, int64_t k) const { return Acc(values[row * n + k]); }
    TP_HD Acc load(int64_t row, int64_t k) const { return element(row, k); }
    TP_HD void store(int64_t row, int64_t k, Acc value) const { values[row * n + k] = value; }
    TP_HD void keep(int64_t row, int64_t k, Acc value) const { store(row, k, value); }
    TP_HD Acc kept(int64_t row, int64_t k) const { return element(row, k); }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto array = block.global("totals", values, rows * n);
    return Bound<decltype(array)>{array, n};
  }
};

// First launch: block i scans section i % sections of row i / sections and leaves its total.
template <class Source, class Algorithm>
struct ScanSections {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  static constexpr int section = Algorithm::section, threads = Algorithm::threads;
  Source source;
  int64_t sections;
  Acc* totals;  // null where a row is one section: its results are final

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = source.bind(block);
    const auto total = block.global("totals", totals, source.rows * sections);
    auto s = block.template shared<Acc>("s", section);
    auto scratch = block.template shared<Acc>("scratch", Algorithm::scratch);
    for (int64_t id = block.index().x; id < source.rows * sections; id += block.grid().x) {
      const int64_t row = id / sections, first = id % sections * section, n = source.n;
      block.phase("load", [&](int t) {
        for (int i = t; i < section; i += threads) {
          if (first + i >= n) {
            s[i] = M::identity();
          } else if constexpr (Algorithm::exclusive) {
            s[i] = x.element(row, first + i);
          } else {
            s[i] = x.load(row, first + i);
          }
        }
      });
      Algorithm::template scan<M>(block, s, scratch);
      block.phase("store", [&](int t) {
        for (int i = t; i < section; i += threads) {
          if (first + i >= n) continue;
          Acc value = s[i], through = value;  // with all of the section up to here
          if constexpr (Algorithm::exclusive) {
            through = M::combine(value, x.element(row, first + i));
            if (!source.exclusive) value = through;
          }
          if (i == section - 1 && sections > 1) total[id] = through;
          if (sections > 1) {
            x.keep(row, first + i, value);
          } else {
            x.store(row, first + i, value);
          }
        }
      });
    }
  }
};

// Last launch: combines every element with the total of all sections before its own.
template <class Source, class Algorithm>
struct AddTotals {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Source source;
  int64_t sections;
  Acc* totals;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = source.bind(block);
    const auto total = block.global("totals", totals, source.rows * sections);
    for (int64_t id = block.index().x; id < source.rows * sections; id += block.grid().x) {
      block.phase("add", [&](int t) {
        const int64_t row = id / sections, first = id % sections * Algorithm::section;
        for (int i = t; i < Algorithm::section && first + i < source.n; i += Algorithm::threads) {
          const Acc value = x.kept(row, first + i);
          if (first == 0) {
            x.store(row, i, value);
          } else {
            const Acc before = total[id - 1];
            x.store(row, first + i, M::combine(before, value));
          }
        }
      });
    }
  }
};

constexpr int64_t max_grid = 2147483647;

template <class Algorithm, class Source>
void scan_rows(Context& context, const char* name, Source source) {
  using Acc = typename Source::Acc;
  const int64_t sections = ceil_div(source.n, int64_t(Algorithm::section)), blocks = source.rows * sections;
  const bool whole = sections == 1;
  Acc* totals = whole ? nullptr : context.workspace<Acc>(blocks);
  if (!whole) source.allocate(context);
  const simt::Dim grid{tp::min(blocks, max_grid)};
  const int64_t shared = (Algorithm::section + Algorithm::scratch) * int64_t(sizeof(Acc));
  simt::launch(context, name, grid, Algorithm::threads, shared,
               ScanSections<Source, Algorithm>{source, sections, totals});
  if (whole) return;
  scan_rows<Algorithm>(context, name, Totals<typename Source::Monoid>{totals, source.rows, sections});
  simt::launch(context, name, grid, Algorithm::threads, 0, AddTotals<Source, Algorithm>{source, sections, totals});
}

}  // namespace tp::block
