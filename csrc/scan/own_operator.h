// Scans by a user's own operator, with the textbook kernels: on the host and, if compiled by nvcc, on the device.
//
//   struct Longest {                                    // the operator: associative, it need not commute
//     using Acc = ...;                                  // what is combined: a number, or a struct of two such things
//     TP_HD static Acc identity();
//     TP_HD static Acc combine(Acc earlier, Acc later);
//     TP_HD static Acc of(float x);                     // an element as an operand
//   };
//   tp::scan::scan_with<Longest>(in, out, rows, n, context);
//
// The input is [rows, n]; the results are accumulators, one per element. The Context says where to run and where
// scratch memory comes from (core/context.h). examples/cpp/own_operator.cpp is a complete program.
#pragma once
#include "block/scan_sections.h"

namespace tp::scan {

template <class M, class In>
struct OwnElements {
  using Monoid = M;
  using Acc = typename M::Acc;
  const In* in;
  Acc* out;
  int64_t rows, n;
  bool exclusive;

  template <class X, class Y>
  struct Bound {
    X in;
    Y out;
    int64_t n;
    bool exclusive;
    TP_HD Acc element(int64_t row, int64_t k) const {
      const In x = in[row * n + k];
      return M::of(x);
    }
    TP_HD Acc load(int64_t row, int64_t k) const {
      if (!exclusive) return element(row, k);
      return k == 0 ? M::identity() : element(row, k - 1);
    }
    TP_HD void store(int64_t row, int64_t k, Acc value) const { out[row * n + k] = value; }
    TP_HD void keep(int64_t row, int64_t k, Acc value) const { store(row, k, value); }
    TP_HD Acc kept(int64_t row, int64_t k) const { return out[row * n + k]; }
  };

  void allocate(Context&) {}
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto x = block.global("in", in, rows * n);
    const auto y = block.global("out", out, rows * n);
    return Bound<std::decay_t<decltype(x)>, std::decay_t<decltype(y)>>{x, y, n, exclusive};
  }
};

// The coarsened scan (Fig. 11.8). coarsened.cu explains its phases and barriers.
template <class Source>
struct OwnScanKernel {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  // As many elements per block as fit in 48 KB of shared memory.
  static constexpr int threads = 64, subsection = sizeof(Acc) <= 16 ? 16 : 4;
  static constexpr int section = threads * subsection, in_shared = section + threads;
  block::Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = sections.bind(block);
    const auto XY = block.template shared<Acc>("XY", section);
    const auto totals = block.template shared<Acc>("totals", threads);
    auto temp = block.template per_lane<Acc>("temp");
    for (int64_t id = block.index().x; id < x.count; id += block.grid().x) {
      block.phase("load", [&](int t) {
        for (int i = t; i < section; i += threads) XY[i] = x.load(id, i);
      });
      block.phase("phase_1", [&](int t) {
        const int first = t * subsection;
        Acc sum = XY[first];
        for (int i = first + 1; i < first + subsection; ++i) {
          sum = M::combine(sum, XY[i]);
          XY[i] = sum;
        }
        totals[t] = sum;
      });
      for (int stride = 1; stride < threads; stride *= 2) {
        block.phase("phase_2_read", [&](int t) {
          if (t >= stride) temp[t] = M::combine(totals[t - stride], totals[t]);
        });
        block.phase("phase_2_write", [&](int t) {
          if (t >= stride) totals[t] = temp[t];
        });
      }
      block.phase("phase_3", [&](int t) {
        if (t == 0) return;
        const Acc before = totals[t - 1];
        for (int i = t * subsection; i < (t + 1) * subsection; ++i) XY[i] = M::combine(before, XY[i]);
      });
      block.phase("store", [&](int t) {
        for (int i = t; i < section; i += threads) x.store(id, i, XY[i]);
        if (t == 0) x.store_total(id, XY[section - 1]);
      });
    }
  }
};

// out[r, k] = in[r, 0] . ... . in[r, k], without in[r, k] if exclusive.
template <class M, class In>
void scan_with(const In* in, typename M::Acc* out, int64_t rows, int64_t n, Context& context, bool exclusive = false) {
  if (rows == 0 || n == 0) return;
  block::scan_rows<OwnScanKernel>(context, "own_operator", OwnElements<M, In>{in, out, rows, n, exclusive});
}

}  // namespace tp::scan
