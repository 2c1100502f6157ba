// The products of grouped_gemm by wgmma, the matrix instructions of warpgroups. This file is compiled for sm_90a, the
// target that has them; block/wgmma.cuh says what happens on other devices.
#include "segmented/grouped_gemm_sm90a.h"
#ifdef __CUDACC__
#include "segmented/grouped_outer_wgmma.cuh"
#include "segmented/grouped_product_wgmma.cuh"

namespace tp::segment_matmul {

bool is_for_hopper(const Args& args) {
  constexpr int64_t vector = 8, most = int64_t(1) << 31;
  if (args.dtype != DType::float16 && args.dtype != DType::bfloat16) return false;
  if (!block::has_wgmma(grouped_wgmma<1, half>)) return false;
  if (args.inner % vector != 0 || args.cols % vector != 0) return false;
  // Rows are counted by int, up to the end of a tile, or of a chunk of at most n rows.
  const int64_t last = args.n + (args.outer ? args.n : tile_rows) + 64;
  if (max(last, max(args.inner, args.cols)) >= most) return false;
  if (args.n == 0 || args.segments == 0 || args.segments >= most) return false;
  return true;
}

void multiply_on_hopper(const Args& given, Context& context) {
  block::set_context();
  Args args = given;
  constexpr int64_t width = 2;  // bytes of an element
  args.x = block::aligned(args.x, args.n * args.inner * width, context);
  args.other =
      block::aligned(args.other, (args.outer ? args.n : args.segments * args.inner) * args.cols * width, context);
  dispatch(Types<half, bfloat16>{}, args.dtype, "segment_matmul", [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.outer) {
      args.cols <= 128 ? launch_outer<1, T>(args, context) : launch_outer<2, T>(args, context);
    } else {
      args.cols <= 128 ? launch_product<1, T>(args, context) : launch_product<2, T>(args, context);
    }
  });
}

}  // namespace tp::segment_matmul
#endif
