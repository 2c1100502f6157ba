// The driver that makes a whole reduction of a block algorithm (001, "kernel decomposition"): split every row into
// sections that one block can reduce, and reduce the sections' totals in the same way, launch after launch, until one
// is left a row.
//
// An Algorithm says how many elements a block reduces (`section`), with how many `threads`, how many accumulators it
// works on (`size`), whether they lie `in_global` memory, and where among them the total ends up (`place`). It reduces
// in phases; x(i) gives operand i of the section, and the identity beyond the end of the row.
#pragma once
#include "core/simt.h"
#include "reduction/elements.h"

namespace tp::reduction {

constexpr int64_t max_grid = 2147483647, max_global_grid = 1024;

// The totals of the sections of every row of E, as the elements of another reduction.
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

// Block i reduces section i % sections of row i / sections, and leaves its total, which is the result where a row is
// one section.
template <class Source, class Algorithm>
struct ReduceSections {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  Source source;
  int64_t sections;
  Acc *totals, *space;  // space: `size` accumulators a block, if they are in global memory

  template <class Block>
  TP_HD auto array(Block& block) const {
    if constexpr (Algorithm::in_global) {
      return block.global("s", space + block.index().x * Algorithm::size, Algorithm::size);
    } else {
      return block.template shared<Acc>("s", Algorithm::size);
    }
  }

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = source.bind(block);
    const auto total = block.global("next", totals, source.rows * sections);
    const auto s = array(block);
    for (int64_t id = block.index().x; id < source.rows * sections; id += block.grid().x) {
      const int64_t row = id / sections, first = id % sections * Algorithm::section;
      Algorithm::template reduce<M>(
          block, s, [&](int i) -> Acc { return first + i < source.n ? x.load(row, first + i) : M::identity(); });
      block.phase("store", [&](int t) {
        if (t != 0) return;
        if (sections == 1) {
          x.store(row, s[Algorithm::place]);
        } else {
          total[id] = s[Algorithm::place];
        }
      });
    }
  }
};

template <class Algorithm, class Source>
void reduce_rows(Context& context, const char* name, const Source& source) {
  using Acc = typename Source::Acc;
  const int64_t sections = tp::max(int64_t(1), ceil_div(source.n, int64_t(Algorithm::section)));
  const int64_t blocks = source.rows * sections;
  const int64_t grid = tp::min(blocks, Algorithm::in_global ? max_global_grid : max_grid);
  const int64_t shared = Algorithm::in_global ? 0 : Algorithm::size * int64_t(sizeof(Acc));
  Acc* space = Algorithm::in_global ? context.workspace<Acc>(grid * Algorithm::size) : nullptr;
  Acc* totals = sections == 1 ? nullptr : context.workspace<Acc>(blocks);
  simt::launch(context, name, {grid}, Algorithm::threads, shared,
               ReduceSections<Source, Algorithm>{source, sections, totals, space});
  if (sections == 1) return;
  with_totals(source, totals, sections, [&](const auto& next) { reduce_rows<Algorithm>(context, name, next); });
}

// A rung: the block algorithm, under the driver, for every dtype and operator.
template <class Algorithm>
void reduce_by_sections(const char* name, const Args& args, Context& context) {
  with_elements(args, [&](const auto& elements) { reduce_rows<Algorithm>(context, name, elements); });
}

}  // namespace tp::reduction
