// The sequential convolution (Figs. 16.6, 16.10 to 16.12): every output in turn, each by the loop nest of elements.h.
// The oracle that every other rung is held to, so it is written for plainness alone. Fig. 16.10 reads the gradient at w
// - p and the weight at k - p; the tap of the pixel at distance (p, q) is (p, q) itself, and its column is at w - q.
#include "conv/elements.h"

namespace tp::conv {
namespace {

template <class T>
void fprop(const Elements<T>& e) {
  const auto conv = e.bind(Pointers{});
  for (int64_t image = 0; image < e.n; ++image) {
    for (int64_t map = 0; map < e.m; ++map) {
      for (int64_t h = 0; h < e.rows.out; ++h) {
        for (int64_t w = 0; w < e.cols.out; ++w) conv.fprop(image, map, h, w);
      }
    }
  }
}

template <class T>
void dgrad(const Elements<T>& e) {
  const auto conv = e.bind(Pointers{});
  for (int64_t image = 0; image < e.n; ++image) {
    for (int64_t channel = 0; channel < e.c; ++channel) {
      for (int64_t i = 0; i < e.rows.in; ++i) {
        for (int64_t j = 0; j < e.cols.in; ++j) conv.dgrad(image, channel, i, j);
      }
    }
  }
}

template <class T>
void wgrad(const Elements<T>& e) {
  const auto conv = e.bind(Pointers{});
  for (int64_t map = 0; map < e.m; ++map) {
    for (int64_t channel = 0; channel < e.channels; ++channel) {
      for (int64_t p = 0; p < e.rows.kernel; ++p) {
        for (int64_t q = 0; q < e.cols.kernel; ++q) conv.wgrad(map, channel, p, q);
      }
    }
  }
}

}  // namespace

void sequential(const Args& args, Context&) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    const Elements<typename decltype(type)::type> e(args);
    switch (args.pass) {
      case Pass::fprop:
        return fprop(e);
      case Pass::dgrad:
        return dgrad(e);
      case Pass::wgrad:
        return wgrad(e);
    }
  });
}

}  // namespace tp::conv
