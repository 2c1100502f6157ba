// One warp per row, or a part of a warp. With one column of Y, the lanes take neighbouring entries of the row and add
// up their sums by shuffles; a row gets as many lanes as a row of average length keeps busy with four entries each.
// With more columns, each lane takes some of them, so that rows of X are read coalesced. A row that is much longer than
// the average delays its warp.
#include "sparse/csr/layout.h"
#ifdef __CUDACC__
#include "sparse/csr/lanes.cuh"

namespace tp {
namespace {

using namespace sparse;
constexpr int threads = 256;

template <bool planned, class M>
__global__ __launch_bounds__(threads) void multiply_vector(const M matrix, int lanes) {
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t row = (int64_t(blockIdx.x) * threads + threadIdx.x) / lanes;
  const int lane = int(threadIdx.x) % lanes;
  const bool exists = row < b.a.rows;
  const int64_t begin = exists ? b.pointer(row) : 0, end = exists ? b.pointer(row + 1) : 0;
  const auto sum = sum_lanes(sum_entries<planned>(b, begin + lane, end, lanes), lanes);
  if (exists && lane == 0) b.store(row, 0, sum);
}

template <bool planned, class M, class C>
__global__ __launch_bounds__(threads) void multiply_columns(const M matrix, const C columns) {
  const auto b = matrix.bind(simt::Pointers{});
  const int64_t row = (int64_t(blockIdx.x) * threads + threadIdx.x) / columns.lanes;
  const int64_t c = (int64_t(blockIdx.y) * columns.lanes + int(threadIdx.x) % columns.lanes) * C::width;
  if (row >= b.a.rows || c >= b.a.k) return;
  RowSums<std::decay_t<decltype(b)>, C::width> row_sums;
  row_sums.clear();
  row_sums.template add<planned>(b, b.pointer(row), b.pointer(row + 1), c);
#pragma unroll
  for (int i = 0; i < C::width; ++i) b.store(row, c + i, row_sums.sum[i]);
}

}  // namespace

void spmv_csr::warp_per_row(const Args& args, Context& context) {
  if (args.rows == 0 || args.k == 0) return;
  const auto stream = cudaStream_t(context.stream);
  with_rows<Csr>(args, context, [&](const auto& matrix) {
    const auto blocks = [&](int lanes) { return unsigned(ceil_div(args.rows * lanes, int64_t(threads))); };
    with_plan(args, [&](auto planned) {
      if (args.k == 1) {
        int lanes = 1;
        while (lanes < warp_size && lanes * 4 * args.rows < args.entries) lanes *= 2;
        multiply_vector<planned.value><<<blocks(lanes), threads, 0, stream>>>(matrix, lanes);
      } else {
        with_columns(matrix, args.x, [&](auto columns) {
          const dim3 grid(blocks(columns.lanes), unsigned(columns.strips));
          multiply_columns<planned.value><<<grid, threads, 0, stream>>>(matrix, columns);
        });
      }
    });
    check_launch("warp_per_row");
  });
}

}  // namespace tp
#endif
