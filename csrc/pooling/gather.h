// The gradient of maximum pooling on the host, one outer map at a time: every pixel adds up the gradients of the
// windows over it whose maximum it is, in the order of the windows.
//
// With a stride s, the pixel of column s q + p is reached by windows q - d, for the same few d whatever q is. So each
// of the s phases p of a row is a loop that runs on vectors. Of each window it compares the place of the maximum,
// counted from the column where the window begins, with one number; `nowhere`, which stands for an index beyond the map
// and for windows beyond the ends of a row, equals none. Places are int32: vectors hold twice as many. The channels of
// a pixel are side by side.
#pragma once
#include <limits>
#include <memory>

#include "block/on_vectors.h"
#include "pooling/compute.h"

namespace tp::pooling {

// An array for one piece of a loop over lines. std::vector<bool> would be no array.
template <class A>
std::unique_ptr<A[]> array(int64_t n) {
  return std::unique_ptr<A[]>(new A[static_cast<size_t>(n)]);
}

template <class T, class Index>
class Gather {
  using A = acc_t<T>;
  static constexpr int most_taps = 8, most_stride = 8;
  static constexpr int32_t nowhere = std::numeric_limits<int32_t>::min();

 public:
  static bool fits(const Args& a) {
    constexpr int64_t most = int64_t(1) << 28;
    return a.h.reach() <= most_taps * a.h.stride && a.w.reach() <= most_taps * a.w.stride &&
           a.w.stride <= most_stride && a.in.h * a.in.w < most && (a.out.w + 1) * a.w.stride < most;
  }

  explicit Gather(const Args& a)
      : a_(a),
        inner_(a.in.inner),
        stride_(a.w.stride),
        width_(ceil_div(a.in.w, a.w.stride) * inner_),
        margin_(most_taps * inner_),
        pitch_(tp::max(a.out.w * inner_, width_) + 2 * margin_),
        places_(array<int32_t>(a.out.h * pitch_)),
        grads_(array<A>(a.out.h * pitch_)),
        sums_(array<A>(stride_ * width_)) {
    find_taps();
    std::fill_n(places_.get(), a.out.h * pitch_, nowhere);
    std::fill_n(grads_.get(), a.out.h * pitch_, A(0));
  }

  void run(int64_t outer) const {
    for (int64_t oh = 0; oh < a_.out.h; ++oh) load(outer, oh);
    for (int64_t ih = 0; ih < a_.in.h; ++ih) {
      for (int64_t p = 0; p < stride_; ++p) add_up(ih, p);
      store(as<T>(a_.grad_x) + (outer * a_.in.h + ih) * a_.in.w * inner_);
    }
  }

 private:
  void load(int64_t outer, int64_t oh) const {
    const int64_t row = (outer * a_.out.h + oh) * a_.out.w * inner_, pixels = a_.in.h * a_.in.w;
    const T* grad = as<T>(a_.grad) + row;
    const Index* taken = as<Index>(a_.indices) + row;
    int32_t* place = places_.get() + oh * pitch_ + margin_;
    A* to = grads_.get() + oh * pitch_ + margin_;
    const auto relative = [](int64_t index, int64_t pixels, int32_t first) {
      return uint64_t(index) < uint64_t(pixels) ? int32_t(index) - first : nowhere;
    };
    const auto step = int32_t(stride_);
    if (inner_ == 1) {
      TP_INDEPENDENT
      for (int64_t e = 0; e < a_.out.w; ++e) place[e] = relative(taken[e], pixels, int32_t(e) * step);
    } else {
      for (int64_t ow = 0; ow < a_.out.w; ++ow) {
        TP_INDEPENDENT
        for (int64_t e = ow * inner_; e < (ow + 1) * inner_; ++e) {
          place[e] = relative(taken[e], pixels, int32_t(ow) * step);
        }
      }
    }
    TP_INDEPENDENT
    for (int64_t e = 0; e < a_.out.w * inner_; ++e) to[e] = A(grad[e]);
  }

  // The taps of a window's row that read columns of phase p, the last first, so that windows come in their order:
  // window q - distance reads column stride q + p at `offset` columns from where it begins.
  struct Tap {
    int64_t distance;
    int32_t offset;
  };
  struct Phase {
    int count = 0;
    Tap taps[most_taps];
  };
  void find_taps() {
    for (int64_t t = a_.w.reach() - 1; t >= 0; --t) {
      const int64_t offset = t - a_.w.padding, distance = (t + a_.w.padding * (stride_ - 1)) / stride_ - a_.w.padding;
      Phase& phase = phases_[offset - distance * stride_];
      phase.taps[phase.count++] = {distance * inner_, int32_t(offset)};
    }
  }

  void add_up(int64_t ih, int64_t p) const {
    A* sum = sums_.get() + p * width_;
    std::fill_n(sum, width_, A(0));
    const Phase& phase = phases_[p];
    const Range rows = windows_over(a_.h, ih);
    const auto line = int32_t(ih * a_.in.w);
    for (int64_t oh = rows.begin; oh < rows.begin + rows.count; ++oh) {
      const int64_t first = oh * pitch_ + margin_;
      const Tap* taps = phase.taps;
      int left = phase.count;
      for (; left >= 4; left -= 4, taps += 4) add_row<4>(first, line, taps, sum);
      if (left == 3) add_row<3>(first, line, taps, sum);
      if (left == 2) add_row<2>(first, line, taps, sum);
      if (left == 1) add_row<1>(first, line, taps, sum);
    }
  }

  template <int count>
  void add_row(int64_t first, int32_t line, const Tap* taps, A* sum) const {
    const int32_t* place[count];
    const A* grad[count];
    int32_t here[count];
    for (int k = 0; k < count; ++k) {
      place[k] = places_.get() + first - taps[k].distance;
      grad[k] = grads_.get() + first - taps[k].distance;
      here[k] = line + taps[k].offset;
    }
    TP_INDEPENDENT
    for (int64_t i = 0; i < width_; ++i) {
      A total = sum[i];
      for (int k = 0; k < count; ++k) {
        const A value = grad[k][i];
        total += place[k][i] == here[k] ? value : A(0);
      }
      sum[i] = total;
    }
  }

  void store(T* to) const {
    const A* sum = sums_.get();
    if (stride_ == 1) {
      for (int64_t i = 0; i < width_; ++i) to[i] = T(sum[i]);
    } else if (stride_ == 2 && inner_ == 1) {
      const A* odd = sum + width_;
      TP_INDEPENDENT
      for (int64_t q = 0; q < a_.in.w / 2; ++q) to[2 * q] = T(sum[q]), to[2 * q + 1] = T(odd[q]);
      if (a_.in.w % 2) to[a_.in.w - 1] = T(sum[width_ - 1]);
    } else {
      for (int64_t p = 0; p < stride_; ++p, sum += width_) {
        for (int64_t w = p, i = 0; w < a_.in.w; w += stride_) {
          for (int64_t c = 0; c < inner_; ++c) to[w * inner_ + c] = T(sum[i++]);
        }
      }
    }
  }

  const Args& a_;
  const int64_t inner_, stride_, width_, margin_, pitch_;  // width_: elements of a phase of a row of pixels
  Phase phases_[most_stride];
  const std::unique_ptr<int32_t[]> places_;
  const std::unique_ptr<A[]> grads_, sums_;
};

}  // namespace tp::pooling
