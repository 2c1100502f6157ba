// The driver that turns a kernel which reduces what one block can hold into a whole reduction (Mills 2017,
// "kernel decomposition"). Every row is divided into sections, one per block; the totals of the sections are reduced in
// the same way, launch after launch, until each row is a single section.
//
// A Kernel is a template over the Source of its operands. It defines the number of `threads` of a block, the number of
// operands in a `section`, and the number of accumulators it works on, in shared memory (`in_shared`) and in global
// memory (`in_global`). Its operator() is the algorithm, from loading operands to storing the total.
#pragma once
#include "core/simt.h"
#include "reduction/elements.h"

namespace tp::reduction {

constexpr int64_t max_global_grid = 1024;  // of kernels with a workspace for each block

// The totals of the sections of every row of E, as the Source of the next launch.
template <class E>
struct Totals {
  using Monoid = typename E::Monoid;
  using Acc = typename Monoid::Acc;
  Acc* values;
  E elements;
  int64_t rows, n;

  template <class Array, class Target>
  struct Bound {
    Array values;
    Target target;
    int64_t n;
    TP_HD Acc load(int64_t row, int64_t k) const { return values[row * n + k]; }
    TP_HD void store(int64_t row, Acc value) const { target.store(row, value); }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto array = block.global("totals", values, rows * n);
    const auto target = elements.bind(block);
    return Bound<std::decay_t<decltype(array)>, std::decay_t<decltype(target)>>{array, target, n};
  }
};

template <class E, class F>
auto with_totals(const E& e, typename E::Acc* totals, int64_t sections, F f) {
  return f(Totals<E>{totals, e, e.rows, sections});
}
template <class E, class F>
auto with_totals(const Totals<E>& e, typename E::Acc* totals, int64_t sections, F f) {
  return f(Totals<E>{totals, e.elements, e.rows, sections});
}

// What a kernel reads and writes: section `id` is section id % sections of row id / sections.
template <class M, class X, class Array>
struct BoundSections {
  using Acc = typename M::Acc;
  X x;
  Array totals;
  int64_t n, section, sections, count;

  // Operand i of a section, or the identity beyond the end of its row (exercise 10.5).
  TP_HD Acc load(int64_t id, int64_t i) const {
    const int64_t row = id / sections, k = id % sections * section + i;
    return k < n ? x.load(row, k) : M::identity();
  }
  // Stores the total of a section, which is the result if the row is a single section.
  TP_HD void store(int64_t id, Acc total) const {
    if (sections == 1) {
      x.store(id, total);
    } else {
      totals[id] = total;
    }
  }
};

template <class Source>
struct Sections {
  using Monoid = typename Source::Monoid;
  using Acc = typename Monoid::Acc;
  Source source;
  int64_t section, sections;  // operands per section, sections per row
  Acc *totals, *workspace;    // workspace: `in_global` accumulators for each block

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto x = source.bind(block);
    const auto array = block.global("next", totals, source.rows * sections);
    return BoundSections<Monoid, std::decay_t<decltype(x)>, std::decay_t<decltype(array)>>{
        x, array, source.n, section, sections, source.rows * sections};
  }
};

template <template <class> class Kernel, class Source>
void reduce_rows(Context& context, const char* name, const Source& source) {
  using K = Kernel<Source>;
  using Acc = typename Source::Acc;
  const int64_t sections = tp::max(int64_t(1), ceil_div(source.n, int64_t(K::section)));
  const int64_t blocks = source.rows * sections, grid = tp::min(blocks, K::in_global > 0 ? max_global_grid : max_grid);
  Acc* workspace = K::in_global > 0 ? context.workspace<Acc>(grid * K::in_global) : nullptr;
  Acc* totals = sections == 1 ? nullptr : context.workspace<Acc>(blocks);
  simt::launch(context, name, {grid}, K::threads, K::in_shared * int64_t(sizeof(Acc)),
               K{Sections<Source>{source, K::section, sections, totals, workspace}});
  if (sections == 1) return;
  with_totals(source, totals, sections, [&](const auto& next) { reduce_rows<Kernel>(context, name, next); });
}

// A rung: runs the kernel under the driver, for every dtype and operator.
template <template <class> class Kernel>
void reduce_by_sections(const char* name, const Args& args, Context& context) {
  with_wide_elements(args, [&](const auto& elements) { reduce_rows<Kernel>(context, name, elements); });
}

}  // namespace tp::reduction
