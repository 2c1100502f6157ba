// Convolution as a matrix product whose unrolled matrix is never stored (§16.5 on cuDNN; Chetlur et al., 2014). Each
// tile of it is gathered from the images when the product needs it, straight into shared memory, while the previous
// tile is being multiplied. This saves the memory of im2col_gemm, and the traffic to write and read it.
//
//   fprop, dgrad   target[pixels, maps] = source[pixels, (tap, channel)] x filters[(tap, channel), maps]
//   wgrad          dw[maps, (tap, channel)] = dy^T[maps, pixels] x x[pixels, (tap, channel)], computed in slices of the
//   pixels, which are added up in a fixed order
//
// dgrad with a stride is one product per phase (gather.h), with only the taps that contribute to the phase. Half types
// are multiplied on the tensor cores and summed in float; float32 and double are multiplied as they are, never in TF32.
// Hopper has tensor core instructions and copies of its own, which are used unless there are few channels
// (hopper_sm90a.h).
#include "conv/hopper_sm90a.h"
#ifdef __CUDACC__
#include "conv/gather_fma.cuh"
#include "conv/gather_mma.cuh"
#include "conv/pixel_tiles.cuh"
#include "conv/wgrad_gemm.cuh"

namespace tp::conv {
namespace {

// The kernels count the pixels of an image, and positions in it, in int. Larger shapes, whose windows are further apart
// than any image is wide, are computed pixel by pixel.
bool fits_int(const Axis& a) {
  constexpr int64_t most = int64_t(1) << 29;
  return a.in < most && a.out < most && a.pad < most && a.stride < most && a.kernel < most && a.dilation < most &&
         a.out * a.stride < most && a.kernel * a.dilation < most;
}

template <class T>
constexpr bool on_tensor_cores = sizeof(T) == 2;

template <class T>
void gather(const Elements<T>& e, Pass pass, Context& context) {
  const Gather<T> g(e, pass);
  if constexpr (on_tensor_cores<T>) {
    if (gather_on_hopper(g, context)) return;
    const bool has_them = has_tensor_cores(gather_mma<T, MmaTile<128, 64>>);
    has_them ? run_gather_mma(g, context) : launch_gather_tiles(g, context);
  } else {
    run_gather_fma(g, context);
  }
}

template <class T>
void wgrad(const Elements<T>& e, Context& context) {
  if constexpr (on_tensor_cores<T>) {
    if (wgrad_on_hopper(e, context)) return;
    const bool has_them = has_tensor_cores(wgrad_mma<T>);
    has_them ? run_wgrad_mma(e, context) : launch_wgrad_tiles(e, context);
  } else {
    run_wgrad_fma(e, context);
  }
}

}  // namespace

void implicit_gemm(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const Elements<T> e(args);
    const bool fits = fits_int(e.rows) && fits_int(e.cols);
    if (args.pass == Pass::wgrad) {
      fits ? wgrad(e, context) : launch_wgrad_tiles(e, context);
    } else {
      fits ? gather(e, args.pass, context) : launch_gather_tiles(Gather<T>(e, args.pass), context);
    }
  });
}

}  // namespace tp::conv
#endif
