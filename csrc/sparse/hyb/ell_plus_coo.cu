// Fig. 14.13: a thread a row for the padded rows, then a thread an entry for the tail that the padding could not hold.
// The first launch writes every sum, so that only the tail takes atomics.
#include "sparse/scatter.h"

namespace tp {
namespace {

using namespace sparse;

template <class M>
struct StoreRows {
  M matrix;
  typename M::Acc* sums;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto b = matrix.bind(block);
    const auto acc = block.global("sums", sums, b.a.rows * b.a.k);
    block.phase("row", [&](int t) {
      const int64_t i = block.index().x * scatter_threads + t;
      if (i < b.a.rows * b.a.k) acc[i] = dot<Ell>(b, i / b.a.k, i % b.a.k);
    });
  }
};

}  // namespace

void spmv_hyb::ell_plus_coo(const Args& args, Context& context) {
  with_rows<Ell>(args, context, [&](const auto& matrix) {
    using M = std::decay_t<decltype(matrix)>;
    scatter("ell_plus_coo", matrix, context, [&](auto* sums) {
      simt::launch(context, "ell_plus_coo", {ceil_div(args.rows * args.k, int64_t(scatter_threads))}, scatter_threads,
                   0, StoreRows<M>{matrix, sums});
      scatter_entries("ell_plus_coo", M{tail_of(args, nullptr), 0}, context, sums);
    });
  });
}

}  // namespace tp
