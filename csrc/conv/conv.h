// Convolution (PMPP chapter 16): the three passes through a convolutional layer.
//
// An output map is the sum, over all input maps of its group, of what a filter finds in each of them (Fig. 16.6). With
// tap (p, q) of output pixel (h, w) reading the input at i = h * stride - pad + p * dilation, and j likewise,
//
//   fprop   y[n, m, h, w]  = bias[m] + sum over c, p, q of x[n, c, i, j] w[m, c, p, q]
//   dgrad   dx[n, c, i, j] = sum over m and over the (p, q, h, w) that read (i, j) of dy[n, m, h, w] w[m, c, p, q]
//   wgrad   dw[m, c, p, q] = sum over n, h, w of dy[n, m, h, w] x[n, c, i, j]
//
// All three are linear in each factor and each is the transpose of the other two, so together they are their own
// derivatives, of every order.
//
// Padding is an operand, zero: a weight that meets it in fprop, or a gradient that meets it in wgrad, is multiplied by
// zero, and NaN times zero is NaN. There is no padding to meet in dgrad: it sums only the products that exist, so a NaN
// reaches only the pixels that were read with it, and a pixel that no tap reads has the gradient zero.
//
// The rungs differ in who computes what. sequential, direct, tiled and register_tiled give each output its own loop
// nest, from ever nearer memory. The matrix forms see a product of filters [maps, taps] and unrolled input [taps,
// pixels], with the unrolled matrix stored (im2col_gemm, Fig. 16.16) or only addressed (threaded, implicit_gemm).
// winograd and fft multiply transforms of both; they mix what lies side by side, a NaN included. Half types accumulate
// in float and are rounded once.
#pragma once
#include "core/ladder.h"

namespace tp::conv {

// Rows, or columns: what a convolution does along one of the two.
struct Axis {
  int64_t in, out, kernel, stride, pad, dilation;

  // Where tap k of output o reads: padding if that is outside 0..in.
  TP_HD int64_t source(int64_t o, int64_t k) const { return o * stride - pad + k * dilation; }
  // The output whose tap k reads input i, or -1.
  TP_HD int64_t reader(int64_t i, int64_t k) const {
    const int64_t step = i + pad - k * dilation;
    return step < 0 || step % stride != 0 || step / stride >= out ? -1 : step / stride;
  }
  // The first output whose tap k reads input i or what comes after it; `out` if none does.
  int64_t first_reader(int64_t i, int64_t k) const {
    const int64_t step = i + pad - k * dilation;
    return step <= 0 ? 0 : min(ceil_div(step, stride), out);
  }
};

enum class Pass : int8_t { fprop, dgrad, wgrad };

// How x and y lie in memory: map by map, or with the channels of a pixel side by side (PyTorch's channels_last). The
// filters are [m, c / groups, p, q] in either case.
enum class Layout : int8_t { nchw, nhwc };

struct Args {
  Pass pass;
  DType dtype;
  void* x;           // [n, c, rows.in, cols.in] in `layout`; dgrad writes it
  void* weight;      // [m, c / groups, rows.kernel, cols.kernel]; wgrad writes it
  void* y;           // [n, m, rows.out, cols.out] in `layout`; fprop writes it, to the others it is the gradient
  const void* bias;  // fprop: [m], or null
  int64_t n, c, m, groups;
  Axis rows, cols;
  Layout layout = Layout::nchw;
};

#define TP_RUNGS "conv/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::conv
