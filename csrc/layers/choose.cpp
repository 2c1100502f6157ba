#include "layers/cut.h"
#include "layers/layers.h"
#include "layers/linear.h"

namespace tp {

const char* layers::activations::choose(const Args&, const Device& device) {
  return device.cuda ? "vectorized" : "threaded";
}

const char* layers::losses::choose(const Args&, const Device& device) {
  return device.cuda ? "single_pass" : "threaded";
}

const char* layers::gaussians::choose(const Args&, const Device& device) {
  return device.cuda ? "thread_per_output" : "threaded";
}

linear::Cut linear::cheapest_cut(const Gemm& p) {
  constexpr int64_t multiprocessors = 132, longest = 4096, shortest = 32, most_sums = int64_t(1) << 28;
  const int64_t size = p.rows * p.cols;
  const int64_t least = max(int64_t(1), min(ceil_div(p.inner, longest), min(most_sums / size, int64_t(1) << 15)));
  Cut best{};
  for (int64_t slices = least; slices == least || (slices * shortest <= p.inner && slices <= 512); slices *= 2) {
    const double length = double(p.inner) / double(slices);
    const double sum = slices > 1 ? 2.5 + 3.5e-6 * double(slices * size) : 0;
    for (const Tile& tile : tiles) {
      const int64_t count = ceil_div(p.rows, int64_t(tile.rows)) * ceil_div(p.cols, int64_t(tile.cols)) * slices;
      const double turns = double(ceil_div(count, multiprocessors));
      const double time = tile.launch + turns * (tile.element * length + tile.block) + sum;
      if (best.slices == 0 || time < best.microseconds) best = {int(&tile - tiles), slices, time};
    }
  }
  return best;
}

// The time of a float32 product by the BLAS, in microseconds. Measured on an H200 (CUDA 13.0, cold L2): 10, plus one
// for every 24 million multiplications, plus more if it has to slice the inner dimension. It adds a bias
// when it stores the product.
static double blas_microseconds(const linear::Args& args) {
  const double size = double(args.product.rows * args.product.cols), products = size * double(args.product.inner);
  const double slicing = size < double(1 << 19) ? 5 : 0;
  return 10.5 + products / 24e6 + slicing;
}

// In dtypes other than float32, small products use the tiled kernel.
const char* linear::choose(const Args& args, const Device& device) {
  constexpr int64_t small = int64_t(1) << 23, short_inner = 512;
  if (!device.cuda) return "gemm";
  const Gemm& p = args.product;
  if (p.dtype == DType::float32) {
    return cheapest_cut(p).microseconds <= blas_microseconds(args) ? "register_tiled" : "gemm";
  }
  return p.inner <= short_inner && p.rows * p.cols * p.inner <= small ? "tiled" : "gemm";
}

}  // namespace tp
