// The padded rows one after another, then the entries of the tail (sparse/sequential.h).
#include "sparse/sequential.h"

namespace tp {

void spmv_hyb::sequential(const Args& args, Context& context) {
  using namespace sparse;
  with_rows<Ell>(args, context, [&](const auto& matrix) {
    using Acc = typename std::decay_t<decltype(matrix)>::Acc;
    const auto b = matrix.bind(simt::Pointers{});
    Acc* sums = context.workspace<Acc>(args.rows * args.k);
    for (int64_t row = 0; row < args.rows; ++row) {
      for (int64_t c = 0; c < args.k; ++c) sums[row * args.k + c] = dot<Ell>(b, row, c);
    }
    multiply_coo_in_order(tail_of(args, sums), context);
  });
}

}  // namespace tp
