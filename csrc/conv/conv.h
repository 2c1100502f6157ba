// Convolution (PMPP chapter 16): the three passes through a convolutional layer.
//
// An output map is a sum over all input maps of its group, each convolved with a filter (Fig. 16.6). Tap (p, q) of
// output pixel (h, w) reads the input at row i = h * stride - pad + p * dilation, and at column j likewise:
//
//   fprop   y[n, m, h, w]  = bias[m] + sum over c, p, q of x[n, c, i, j] w[m, c, p, q]
//   dgrad   dx[n, c, i, j] = sum over m and over the (p, q, h, w) that read (i, j) of dy[n, m, h, w] w[m, c, p, q]
//   wgrad   dw[m, c, p, q] = sum over n, h, w of dy[n, m, h, w] x[n, c, i, j]
//
// All three passes are linear in each factor, and each is the transpose of the other two. So together they are their
// own derivatives, of every order.
//
// In fprop and wgrad, padding is an operand with the value zero: where a filter or a gradient reads padding, it is
// multiplied by zero, and NaN times zero is NaN. dgrad reads no padding: it sums only the products that exist. So in
// dgrad a NaN reaches only the pixels that were read together with it, and a pixel that no tap reads has the gradient
// zero.
//
// The rungs differ in how work is distributed. sequential, direct, tiled and register_tiled compute each output by a
// loop nest, from global memory, shared memory or registers. The matrix forms compute a product of filters [maps, taps]
// and unrolled input [taps, pixels]; they either store the unrolled matrix (im2col_gemm, Fig. 16.16) or only compute
// the addresses of its elements (implicit_gemm, and threaded where none of its special cases suits: depthwise filters,
// Winograd's algorithm, lines of pixels). winograd and fft multiply transforms of both factors, which mix neighbouring
// pixels. Half types accumulate in float and are rounded once.
#pragma once
#include "core/ladder.h"

namespace tp::conv {

// What a convolution does along one axis, rows or columns.
struct Axis {
  int64_t in, out, kernel, stride, pad, dilation;

  // The input that tap k of output o reads; it is padding if outside 0..in.
  TP_HD int64_t source(int64_t o, int64_t k) const { return o * stride - pad + k * dilation; }
  // The output whose tap k reads input i, or -1.
  TP_HD int64_t reader(int64_t i, int64_t k) const {
    const int64_t step = i + pad - k * dilation;
    return step < 0 || step % stride != 0 || step / stride >= out ? -1 : step / stride;
  }
  // The first output whose tap k reads input i or a later one; `out` if there is none.
  int64_t first_reader(int64_t i, int64_t k) const {
    const int64_t step = i + pad - k * dilation;
    return step <= 0 ? 0 : min(ceil_div(step, stride), out);
  }
};

enum class Pass : int8_t { fprop, dgrad, wgrad };

// The memory layout of x and y: nchw stores one map after another, nhwc the channels of each pixel next to each other
// (PyTorch's channels_last). Filters are images, too: nchw stores them as [m, c / groups, p, q].
enum class Layout : int8_t { nchw, nhwc };

struct Args {
  Pass pass;
  DType dtype;
  void* x;           // [n, c, rows.in, cols.in] in `layout`; dgrad writes it
  void* weight;      // [m, c / groups, rows.kernel, cols.kernel]; wgrad writes it
  void* y;           // [n, m, rows.out, cols.out] in `layout`; fprop writes it, for the other passes it is the gradient
  const void* bias;  // fprop: [m], or null
  int64_t n, c, m, groups;
  Axis rows, cols;
  Layout layout = Layout::nchw;
  Layout filters = Layout::nchw;  // of the weight that is read
};

#define TP_RUNGS "conv/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

// Whether winograd's wgrad on CUDA stores transformed images in memory, instead of transforming them in every block
// that needs them.
bool stores_images(const Args&);

// Whether a rung reads filters in nhwc, too.
bool reads_nhwc_filters(std::string_view rung);

}  // namespace tp::conv
