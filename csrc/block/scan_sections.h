// The driver that turns a kernel which scans what one block can hold into a whole scan (§11.6, Fig. 11.9). Every row is
// divided into sections, one per block; the total of each section goes to S; S is scanned in the same way; and a last
// launch combines every element with the total of all sections before its own.
//
// A Kernel is a template over the Source of its operands; scan/elements.h shows what a Source binds. It defines the
// number of `threads` of a block, the number of operands in a `section`, and the number of accumulators in shared
// memory (`in_shared`). Its operator() is the algorithm, from loading operands to storing results and the section's
// total.
//
// Between the first and the last launch, the results of the sections are kept as accumulators, so half types are
// rounded only once, and affine maps stay complete (keep).
#pragma once
#include "core/simt.h"

namespace tp::block {

// The totals of a row's sections (S in the book), scanned in place.
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

// What a kernel reads and writes. Section `id` is section id % sections of row id / sections. Beyond the end of a row,
// reads give the identity, and writes are dropped.
template <class M, class X, class Array>
struct BoundSections {
  using Acc = typename M::Acc;
  X x;
  Array S;
  int64_t n, section, sections, count;

  TP_HD int64_t row(int64_t id) const { return id / sections; }
  TP_HD int64_t begin(int64_t id) const { return id % sections * section; }
  // Operand i of a section, such that its inclusive scan gives the requested results.
  TP_HD Acc load(int64_t id, int64_t i) const {
    const int64_t k = begin(id) + i;
    return k < n ? x.load(row(id), k) : M::identity();
  }
  // Element i of a section, not shifted, for kernels that are exclusive by nature.
  TP_HD Acc element(int64_t id, int64_t i) const {
    const int64_t k = begin(id) + i;
    return k < n ? x.element(row(id), k) : M::identity();
  }
  // Stores result i of a section, which is final if the row is a single section.
  TP_HD void store(int64_t id, int64_t i, Acc value) const {
    const int64_t k = begin(id) + i;
    if (k >= n) return;
    if (sections == 1) {
      x.store(row(id), k, value);
    } else {
      x.keep(row(id), k, value);
    }
  }
  // The total of a section: S[blockIdx.x] in §11.6.
  TP_HD void store_total(int64_t id, Acc total) const {
    if (sections > 1) S[id] = total;
  }
};

template <class Source_>
struct Sections {
  using Source = Source_;
  using Monoid = typename Source::Monoid;
  using Acc = typename Monoid::Acc;
  Source source;
  int64_t section, sections;  // operands per section, sections per row
  Acc* totals;                // null if every row is a single section

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto x = source.bind(block);
    const auto S = block.global("S", totals, source.rows * sections);
    return BoundSections<Monoid, std::decay_t<decltype(x)>, std::decay_t<decltype(S)>>{
        x, S, source.n, section, sections, source.rows * sections};
  }
};

// The last launch: one block per section, as in the first one.
template <class Source>
struct AddTotals {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  static constexpr int threads = 256;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto Y = sections.bind(block);
    for (int64_t id = block.index().x; id < Y.count; id += block.grid().x) {
      block.phase("add", [&](int t) {
        const int64_t row = Y.row(id), begin = Y.begin(id), end = tp::min(begin + Y.section, Y.n);
        for (int64_t k = begin + t; k < end; k += threads) {
          const Acc value = Y.x.kept(row, k);
          if (begin == 0) {
            Y.x.store(row, k, value);
          } else {
            const Acc before = Y.S[id - 1];
            Y.x.store(row, k, M::combine(before, value));
          }
        }
      });
    }
  }
};

template <class Source>
void add_totals(Context& context, const char* name, const Sections<Source>& all) {
  const simt::Dim grid{tp::min(all.source.rows * all.sections, max_grid)};
  simt::launch(context, name, grid, AddTotals<Source>::threads, 0, AddTotals<Source>{all});
}

// scan(totals, sections) scans the totals of every row, and add(all) is the last launch.
template <template <class> class Kernel, class Source, class Scan, class Add>
void scan_rows(Context& context, const char* name, Source source, Scan scan, Add add) {
  using K = Kernel<Source>;
  using Acc = typename Source::Acc;
  const int64_t sections = ceil_div(source.n, int64_t(K::section)), blocks = source.rows * sections;
  const bool whole = sections == 1;
  Acc* totals = whole ? nullptr : context.workspace<Acc>(blocks);
  if (!whole) source.allocate(context);
  const Sections<Source> all{source, K::section, sections, totals};
  simt::launch(context, name, {tp::min(blocks, max_grid)}, K::threads, K::in_shared * int64_t(sizeof(Acc)), K{all});
  if (whole) return;
  scan(totals, sections);
  add(all);
}

template <template <class> class Kernel, class Source>
void scan_rows(Context& context, const char* name, Source source) {
  scan_rows<Kernel>(
      context, name, source,
      [&](auto* totals, int64_t sections) {
        scan_rows<Kernel>(context, name, Totals<typename Source::Monoid>{totals, source.rows, sections});
      },
      [&](const auto& all) { add_totals(context, name, all); });
}

}  // namespace tp::block
