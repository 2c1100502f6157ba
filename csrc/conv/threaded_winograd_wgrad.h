// F(2 x 2, 3 x 3) for wgrad, the transpose of fprop (threaded_winograd.h) with respect to the filters:
//
//   dw = G^T ( (B^T d B) (A dy A^T) ) G, summed over the tiles
//
// The sums are 16 matrix products [channels, tiles] x [tiles, maps]. A task computes them for some channels and one
// chunk of the tiles, some tiles at a time; then the chunks are added up, and transformed. The division depends only on
// the shape, so that the order of additions does, too.
#pragma once
#include "conv/threaded_winograd.h"

namespace tp::conv {

template <class T>
class WinogradWgrad : WinogradTiles<T> {
  using Base = WinogradTiles<T>;
  using Base::blocks_;
  using Base::context_;
  using Base::g_;
  using Base::in_place_;
  using Base::kernel_;
  using Base::most_lanes;
  using Base::products;
  using Base::size_;
  using Base::tiles_;
  using Base::width_;
  using Base::zeros_;
  using typename Base::A;
  using typename Base::Run;

 public:
  WinogradWgrad(const Elements<T>& e, Context& context) : Base(e, Pass::fprop, context), e_(e) {
    constexpr int64_t tasks = 16, chunk = 256, most_bytes = 64 << 20, cache = 1 << 19, least = 32, most = 128;
    const int64_t sums = g_.groups * products * g_.depth * width_ * int64_t(sizeof(A));
    chunks_ = max(int64_t(1), min(ceil_div(tiles_, chunk), min(tasks / g_.groups, most_bytes / sums)));
    const int64_t parts = min(ceil_div(g_.depth, int64_t(64)), ceil_div(tasks, g_.groups * chunks_));
    part_ = ceil_div(g_.depth, parts);
    parts_ = ceil_div(g_.depth, part_);
    this->set_size(min(min(most, max(least, cache / (products * int64_t(sizeof(A)) * (part_ + width_)))), tiles_));
  }

  // Writes dw; returns whether it is finite.
  bool run() {
    Context& context = context_;
    const int64_t tasks = g_.groups * chunks_ * parts_, threads = min(tasks, int64_t(context_.device.threads));
    sums_ = context.workspace<A>(g_.groups * chunks_ * sums_size());
    from_ = context.workspace<int64_t>(part_);
    to_ = context.workspace<int64_t>(part_);
    off_ = context.workspace<int64_t>(size_);
    for (int64_t c = 0; c < part_; ++c) from_[c] = c, to_[c] = c * width_;
    for (int64_t i = 0; i < size_; ++i) off_[i] = i * part_;
    const int64_t in = lines(products * in_apart()), gradients = lines(products * gradients_apart()),
                  zeros = lines(max(part_, g_.maps)), sources = this->copy_size(part_),
                  copy = in_place_ ? 0 : lines(4 * size_ * width_), all = in + gradients + zeros + sources + copy;
    A* const memory = context.workspace<A>(threads * all);
    run_tasks(context, tasks, [&](int64_t i, int64_t slot) {
      A* const own = memory + slot * all;
      run_task(i / parts_ / chunks_, i / parts_ % chunks_, i % parts_ * part_,
               {own, own + in, own + in + gradients, own + in + gradients + zeros, own + all - copy});
    });
    std::atomic<bool> finite{true};
    const int64_t strips = ceil_div(g_.depth, strip);
    run_tasks(context, g_.groups * blocks_ * strips, [&](int64_t i, int64_t) {
      if (!store_strip(i / strips / blocks_, i / strips % blocks_, i % strips * strip)) finite = false;
    });
    return finite;
  }

 private:
  static constexpr int64_t strip = 16;  // channels whose dw is stored at once

  // The memory of a task: transformed inputs and gradients of y, a pixel of zeros, and copies of the rows that it
  // reads.
  struct Scratch {
    A *in, *gradients, *zeros, *sources, *copy;
  };

  // The sums of one group and chunk: [16][depth][width].
  int64_t sums_size() const { return products * sums_apart(); }
  int64_t sums_apart() const { return Base::apart(g_.depth * width_); }
  int64_t in_apart() const { return Base::apart(size_ * part_); }
  int64_t gradients_apart() const { return Base::apart(size_ * width_); }
  A* sums_of(int64_t group, int64_t chunk) const { return sums_ + (group * chunks_ + chunk) * sums_size(); }

  void run_task(int64_t group, int64_t chunk, int64_t part, const Scratch& s) const {
    const int64_t channel = group * g_.depth + part, channels = min(part_, g_.depth - part), lanes = kernel_.lanes,
                  begin = chunk * tiles_ / chunks_, end = (chunk + 1) * tiles_ / chunks_;
    std::fill(s.zeros, s.zeros + max(part_, g_.maps), A(0));
    std::fill(s.gradients, s.gradients + products * gradients_apart(), A(0));  // and the lanes without a map
    for (int64_t first = begin; first < end; first += size_) {
      const int64_t count = min(size_, end - first);
      on_vectors([=, this] {
        this->for_runs(first, count, [=, this](const Run& run) {
          if (!in_place_) {
            this->copy_sources(run, channel, channels, s.sources);
            copy_gradients(group, run, s.copy);
          }
          for (int64_t t = 0; t < run.count; ++t) {
            this->transform_input(run, t, channel, channels, s.zeros, s.sources, s.in + (run.at + t) * part_,
                                  in_apart());
            transform_gradient(group, run, t, s);
          }
        });
      });
      for (int64_t k = 0; k < products; ++k) {
        for (int64_t block = 0; block < blocks_; ++block) {
          accumulate(kernel_, channels, s.in + k * in_apart(), from_, count, off_,
                     s.gradients + k * gradients_apart() + block * size_ * lanes, first == begin ? zeros_ : nullptr,
                     sums_of(group, chunk) + k * sums_apart() + part * width_ + block * lanes, to_);
        }
      }
    }
  }

