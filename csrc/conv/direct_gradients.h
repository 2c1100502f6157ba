// The gradients of the direct convolution, in the style of its forward pass, and the launches of all three (Fig.
// 16.13).
#pragma once
#include "conv/elements.h"

namespace tp::conv {

constexpr int tile_width = 16, direct_threads = tile_width * tile_width;
constexpr int64_t max_grid_yz = 65535;

// A grid of maps by tiles by samples. Unlike the figure's, the number of tiles includes partial ones.
template <class Kernel>
void launch_tiles(Context& context, int64_t maps, int64_t height, int64_t width, int64_t samples,
                  const Kernel& kernel) {
  const int64_t tiles = ceil_div(height, int64_t(tile_width)) * ceil_div(width, int64_t(tile_width));
  const simt::Dim grid{min(maps, max_grid), min(tiles, max_grid_yz), min(samples, max_grid_yz)};
  simt::launch(context, "direct", grid, direct_threads, 0, kernel);
}

// dx (Fig. 16.10): one thread per pixel of dx. It adds up, over all products that the pixel enters, the weight times
// the gradient of the output.
template <class T>
struct ConvLayerInputGradientKernel {
  Elements<T> e;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using A = acc_t<T>;
    const auto conv = e.bind(block);
    const auto first = block.index(), step = block.grid();
    const int64_t W_grid = ceil_div(e.cols.in, int64_t(tile_width)), H_grid = ceil_div(e.rows.in, int64_t(tile_width));
    for (int64_t n = first.z; n < e.n; n += step.z) {
      for (int64_t tile = first.y; tile < H_grid * W_grid; tile += step.y) {
        for (int64_t c = first.x; c < e.c; c += step.x) {
          block.phase("convolve", [&](int t) {
            const int64_t i = tile / W_grid * tile_width + t / tile_width;
            const int64_t j = tile % W_grid * tile_width + t % tile_width;
            if (i >= e.rows.in || j >= e.cols.in) return;
            const int64_t group = c / e.channels * e.maps;  // the group's first map
            A acc = 0;
            for (int64_t m = group; m < group + e.maps; ++m) {
              for (int64_t p = 0; p < e.rows.kernel; ++p) {
                const int64_t h = e.rows.reader(i, p);
                if (h < 0) continue;
                for (int64_t q = 0; q < e.cols.kernel; ++q) {
                  const int64_t w = e.cols.reader(j, q);
                  if (w < 0) continue;
                  const T gradient = conv.y[e.y_at(n, m, h, w)],
                          weight = conv.weight[e.weight_at(m, c % e.channels, p, q)];
                  acc += A(gradient) * A(weight);
                }
              }
            }
            conv.x[e.x_at(n, c, i, j)] = T(acc);
          });
        }
      }
    }
  }
};

// dw (Fig. 16.11): one thread per weight, which sums over all samples and pixels. It is simple, and slow because small
// filters have few weights and so few threads.
template <class T>
struct ConvLayerWeightGradientKernel {
  Elements<T> e;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    using A = acc_t<T>;
    const auto conv = e.bind(block);
    const int64_t step = block.grid().x * direct_threads;
    for (int64_t first = block.index().x * direct_threads; first < e.weights(); first += step) {
      block.phase("correlate", [&](int t) {
        const int64_t i = first + t, tap = i % e.taps(), filter = i / e.taps();
        if (i >= e.weights()) return;
        const int64_t m = filter / e.channels, c = m / e.maps * e.channels + filter % e.channels;
        const int64_t p = tap / e.cols.kernel, q = tap % e.cols.kernel;
        A acc = 0;
        for (int64_t n = 0; n < e.n; ++n) {
          for (int64_t h = 0; h < e.rows.out; ++h) {
            for (int64_t w = 0; w < e.cols.out; ++w) {
              const T gradient = conv.y[e.y_at(n, m, h, w)];
              acc += A(gradient) * conv.padded(n, c, e.rows.source(h, p), e.cols.source(w, q));
            }
          }
        }
        conv.weight[i] = T(acc);
      });
    }
  }
};

}  // namespace tp::conv
