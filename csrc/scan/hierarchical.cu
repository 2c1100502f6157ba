// The scan of an input of any length by three kernels (§11.6, Figs. 11.9 and 11.10; ECE 408; Hwu, lecture 4.7).
//
// The first kernel scans the sections ("scan blocks"), one per block, as in Fig. 11.8, and stores the last element of
// each in S. The second kernel scans S: it is the first one again, which in turn uses three kernels if S is longer than
// a section. The third kernel combines every element with the element of S for the previous section. Only the end of a
// launch is a barrier for the whole grid, so the steps are separate launches; the barriers inside the first kernel are
// those of coarsened.
//
// In the text, the first block of the third kernel reads S[-1]; here the first section is final already. A subsection
// has nine elements, because an odd stride spreads the threads of a warp over all banks of shared memory.
#include "scan/sections.h"

namespace tp::scan {
namespace {

constexpr int threads = 256, subsection = 9, section = threads * subsection;

template <class Source>
struct ScanSectionsKernel {
  using M = typename Source::Monoid;
  using Acc = typename M::Acc;
  static constexpr int64_t shared_bytes = (section + threads) * int64_t(sizeof(Acc));
  Sections<Source> sections;

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

template <class Source>
struct AddTotalsKernel {
  using M = typename Source::Monoid;
  Sections<Source> sections;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto Y = sections.bind(block);
    for (int64_t id = block.index().x; id < Y.count; id += block.grid().x) {
      block.phase("add", [&](int t) {
        const int64_t row = Y.row(id), begin = Y.begin(id), end = tp::min(begin + section, Y.n);
        for (int64_t k = begin + t; k < end; k += threads) {
          const typename M::Acc value = Y.x.kept(row, k);
          Y.x.store(row, k, begin == 0 ? value : M::combine(Y.S[id - 1], value));
        }
      });
    }
  }
};

// scan(totals, sections) scans the totals of every row.
template <class Source, class Scan>
void scan_rows(Source source, Context& context, Scan scan) {
  using M = typename Source::Monoid;
  const int64_t sections = ceil_div(source.n, int64_t(section)), blocks = source.rows * sections;
  auto* S = sections == 1 ? nullptr : context.workspace<typename M::Acc>(blocks);
  if (sections > 1) source.allocate(context);
  const simt::Dim grid{tp::min(blocks, max_grid)};
  const Sections<Source> all{source, section, sections, S};
  using First = ScanSectionsKernel<Source>;
  simt::launch(context, "hierarchical", grid, threads, First::shared_bytes, First{all});
  if (sections == 1) return;
  scan(S, sections);
  simt::launch(context, "hierarchical", grid, threads, 0, AddTotalsKernel<Source>{all});
}

template <class M>
void scan_maps(block::Totals<M> maps, Context& context) {
  scan_rows(maps, context,
            [&](auto* S, int64_t sections) { scan_maps(block::Totals<M>{S, maps.rows, sections}, context); });
}

}  // namespace

void hierarchical(const Args& args, Context& context) {
  with_wide_elements(args, [&](auto elements) {
    using M = typename decltype(elements)::Monoid;
    scan_rows(elements, context, [&](auto* S, int64_t sections) {
      scan_totals<M>(
          args, S, sections, [&](const Args& totals) { hierarchical(totals, context); },
          [&](auto maps) { scan_maps(maps, context); });
    });
  });
}

}  // namespace tp::scan