  void copy_gradients(int64_t group, const Run& run, A* copy) const {
    const int64_t cols = min(2 * run.count, e_.cols.out - 2 * run.col);
    for (int64_t i = 0; i < 2 && 2 * run.row + i < e_.rows.out; ++i) {
      this->copy_pixels(e_.y + e_.y_strides.at(run.image, group * g_.maps, 2 * run.row + i, 2 * run.col), e_.y_strides,
                        cols, g_.maps, copy + (i * 2 * size_ + 2 * run.at) * width_, width_);
    }
  }

  // A dy A^T for all maps of a tile, along the rows first.
  void transform_gradient(int64_t group, const Run& run, int64_t tile, const Scratch& s) const {
    const int64_t lanes = kernel_.lanes, plane = gradients_apart();
    const A* y[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t row = 2 * run.row + i / 2, col = 2 * (run.col + tile) + i % 2;
      y[i] = s.zeros;
      if (row >= e_.rows.out || col >= e_.cols.out) continue;
      y[i] = s.copy + (i / 2 * 2 * size_ + 2 * (run.at + tile) + i % 2) * width_;
      if constexpr (std::is_same<T, A>::value) {
        if (in_place_) y[i] = e_.y + e_.y_strides.at(run.image, group * g_.maps, row, col);
      }
    }
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t first = block * lanes, maps = min(lanes, g_.maps - first);
      const A *const y0 = y[0] + first, *const y1 = y[1] + first, *const y2 = y[2] + first, *const y3 = y[3] + first;
      A* const to = s.gradients + (block * size_ + run.at + tile) * lanes;
      TP_INDEPENDENT
      for (int64_t l = 0; l < maps; ++l) {
        const A rows[4][2] = {
            {y0[l], y1[l]}, {y0[l] + y2[l], y1[l] + y3[l]}, {y0[l] - y2[l], y1[l] - y3[l]}, {-y2[l], -y3[l]}};
        for (int i = 0; i < 4; ++i) {
          A* const u = to + 4 * i * plane + l;
          u[0] = rows[i][0];
          u[plane] = rows[i][0] + rows[i][1];
          u[2 * plane] = rows[i][0] - rows[i][1];
          u[3 * plane] = -rows[i][1];
        }
      }
    }
  }

  // Adds up the chunks of some channels and of a block of maps, and stores dw. Returns whether it is finite.
  bool store_strip(int64_t group, int64_t block, int64_t channel) const {
    const int64_t lanes = kernel_.lanes, first = block * lanes, maps = min(lanes, g_.maps - first),
                  channels = min(strip, g_.depth - channel);
    A taps[strip * 9 * most_lanes];
    bool finite = true;
    on_vectors([=, this, &taps, &finite] {
      int bad = 0;
      for (int64_t c = 0; c < channels; ++c) {
        A sum[products * most_lanes], half[12 * most_lanes];
        for (int64_t k = 0; k < products; ++k) {
          A* const to = sum + k * most_lanes;
          const A* from = sums_of(group, 0) + k * sums_apart() + (channel + c) * width_ + first;
          std::copy(from, from + lanes, to);
          for (int64_t chunk = 1; chunk < chunks_; ++chunk) {
            from += sums_size();
            TP_INDEPENDENT
            for (int64_t l = 0; l < lanes; ++l) to[l] += from[l];
          }
        }
        for (int j = 0; j < 4; ++j) {
          transform_sums(lanes, sum + j * most_lanes, 4 * most_lanes, half + j * most_lanes, 4 * most_lanes);
        }
        A* const to = taps + c * 9 * lanes;
        for (int p = 0; p < 3; ++p) {
          transform_sums(lanes, half + p * 4 * most_lanes, most_lanes, to + p * 3 * lanes, lanes);
        }
        for (int64_t l = 0; l < 9 * lanes; ++l) bad |= int(!is_finite(to[l]));
      }
      finite = !bad;
      transpose(channels * 9, maps, taps, lanes, e_.weight + ((group * g_.maps + first) * g_.depth + channel) * 9,
                g_.depth * 9);
    });
    return finite;
  }

  // G^T applied to four sums that are `step` apart.
  static void transform_sums(int64_t lanes, const A* m, int64_t step, A* to, int64_t plane) {
    const A *const m0 = m, *const m1 = m + step, *const m2 = m + 2 * step, *const m3 = m + 3 * step;
    TP_INDEPENDENT
    for (int64_t l = 0; l < lanes; ++l) {
      const A both = (m1[l] + m2[l]) / 2, apart = (m1[l] - m2[l]) / 2;
      to[l] = m0[l] + both;
      to[plane + l] = apart;
      to[2 * plane + l] = both + m3[l];
    }
  }

  const Elements<T> e_;
  int64_t chunks_, part_, parts_;  // chunks of tiles; the channels of a part, and how many parts
  A* sums_ = nullptr;
  int64_t *from_ = nullptr, *to_ = nullptr, *off_ = nullptr;
};

}  // namespace tp::conv
