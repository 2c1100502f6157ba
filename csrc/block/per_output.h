// Patterns in which every output is computed independently, so that nothing is shared and no barrier is needed. Outputs
// are arranged in rows. A computation is a functor that is first given the arrays, then the row, then the column:
//
//   struct Scale {
//     static constexpr const char* name = "scale";                    // what errors call it
//     template <class Block> TP_HD auto bind(Block& block) const {    // names the arrays it touches
//       const auto x = block.global("x", x_, n);
//       const auto y = block.global("y", y_, n);
//       return [=](int64_t row) {                                     // what is the same for a row
//         const int64_t first = row * columns;
//         return [=](int64_t column) { y[first + column] = 2 * x[first + column]; };
//       };
//     }
//   };
//
// Each output is written only by its own computation: gradients are gathered, never scattered, so they are
// deterministic and need no atomics. Sequential, Threaded and ThreadPerOutput run a functor; they are the rungs of
// these patterns. `fuses` says that launches dominate the cost, so two steps are better done in one; on the host,
// separate simple loops are better, because they are vectorized.
#pragma once
#include "core/division.h"
#include "core/simt.h"

namespace tp {

struct Outputs {
  int64_t rows, columns;
  int64_t cost = 1;  // approximate number of operations per output
};

// The arrays of rungs that are plain host code.
using simt::Pointers;

// Returns floor(n / d) for 0 <= n < 2^50 and 0 < d.
TP_HD inline int64_t floor_div(int64_t n, int64_t d) {
#ifdef __CUDA_ARCH__
  return quotient(n, d);
#else  // a loop computes 1 / d once; (n + 1/2) / d is farther from any integer than two rounding errors
  return int64_t((double(n) + 0.5) * (1.0 / double(d)));
#endif
}

// Loads an element as the type in which it is computed.
template <class T, class Array>
TP_HD acc_t<T> load(const Array& array, int64_t i) {
  const T value = array[i];
  return acc_t<T>(value);
}

// f(0) + ... + f(n - 1), in chunks of 256 whose sums are added, so that the rounding error grows 256 times slower.
template <class A, class F>
TP_HD A sum_of(int64_t n, F f) {
  A sum = 0;
  for (int64_t begin = 0; begin < n; begin += 256) {
    A chunk = 0;
    for (int64_t k = begin; k < tp::min(n, begin + 256); ++k) chunk += f(k);
    sum += chunk;
  }
  return sum;
}

struct Sequential {
  static constexpr bool fuses = false;
  Context& context;

  template <class Functor>
  void operator()(Outputs n, const Functor& functor) const {
    Pointers pointers;
    const auto compute = functor.bind(pointers);
    for (int64_t row = 0; row < n.rows; ++row) {
      const auto compute_row = compute(row);
      for (int64_t column = 0; column < n.columns; ++column) compute_row(column);
    }
  }
};

struct Threaded {
  static constexpr bool fuses = false;
  Context& context;

  template <class Functor>
  void operator()(Outputs n, const Functor& functor) const {
    Pointers pointers;
    const auto compute = functor.bind(pointers);
    const int64_t grain = tp::max(int64_t(16384) / tp::max(n.cost, int64_t(1)), int64_t(1));
    context.parallel_for(n.rows * n.columns, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin / n.columns, column = begin % n.columns; begin < end; ++row, column = 0) {
        const int64_t stop = tp::min(n.columns, column + end - begin);
        begin += stop - column;
        const auto compute_row = compute(row);
        for (; column < stop; ++column) compute_row(column);
      }
    });
  }
};

struct ThreadPerOutput {
  static constexpr bool fuses = true;
  static constexpr int threads = 256;
  Context& context;

  template <class Functor>
  struct Kernel {
    Functor functor;
    int64_t rows, columns;

    template <class Block>
    TP_HD void operator()(Block& block) const {
      const auto compute = functor.bind(block);
      const int64_t count = rows * columns;
      for (int64_t first = block.index().x * threads; first < count; first += block.grid().x * threads) {
        block.phase("compute", [&](int t) {
          if (first + t >= count) return;
          const int64_t row = floor_div(first + t, columns);
          compute(row)(first + t - row * columns);
        });
      }
    }
  };

  template <class Functor>
  void operator()(Outputs n, const Functor& functor) const {
    const int64_t blocks = tp::min(ceil_div(n.rows * n.columns, int64_t(threads)), max_grid);
    simt::launch(context, Functor::name, {blocks}, threads, 0, Kernel<Functor>{functor, n.rows, n.columns});
  }
};

// out[row, column] = sum of in[row, k] for k = column, column + width, ..., divided by `divisor`.
template <class In, class Out>
struct StridedSum {
  static constexpr const char* name = "sum";
  const In* in;
  Out* out;
  int64_t rows, length, width;
  acc_t<In> divisor;

  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto from = block.global("in", in, rows * length);
    const auto to = block.global("out", out, rows * width);
    return [=, *this](int64_t row) {
      return [=, *this](int64_t column) {
        acc_t<In> sum = 0;
        for (int64_t k = column; k < length; k += width) sum += load<In>(from, row * length + k);
        to[row * width + column] = Out(sum / divisor);
      };
    };
  }
};

// out[o, i] = sum over k of in[o, k, i], divided by `divisor`; in is [outer, n, inner]. Sums of more than 256 terms are
// sums of sums, so that the rounding error grows with the logarithm of n. The order of summation depends on the shape
// only.
template <class Run, class In, class Out>
void sum_middle(const Run& run, const In* in, int64_t outer, int64_t n, int64_t inner, Out* out,
                acc_t<In> divisor = 1) {
  using Acc = acc_t<In>;
  const int64_t parts = tp::max(ceil_div(n, int64_t(256)), int64_t(1)), width = parts * inner;
  const Outputs outputs{outer, width, tp::min(n, int64_t(256))};
  if (parts == 1) return run(outputs, StridedSum<In, Out>{in, out, outer, n * inner, width, divisor});
  Acc* partial = run.context.template workspace<Acc>(outer * width);
  run(outputs, StridedSum<In, Acc>{in, partial, outer, n * inner, width, Acc(1)});
  sum_middle(run, partial, outer, parts, inner, out, divisor);
}

}  // namespace tp
