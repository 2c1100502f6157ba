// The sequential convolution (Figs. 16.6 and 16.10 to 16.12): one loop nest per pass. Every other rung is tested
// against this one, so it is written for clarity only.
//
// Fig. 16.10 reads the gradient at w - p and the weight at k - p, but the tap that joins an input pixel to the output
// at distance (p, q) is (p, q) itself, and the column is w - q. Axis::reader returns that output, or none.
#include "conv/elements.h"

namespace tp::conv {
namespace {

// Fig. 16.6, within Fig. 16.12's loop over the samples.
template <class T>
void fprop(const Elements<T>& e) {
  using A = acc_t<T>;
  const auto conv = e.bind(Pointers{});
  for (int64_t n = 0; n < e.n; ++n) {
    for (int64_t m = 0; m < e.m; ++m) {
      const int64_t group = m / e.maps * e.channels;  // the group's first channel
      for (int64_t h = 0; h < e.rows.out; ++h) {
        for (int64_t w = 0; w < e.cols.out; ++w) {
          A sum = 0;
          for (int64_t c = 0; c < e.channels; ++c) {
            for (int64_t p = 0; p < e.rows.kernel; ++p) {
              for (int64_t q = 0; q < e.cols.kernel; ++q) {
                sum += conv.padded(n, group + c, e.rows.source(h, p), e.cols.source(w, q)) *
                       A(conv.weight[e.weight_at(m, c, p, q)]);
              }
            }
          }
          if (e.bias) sum += A(conv.bias[m]);
          conv.y[e.y_at(n, m, h, w)] = T(sum);
        }
      }
    }
  }
}

// Fig. 16.10.
template <class T>
void dgrad(const Elements<T>& e) {
  using A = acc_t<T>;
  const auto conv = e.bind(Pointers{});
  for (int64_t n = 0; n < e.n; ++n) {
    for (int64_t c = 0; c < e.c; ++c) {
      const int64_t group = c / e.channels * e.maps;  // the group's first map
      for (int64_t i = 0; i < e.rows.in; ++i) {
        for (int64_t j = 0; j < e.cols.in; ++j) {
          A sum = 0;
          for (int64_t m = group; m < group + e.maps; ++m) {
            for (int64_t p = 0; p < e.rows.kernel; ++p) {
              for (int64_t q = 0; q < e.cols.kernel; ++q) {
                const int64_t h = e.rows.reader(i, p), w = e.cols.reader(j, q);
                if (h < 0 || w < 0) continue;
                sum += A(conv.y[e.y_at(n, m, h, w)]) * A(conv.weight[e.weight_at(m, c % e.channels, p, q)]);
              }
            }
          }
          conv.x[e.x_at(n, c, i, j)] = T(sum);
        }
      }
    }
  }
}

// Fig. 16.11, summed over the samples.
template <class T>
void wgrad(const Elements<T>& e) {
  using A = acc_t<T>;
  const auto conv = e.bind(Pointers{});
  for (int64_t m = 0; m < e.m; ++m) {
    for (int64_t c = 0; c < e.channels; ++c) {
      const int64_t from = m / e.maps * e.channels + c;
      for (int64_t p = 0; p < e.rows.kernel; ++p) {
        for (int64_t q = 0; q < e.cols.kernel; ++q) {
          A sum = 0;
          for (int64_t n = 0; n < e.n; ++n) {
            for (int64_t h = 0; h < e.rows.out; ++h) {
              for (int64_t w = 0; w < e.cols.out; ++w) {
                sum += A(conv.y[e.y_at(n, m, h, w)]) * conv.padded(n, from, e.rows.source(h, p), e.cols.source(w, q));
              }
            }
          }
          conv.weight[e.weight_at(m, c, p, q)] = T(sum);
        }
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
