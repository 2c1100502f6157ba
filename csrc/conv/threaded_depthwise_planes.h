// All passes of filters for one channel and one map per group, in NCHW: a task transposes some rows of a block of
// channels, as many as the lanes of a vector, in the cache, and computes them as in channels last
// (threaded_depthwise.h). So vectors are full whatever the width of the images.
#pragma once
#include "conv/threaded_depthwise.h"

namespace tp::conv {

template <class T>
class DepthwisePlanes {
  using A = acc_t<T>;
  using Meetings = typename Depthwise<T>::Meetings;
  static constexpr int64_t lanes = 64 / int64_t(sizeof(A));
  static constexpr int vector = 32;  // bytes; transposes by wider ones take longer

  // Rows of one side of a task, source or target: of `images` x `channels` planes.
  struct Planes {
    int64_t height, width;

    int64_t plane() const { return height * width; }
    // Reads rows of some planes as [pixel, channel].
    void read(const T* planes, int64_t first, int64_t rows, int64_t channels, T* narrow, A* to) const {
      const int64_t pixels = rows * width;
      if constexpr (std::is_same<T, A>::value) {
        transpose<vector>(channels, pixels, planes + first * width, plane(), to, channels);
      } else {
        transpose<vector>(channels, pixels, planes + first * width, plane(), narrow, channels);
        convert(pixels * channels, static_cast<const T*>(narrow), to);
      }
    }
    void write(const A* from, int64_t first, int64_t rows, int64_t channels, T* narrow, T* planes) const {
      const int64_t pixels = rows * width;
      if constexpr (std::is_same<T, A>::value) {
        transpose<vector>(pixels, channels, from, channels, planes + first * width, plane());
      } else {
        convert(pixels * channels, from, narrow);
        transpose<vector>(pixels, channels, static_cast<const T*>(narrow), channels, planes + first * width, plane());
      }
    }
  };

 public:
  DepthwisePlanes(const Elements<T>& e, Context& context)
      : e_(e), context_(context), rows_(e, context), blocks_(ceil_div(e.c, lanes)) {}

  // Zeros may stand for what lies beyond the edges only if all weights are finite.
  void gather(Pass pass, bool finite) const {
    const bool forward = pass == Pass::fprop;
    const Planes x{e_.rows.in, e_.cols.in}, y{e_.rows.out, e_.cols.out}, from = forward ? x : y, to = forward ? y : x;
    const T* const sources = forward ? e_.x : e_.y;
    T* const targets = forward ? e_.y : e_.x;
    const Meetings rows(e_.rows, pass, context_), cols(e_.cols, pass, context_);
    const A *weights = rows_.pack_weights(lanes), *starts = rows_.pack_starts(forward ? e_.bias : nullptr);
    const int64_t band = band_of(to), bands = ceil_div(to.height, band);
    const int64_t source_size = most_sources(rows, band) * from.width * lanes, target_size = band * to.width * lanes;
    for_tasks(e_.n * blocks_ * bands, source_size, target_size, [=, this](auto bytes, int64_t i, A* space, T* narrow) {
      const int64_t h = i % bands * band, last_row = min(h + band, to.height), plane = i / bands,
                    channel = plane % blocks_ * lanes, channels = min(lanes, e_.c - channel),
                    at = plane / blocks_ * e_.c + channel;
      const auto [first, last] = rows.sources_of(h, last_row);
      A* const target = space + source_size;
      from.read(sources + at * from.plane(), first, last - first, channels, narrow, space);
      for (int64_t r = h; r < last_row; ++r) {
        rows_.template gather_row<bytes.value>({rows, cols, r, first, channels, space, weights + channel * e_.taps(),
                                                starts + channel, target + (r - h) * to.width * channels, finite});
      }
      to.write(target, h, last_row - h, channels, narrow, targets + at * to.plane());
    });
  }

