// SpMV and SpMM in equal shares, whatever the lengths of the rows: each tile gets the same number of entries and row
// ends together (merge path). There are three launches: one finds where tiles start, one multiplies the tiles, and one
// completes the rows that cross tiles (sparse/csr/shares.cuh). With a plan in stages, products of one column or the
// values are first put in the order of the plan (sparse/csr/staged_tiles.cuh). No tile waits for another, and no sum
// uses atomics, so results have the same bits in every run.
#include "sparse/csr/layout.h"
#ifdef __CUDACC__
#include "sparse/csr/column_tiles.cuh"
#include "sparse/csr/staged_tiles.cuh"
#include "sparse/csr/vector_tiles.cuh"

namespace tp {

void spmv_csr::merge_path(const Args& args, Context& context) {
  if (args.rows == 0 || args.k == 0) return;
  sparse::with_rows<sparse::Csr>(args, context, [&](const auto& matrix) {
    const bool in_stages = sparse::goes_in_stages<typename std::decay_t<decltype(matrix)>::Acc>(args);
    if (args.k > 1) {
      sparse::multiply_columns_by_path(in_stages ? sparse::in_plan_order(matrix, context) : matrix, context);
    } else if (in_stages) {
      sparse::multiply_vector_in_stages(matrix, context);
    } else {
      sparse::multiply_vector_by_path(matrix, context);
    }
  });
}

}  // namespace tp
#endif
