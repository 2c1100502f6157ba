// wgrad in NCHW, if there are few weights: the lanes of a vector hold neighbouring pixels, as in
// threaded_lines.h. A weight's gradient is the product of a line of dy and a line of x that is shifted by its tap. The
// pixels of the line that do not exist are zeros of dy.
//
// These zeros meet elements of x that are not theirs, so an infinity or a NaN there spreads. All weights that it
// reaches are then not finite, and the caller computes everything again.
#pragma once
#include "conv/threaded_lines.h"

namespace tp::conv {

template <class T>
class LinesWgrad {
  using A = acc_t<T>;

 public:
  LinesWgrad(const Elements<T>& e, Context& context)
      : e_(e),
        context_(context),
        rows_(e.rows, Pass::fprop),
        cols_(e.cols, Pass::fprop),
        kernel_(correlate_for<A>(e.maps)),
        tiling_(e.n, e.rows.out, e.cols.out, pixels_per_box()) {
    tiling_.size.images = 1;
    shifts_ = e.channels * e.taps();
    pitch_ = tiling_.size.width + cols_.span;
    plane_ = shape().size();
    length_ = ceil_div(tiling_.size.height * pitch_, kernel_.lanes) * kernel_.lanes;
  }

  // Whether this takes less time than products whose lanes hold maps. There must be few sums, which are vectors here.
  bool pays() const {
    constexpr int64_t most_weights = 1024;
    const Tile& box = tiling_.size;
    if (e_.maps * shifts_ > most_weights || double(plane_) > double(e_.taps() * box.height * box.width)) return false;
    const double here = kernel_.rate * share_of_tiles(e_.maps, kernel_.tile) *
                        share_of_tiles(shifts_, kernel_.tile_shifts) * double(box.height * box.width) / double(length_);
    const auto other = accumulate_for<A>(e_.maps);
    return here > 0.7 * other.rate * share_of_tiles(e_.maps, other.lanes);
  }

  // Writes all weights; returns whether all are finite.
  bool run() {
    const int64_t lanes = kernel_.lanes, sums_size = e_.maps * shifts_ * lanes, tiles = tiling_.count();
    const int64_t chunks = chunks_for(tiles, e_.groups, e_.groups * sums_size * int64_t(sizeof(A)));
    int64_t* off = context_.workspace<int64_t>(shifts_);
    for (int64_t k = 0; k < shifts_; ++k) {
      const int64_t tap = k % e_.taps(), p = tap / e_.cols.kernel, q = tap % e_.cols.kernel;
      off[k] = k / e_.taps() * plane_ + shape().offset(p, q);
    }
    // Every channel is followed by what the last vectors of a line read beyond it.
    const int64_t slack = cols_.span + lanes, size = lines(e_.maps * length_ + e_.channels * plane_ + slack);
    A* sums = context_.workspace<A>(e_.groups * chunks * sums_size);
    A* scratch = context_.workspace<A>(min(e_.groups * chunks, int64_t(context_.device.threads)) * size);
    run_tasks(context_, e_.groups * chunks, [&](int64_t i, int64_t slot) {
      const int64_t group = i / chunks, chunk = i % chunks;
      A *dy = scratch + slot * size, *x = dy + e_.maps * length_, *sum = sums + i * sums_size;
      std::fill(sum, sum + sums_size, A(0));
      for (int64_t tile = chunk * tiles / chunks; tile < (chunk + 1) * tiles / chunks; ++tile) {
        const Tile t = tiling_[tile];
        on_vectors([=, this] { read(t, group, slack, dy, x); });
        kernel_.run(e_.maps, dy, length_, shifts_, off, x, sum);
      }
    });
    run_tasks(context_, e_.m, [&](int64_t m, int64_t) {
      for (int64_t k = 0; k < shifts_; ++k) {
        const A* first = sums + (m / e_.maps * chunks * e_.maps + m % e_.maps) * shifts_ * lanes + k * lanes;
        A total = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          for (int64_t lane = 0; lane < lanes; ++lane) total += first[chunk * sums_size + lane];
        }
        e_.weight[m * shifts_ + k] = T(total);
      }
    });
    return all_finite(e_.weight, e_.m * shifts_);
  }

 private:
  // The lines of all maps and channels of a box should stay in the L2 cache.
  int64_t pixels_per_box() const {
    constexpr int64_t elements = 1 << 16, most = 1 << 10, least = 1 << 6;
    return max(least, min(most, elements / max(e_.maps + e_.channels, int64_t(1))));
  }

  CopyShape shape() const { return {rows_, cols_, pitch_, (tiling_.size.height + rows_.span) * pitch_}; }

  void read(const Tile& t, int64_t group, int64_t slack, A* dy, A* x) const {
    for (int64_t m = 0; m < e_.maps; ++m, dy += length_) {
      const T* map = e_.y + e_.y_at(t.image, group * e_.maps + m, t.h, 0);
      for (int64_t r = 0; r < t.height; ++r) {
        copy_row(map + r * e_.cols.out, e_.cols.out, t.w, int64_t(1), t.width, pitch_, dy + r * pitch_);
      }
      std::fill(dy + t.height * pitch_, dy + length_, A(0));
    }
    for (int64_t c = 0; c < e_.channels; ++c, x += plane_) {
      shape().read(e_.x + e_.x_at(t.image, group * e_.channels + c, 0, 0), t, x);
    }
    std::fill(x, x + slack, A(0));
  }

  const Elements<T> e_;
  Context& context_;
  const LineAxis rows_, cols_;
  const Correlate<A> kernel_;
  Tiling tiling_;
  int64_t shifts_, pitch_, plane_, length_;  // shifts: one per channel and tap; the others as in Lines
};

// Returns false if there must be another way.
template <class T>
bool wgrad_of_lines(const Args& args, Context& context) {
  if (args.layout != Layout::nchw) return false;
  LinesWgrad<T> lines(Elements<T>(as_lines(args)), context);
  return lines.pays() && lines.run();
}

}  // namespace tp::conv