  // Returns whether all sums are finite, as Depthwise's does.
  bool wgrad() const {
    if (!Depthwise<T>::meets_input(e_.rows) || !Depthwise<T>::meets_input(e_.cols)) return false;
    const Planes x{e_.rows.in, e_.cols.in}, y{e_.rows.out, e_.cols.out};
    const Meetings rows(e_.rows, Pass::fprop, context_);
    const int64_t band = band_of(y), bands = ceil_div(y.height, band), units = e_.n * bands, size = e_.taps() * lanes,
                  chunks = chunks_for(units, blocks_, blocks_ * size * int64_t(sizeof(A)));
    const int64_t x_size = most_sources(rows, band) * x.width * lanes, y_size = band * y.width * lanes;
    A* const sums = context_.workspace<A>(chunks * blocks_ * size);
    for_tasks(chunks * blocks_, x_size, y_size, [=, this](auto bytes, int64_t i, A* space, T* narrow) {
      const int64_t chunk = i / blocks_, channel = i % blocks_ * lanes, channels = min(lanes, e_.c - channel);
      A *const sum = sums + i * size, *const dy = space + x_size;
      std::fill(sum, sum + size, A(0));
      for (int64_t unit = chunk * units / chunks; unit < (chunk + 1) * units / chunks; ++unit) {
        const int64_t h = unit % bands * band, last_row = min(h + band, y.height), at = unit / bands * e_.c + channel;
        const auto [first, last] = rows.sources_of(h, last_row);
        x.read(e_.x + at * x.plane(), first, last - first, channels, narrow, space);
        y.read(e_.y + at * y.plane(), h, last_row - h, channels, narrow, dy);
        for (int64_t r = h; r < last_row; ++r) {
          rows_.template add_row<bytes.value>({r, first, channels, space, dy + (r - h) * y.width * channels, sum});
        }
      }
    });
    bool finite = true;
    for (int64_t c = 0; c < e_.c; ++c) {
      const int64_t block = c / lanes, channels = min(lanes, e_.c - block * lanes);
      for (int64_t tap = 0; tap < e_.taps(); ++tap) {
        A total = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          total += sums[(chunk * blocks_ + block) * size + tap * channels + c % lanes];
        }
        e_.weight[c * e_.taps() + tap] = T(total);
        finite &= is_finite(total);
      }
    }
    return finite;
  }

 private:
  // So many rows that those of the source and of the target stay in the cache.
  static int64_t band_of(const Planes& planes) {
    constexpr int64_t most = 1 << 17;  // bytes
    return max(int64_t(1), min(planes.height, most / max(planes.width * lanes * int64_t(sizeof(A)), int64_t(1))));
  }
  // The most rows that a band of the target reads.
  static int64_t most_sources(const Meetings& rows, int64_t band) {
    int64_t most = 0;
    for (int64_t h = 0; h < rows.size; h += band) {
      const auto [first, last] = rows.sources_of(h, min(h + band, rows.size));
      most = max(most, last - first);
    }
    return most;
  }
  // Calls f(bytes of the widest vectors, task, space, narrow) for all tasks: each thread has space for two arrays of
  // the accumulators' type and, if that is not T, for the larger one in T.
  template <class F>
  void for_tasks(int64_t tasks, int64_t first_size, int64_t second_size, const F& f) const {
    constexpr bool direct = std::is_same<T, A>::value;
    const int64_t size = lines(first_size + second_size), narrow_size = direct ? 0 : max(first_size, second_size),
                  threads = min(tasks, int64_t(context_.device.threads));
    A* const space = context_.workspace<A>(threads * size);
    T* const narrow = context_.workspace<T>(threads * narrow_size);
    run_tasks(context_, tasks, [=](int64_t i, int64_t slot) {
      on_widest_vectors([=](auto bytes) { f(bytes, i, space + slot * size, narrow + slot * narrow_size); });
    });
  }

  const Elements<T> e_;
  Context& context_;
  const Depthwise<T> rows_;
  const int64_t blocks_;  // of channels
};

// Whether every channel has a filter and a map of its own, and there are enough of them for vectors.
inline bool has_one_filter_per_channel(const Args& args) {
  constexpr int64_t enough = 8;  // channels, where they must be transposed
  return args.groups == args.c && args.groups == args.m && (args.layout == Layout::nhwc || args.c >= enough);
}

// Computes all passes of such a problem, or returns false if there must be another way.
template <class T>
bool by_channels(const Args& args, Context& context) {
  const Elements<T> e(args);
  const auto run = [&](const auto& depthwise) {
    if (args.pass == Pass::wgrad) return depthwise.wgrad();
    const bool finite = all_finite(e.weight, e.weights());
    if (args.pass == Pass::fprop && !finite) return false;
    depthwise.gather(args.pass, finite);
    return true;
  };
  return args.layout == Layout::nhwc ? run(Depthwise<T>(e, context)) : run(DepthwisePlanes<T>(e, context));
}

}  // namespace tp::conv
