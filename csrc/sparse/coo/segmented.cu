// SpMV without atomics: if rows are sorted, or a plan sorts them, the entries of each row are contiguous. One search
// per row finds where they begin, which gives a CSR matrix; csr/merge_path multiplies it.
#include "sparse/rows.h"
#ifdef __CUDACC__

namespace tp {
namespace {

using namespace sparse;
constexpr int threads = 256;

// ptrs[r] = the number of entries whose row is less than r, for r = 0 to rows.
template <class M>
__global__ __launch_bounds__(threads) void find_pointers(const M matrix, typename M::I* ptrs) {
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t row = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (row > b.a.rows) return;
  int64_t low = 0, high = b.a.entries;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t entry = b.a.perm != nullptr ? b.through_plan(middle) : middle;
    if (entry >= 0 && b.row_idx[entry] < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  ptrs[row] = typename M::I(low);
}

}  // namespace

void spmv_coo::segmented(const Args& args, Context& context) {
  require(args.row_sorted || args.perm != nullptr || args.entries == 0, args.op,
          ": algorithm 'segmented' needs entries sorted by row, or a plan that sorts them");
  CsrArgs csr{args, {nullptr, args.col_idx, args.perm}, args.perm != nullptr, nullptr, nullptr};
  with_matrix(args, [&](const auto& matrix) {
    using I = typename std::decay_t<decltype(matrix)>::I;
    I* ptrs = context.workspace<I>(args.rows + 1);
    const int64_t blocks = ceil_div(args.rows + 1, int64_t(threads));
    find_pointers<<<unsigned(blocks), threads, 0, cudaStream_t(context.stream)>>>(matrix, ptrs);
    check_launch("segmented");
    csr.ptrs = ptrs;
  });
  spmv_csr::merge_path(csr, context);
}

}  // namespace tp
#endif
