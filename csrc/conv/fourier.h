// Stockham's fast Fourier transform of planes whose sides are powers of two. Every pass of radix 2 reads one array and
// writes another, in an order that needs no bit reversal at the end. A pass is one launch over all lines.
#pragma once
#include <cmath>

#include "conv/each.h"
#include "conv/gather.h"

namespace tp::conv {

// Two adjacent numbers.
template <class A>
struct Complex {
  A re, im;
};
template <class A>
TP_HD Complex<A> operator+(const Complex<A>& a, const Complex<A>& b) {
  return {a.re + b.re, a.im + b.im};
}
template <class A>
TP_HD Complex<A> operator-(const Complex<A>& a, const Complex<A>& b) {
  return {a.re - b.re, a.im - b.im};
}
template <class A>
TP_HD Complex<A> operator*(const Complex<A>& a, const Complex<A>& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// a times the conjugate of b.
template <class A>
TP_HD Complex<A> times_conjugate(const Complex<A>& a, const Complex<A>& b) {
  return {a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im};
}

inline int64_t power_of_two(int64_t least) {
  int64_t n = 1;
  while (n < least) n *= 2;
  return n;
}

// exp(-2 pi i k / n) for k in 0..n / 2.
template <class A>
struct Twiddles {
  Complex<A>* out;
  int64_t n;

  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto table = block.global("twiddles", out, n / 2);
    const int64_t size = n;
    return [=](int64_t k) {
      const double angle = -2.0 * 3.14159265358979323846 * double(k) / double(size);
      table[k] = Complex<A>{A(::cos(angle)), A(::sin(angle))};
    };
  }
};

// One pass over lines of n elements that are `stride` apart; `stride` such lines are interleaved. Before the pass, n /
// length interleaved transforms of `length` elements are done; after it, half as many of twice the length.
template <class A>
struct Butterflies {
  const Complex<A>* from;
  Complex<A>* to;
  const Complex<A>* twiddles;
  int64_t n, stride, length, lines;  // lines in all
  bool inverse;

  template <class From, class To, class Table>
  struct Bound {
    Butterflies p;
    From from;
    To to;
    Table twiddles;
    TP_HD void operator()(int64_t item) const {
      const int64_t half = p.n / 2;
      int64_t beside = item, i = divide(beside, p.stride), line = divide(i, half);
      const int64_t base = line * p.n * p.stride + beside, k = i % p.length, first = i - k;
      const Complex<A> a = from[base + i * p.stride], b = from[base + (i + half) * p.stride];
      Complex<A> w = twiddles[k * (half / p.length)];
      if (p.inverse) w.im = -w.im;
      const Complex<A> turned = w * b;
      to[base + (2 * first + k) * p.stride] = a + turned;
      to[base + (2 * first + k + p.length) * p.stride] = a - turned;
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto source = block.global("from", from, lines * n);
    const auto target = block.global("to", to, lines * n);
    const auto table = block.global("twiddles", twiddles, n / 2);
    return Bound<std::decay_t<decltype(source)>, std::decay_t<decltype(target)>, std::decay_t<decltype(table)>>{
        *this, source, target, table};
  }
};

// Planes of height x width complex numbers; each is transformed along both axes.
template <class A>
class Transform {
 public:
  Transform(int64_t height, int64_t width, Context& context)
      : height_(height), width_(width), context_(context), rows_(table(height)), cols_(table(width)) {}

  int64_t plane() const { return height_ * width_; }
  // Transforms `planes` planes of `data`; returns whichever of `data` and `spare` holds the result.
  Complex<A>* operator()(Complex<A>* data, Complex<A>* spare, int64_t planes, bool inverse) const {
    Complex<A>* other = pass(data, spare, width_, 1, planes * height_, cols_, inverse);
    return pass(other, other == data ? spare : data, height_, width_, planes * width_, rows_, inverse);
  }

 private:
  Complex<A>* table(int64_t n) const {
    Complex<A>* const out = context_.workspace<Complex<A>>(max(n / 2, int64_t(1)));
    each(context_, "fft_twiddles", n / 2, Twiddles<A>{out, n});
    return out;
  }
  Complex<A>* pass(Complex<A>* from, Complex<A>* to, int64_t n, int64_t stride, int64_t lines,
                   const Complex<A>* twiddles, bool inverse) const {
    for (int64_t length = 1; length < n; length *= 2) {
      each(context_, "fft_pass", lines * n / 2, Butterflies<A>{from, to, twiddles, n, stride, length, lines, inverse});
      Complex<A>* const swap = from;
      from = to;
      to = swap;
    }
    return from;
  }

  int64_t height_, width_;
  Context& context_;
  const Complex<A>*rows_, *cols_;
};

}  // namespace tp::conv
