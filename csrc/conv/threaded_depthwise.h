// All passes of filters for one channel and one map per group, in channels last: the lanes of a vector hold
// neighbouring channels, so images are read and written in memory order. threaded_depthwise_planes.h calls this for
// blocks of channels of images in NCHW.
//
// fprop and dgrad add the taps that lie inside the image. In fprop, padding is an operand, so all weights must be
// finite; in wgrad, so must the gradients that are multiplied by padding (conv.h). Otherwise the caller computes
// everything by products.
#pragma once
#include <algorithm>
#include <memory>
#include <utility>

#include "block/convert.h"
#include "conv/threaded_lines.h"

namespace tp::conv {

#define TP_UNROLLED _Pragma("GCC unroll 4")

template <class T>
class Depthwise {
  using A = acc_t<T>;
  static constexpr int taps_at_once = 3;      // of wgrad
  static constexpr int wide = 2, pixels = 4;  // vectors and pixels that are computed together

 public:
  // The taps that a row or column of the target meets, and the source elements that they read.
  struct Meetings {
    int64_t *first, *tap, *source;    // those of element i are first[i] to first[i + 1] - 1
    int64_t size, step, source_step;  // elements that are a step apart meet the same taps, but for edges
    // Whether tap t of element i reads element begin + i + t, of `sources`. dgrad counts the taps from the last one.
    bool slides, forward;
    int64_t begin, sources;

    Meetings(const Axis& axis, Pass pass, Context& context) {
      forward = pass == Pass::fprop;
      slides = axis.stride == 1 && axis.dilation == 1;
      begin = forward ? -axis.pad : axis.pad - (axis.kernel - 1);
      sources = forward ? axis.in : axis.out;
      const int64_t n = forward ? axis.out : axis.in;
      size = n;
      step = forward ? 1 : axis.stride;
      source_step = forward ? axis.stride : 1;
      first = context.workspace<int64_t>(n + 1);
      tap = context.workspace<int64_t>(n * axis.kernel);
      source = context.workspace<int64_t>(n * axis.kernel);
      int64_t count = 0;
      for (int64_t i = 0; i < n; ++i) {
        first[i] = count;
        for (int64_t k = 0; k < axis.kernel; ++k) {
          const int64_t from = forward ? axis.source(i, k) : axis.reader(i, k);
          if (from >= 0 && (!forward || from < axis.in)) tap[count] = k, source[count] = from, ++count;
        }
      }
      first[n] = count;
    }
    // The sources that the elements from `begin` to `end` read, all between the first and the last one.
    std::pair<int64_t, int64_t> sources_of(int64_t begin, int64_t end) const {
      const auto [least, most] = std::minmax_element(source + first[begin], source + first[end]);
      return first[begin] < first[end] ? std::pair(*least, *most + 1) : std::pair(int64_t(0), int64_t(0));
    }
    // Whether `count` elements from i on, each a step further, meet the same taps. The first and the last tap that an
    // element meets never increase with the element, so those in between are like both ends.
    bool alike(int64_t i, int64_t count) const {
      const int64_t last = i + (count - 1) * step;
      if (last >= size) return false;
      const int64_t taps = first[i + 1] - first[i];
      return taps > 0 && taps == first[last + 1] - first[last] && tap[first[i]] == tap[first[last]];
    }
  };

  // A row of the target, and the rows of the source from `first` on. Pixels have so many channels, next to each other.
  struct Row {
    const Meetings &rows, &cols;
    int64_t h, first, channels;
    const A *source, *weights, *starts;  // weights: [tap, channel]
    A* to;
    bool finite;  // the weights
    int64_t pitch() const { return cols.sources * channels; }
  };
  // A row of dy, and the rows of x from `first` on.
  struct GradientRow {
    int64_t h, first, channels;
    const A *x, *dy;
    A* sums;  // [tap, channel]
  };

  Depthwise(const Elements<T>& e, Context& context) : e_(e), context_(context) {}

  // Zeros may stand for what lies beyond the edges only if all weights are finite.
  void gather(Pass pass, bool finite) const {
    const bool forward = pass == Pass::fprop;
    const Strides &from = forward ? e_.x_strides : e_.y_strides, &to = forward ? e_.y_strides : e_.x_strides;
    const int64_t height = forward ? e_.rows.out : e_.rows.in, width = forward ? e_.cols.out : e_.cols.in;
    const Meetings rows(e_.rows, pass, context_), cols(e_.cols, pass, context_);
    const A* source = widened(static_cast<const T*>(forward ? e_.x : e_.y), e_.n * from.image, context_);
    const A *weights = pack_weights(e_.c), *starts = pack_starts(forward ? e_.bias : nullptr);
    T* target = forward ? e_.y : e_.x;
    const int64_t grain = max(int64_t(1), (1 << 14) / max(width * e_.c * e_.taps(), int64_t(1)));
    context_.parallel_for(e_.n * height, grain, [=, this](int64_t begin, int64_t end) {
      constexpr bool direct = std::is_same<T, A>::value;
      const std::unique_ptr<A[]> space(new A[direct ? 0 : size_t(to.row)]);
      on_widest_vectors([=, this, sums = space.get()](auto bytes) {
        for (int64_t i = begin; i < end; ++i) {
          T* const out = target + i / height * to.image + i % height * to.row;
          Row row{rows, cols, i % height, 0, e_.c, source + i / height * from.image, weights, starts, sums, finite};
          if constexpr (direct) row.to = out;
          gather_row<bytes.value>(row);
          if constexpr (!direct) convert(to.row, row.to, out);
        }
      });
    });
  }

  // Returns whether all sums are finite; if not, or if a gradient meets nothing but padding, zeros of the padding may
  // be missing.
  bool wgrad() const {
    if (!meets_input(e_.rows) || !meets_input(e_.cols)) return false;
    const A* x = widened(static_cast<const T*>(e_.x), e_.n * e_.x_strides.image, context_);
    const A* dy = widened(static_cast<const T*>(e_.y), e_.n * e_.y_strides.image, context_);
    const int64_t rows = e_.n * e_.rows.out, size = e_.taps() * e_.c,
                  chunks = chunks_for(rows, 1, size * int64_t(sizeof(A)));
    A* sums = context_.workspace<A>(chunks * size);
    run_tasks(context_, chunks, [&](int64_t chunk, int64_t) {
      A* sum = sums + chunk * size;
      std::fill(sum, sum + size, A(0));
      const int64_t begin = chunk * rows / chunks, end = (chunk + 1) * rows / chunks;
      on_widest_vectors([=, this](auto bytes) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t image = i / e_.rows.out, h = i % e_.rows.out;
          add_row<bytes.value>({h, 0, e_.c, x + image * e_.x_strides.image, dy + e_.y_at(image, 0, h, 0), sum});
        }
      });
    });
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      for (int64_t k = 0; k < size; ++k) sums[k] += sums[chunk * size + k];
    }
    bool finite = true;
    for (int64_t c = 0; c < e_.c; ++c) {
      for (int64_t tap = 0; tap < e_.taps(); ++tap) {
        const A total = sums[tap * e_.c + c];
        e_.weight[c * e_.taps() + tap] = T(total);
        finite &= is_finite(total);
      }
    }
    return finite;
  }

  // Whether every output reads an element that is not padding.
  static bool meets_input(const Axis& axis) {
    for (int64_t o = 0; o < axis.out; ++o) {
      bool any = false;
      for (int64_t k = 0; k < axis.kernel; ++k) any |= axis.source(o, k) >= 0 && axis.source(o, k) < axis.in;
      if (!any) return false;
    }
    return true;
  }

  // The weights of blocks of so many channels: [block, tap, channel].
  const A* pack_weights(int64_t block) const {
    A* const to = context_.workspace<A>(e_.taps() * e_.c);
    for (int64_t first = 0; first < e_.c; first += block) {
      const int64_t channels = min(block, e_.c - first);
      for (int64_t tap = 0; tap < e_.taps(); ++tap) {
        A* const of_tap = to + first * e_.taps() + tap * channels;
        for (int64_t c = 0; c < channels; ++c) of_tap[c] = A(e_.weight[(first + c) * e_.taps() + tap]);
      }
    }
    return to;
  }
  const A* pack_starts(const T* bias) const {
    A* to = context_.workspace<A>(e_.c);
    for (int64_t c = 0; c < e_.c; ++c) to[c] = bias ? A(bias[c]) : A(0);
    return to;
  }

  template <int bytes>
  void gather_row(const Row& row) const {
    const Meetings& cols = row.cols;
    for (int64_t phase = 0; phase < min(cols.step, cols.size); ++phase) {
      for (int64_t w = phase; w < cols.size;) {
        if (cols.alike(w, pixels)) {
          gather_pixels<bytes, pixels, false>(row, w);
          w += pixels * cols.step;
        } else if (bytes == 64 && row.finite && cols.slides && cols.size >= pixels) {
          w = min(w, cols.size - pixels);  // the last group computes some pixels again
          gather_pixels<bytes, pixels, true>(row, w);
          w += pixels;
        } else {
          gather_pixels<bytes, 1, false>(row, w);
          w += cols.step;
        }
      }
    }
  }

  // Adds the products of one row of dy to the sums of all weights.
  template <int bytes>
  void add_row(const GradientRow& row) const {
    for (int64_t p = 0; p < e_.rows.kernel; ++p) {
      const int64_t i = e_.rows.source(row.h, p);
      if (i < 0 || i >= e_.rows.in) continue;
      const A* from = row.x + (i - row.first) * e_.cols.in * row.channels;
      A* to = row.sums + p * e_.cols.kernel * row.channels;
      int64_t q = 0;
      for (; q + taps_at_once <= e_.cols.kernel; q += taps_at_once) add_taps<bytes, taps_at_once>(q, row, from, to);
      for (; q < e_.cols.kernel; ++q) add_taps<bytes, 1>(q, row, from, to);
    }
  }

 private:
  // A block of channels: vectors of so many bytes, or one element.
  template <int bytes_, int vectors>
  struct Block {
    static constexpr int bytes = bytes_, count = vectors, channels = count * bytes / int(sizeof(A));
    typedef A Unit __attribute__((vector_size(bytes), aligned(sizeof(A)), may_alias));
    static const Unit* at(const A* from) { return reinterpret_cast<const Unit*>(from); }
    static Unit* at(A* from) { return reinterpret_cast<Unit*>(from); }
  };

  // Calls f(block, first channel) for all channels.
  template <int bytes, class F>
  static void for_channels(const F& f, int64_t channels) {
    int64_t c = 0;
    const auto all = [&](auto block) {
      for (; c + block.channels <= channels; c += block.channels) f(block, c);
    };
    all(Block<bytes, wide>{});
    all(Block<bytes, 1>{});
    if constexpr (bytes > 32) all(Block<32, 1>{});
    all(Block<int(sizeof(A)), 1>{});
  }

  template <int bytes, int count, bool edge>
  void gather_pixels(const Row& row, int64_t w) const {
    for_channels<bytes>([&](auto block, int64_t c) { gather_block<count, edge, decltype(block)>(row, w, c); },
                        row.channels);
  }

  // Computes a block of channels of `count` pixels that meet the same taps or, at an edge, slide over all of them.
  template <int count, bool edge, class B>
  void gather_block(const Row& row, int64_t w, int64_t c) const {
    typename B::Unit sum[count][B::count];
    TP_UNROLLED for (int p = 0; p < count; ++p) {
      TP_UNROLLED for (int v = 0; v < B::count; ++v) sum[p][v] = B::at(row.starts + c)[v];
    }
    const Meetings &rows = row.rows, &cols = row.cols;
    const int64_t channels = row.channels, apart = cols.source_step * channels;
    // If the taps move by one pixel, which is how far the sources of the pixels are apart, each element is loaded once
    // for all. dgrad meets the taps in the order of decreasing sources.
    const int64_t first = cols.first[w], met = cols.first[w + 1] - first,
                  moves = met > 1 ? cols.source[first + 1] - cols.source[first] : 0,
                  least = moves > 0 ? first : first + met - 1,
                  next = met > 1 ? (cols.tap[first + 1] - cols.tap[first]) * moves : 0;
    const bool slides = B::bytes == 64 && count > 1 && cols.source_step == 1 && moves * moves == 1;
    for (int64_t i = rows.first[row.h]; i < rows.first[row.h + 1]; ++i) {
      const A* from = row.source + (rows.source[i] - row.first) * row.pitch() + c;
      const A* taps = row.weights + rows.tap[i] * e_.cols.kernel * channels + c;
      if constexpr (edge) {
        const int64_t last = e_.cols.kernel - 1, at = w + cols.begin;
        const A* weight = taps + (cols.forward ? 0 : last * channels);
        add_sliding<count, B>(from + at * channels, channels, weight, cols.forward ? channels : -channels, last + 1,
                              sum, [=](int64_t i) { return at + i >= 0 && at + i < cols.sources; });
        continue;
      }
      if (slides) {
        const A* x = from + cols.source[least] * channels;
        add_sliding<count, B>(x, channels, taps + cols.tap[least] * channels, next * channels, met, sum,
                              [](int64_t) { return true; });
        continue;
      }
      for (int64_t j = cols.first[w]; j < cols.first[w + 1]; ++j) {
        const A* x = from + cols.source[j] * channels;
        const auto* weight = B::at(taps + cols.tap[j] * channels);
        TP_UNROLLED for (int p = 0; p < count; ++p) {
          TP_UNROLLED for (int v = 0; v < B::count; ++v) sum[p][v] += B::at(x + p * apart)[v] * weight[v];
        }
      }
    }
    TP_UNROLLED for (int p = 0; p < count; ++p) {
      A* to = row.to + (w + p * cols.step) * channels + c;
      TP_UNROLLED for (int v = 0; v < B::count; ++v) B::at(to)[v] = sum[p][v];
    }
  }

  // Adds the products of `met` taps, whose weights are `next` elements apart: tap t of pixel p reads element p + t of x
  // or, unless exists(p + t), a zero.
  template <int count, class B, class Exists>
  static void add_sliding(const A* x, int64_t col, const A* weights, int64_t next, int64_t met,
                          typename B::Unit (&sum)[count][B::count], const Exists& exists) {
    typename B::Unit window[2 * count - 1][B::count];
    const auto load = [&](int slot, int64_t i) {
      const bool is_there = exists(i);
      TP_UNROLLED for (int v = 0; v < B::count; ++v) {
        window[slot][v] = is_there ? B::at(x + i * col)[v] : typename B::Unit{};
      }
    };
    const auto add = [&](int tap, const A* weight) {
      TP_UNROLLED for (int v = 0; v < B::count; ++v) {
        const auto factor = B::at(weight)[v];
        TP_UNROLLED for (int p = 0; p < count; ++p) sum[p][v] += window[tap + p][v] * factor;
      }
    };
    const auto move = [&](int by) {
      TP_UNROLLED for (int i = 0; i < count - 1; ++i) {
        TP_UNROLLED for (int v = 0; v < B::count; ++v) window[i][v] = window[i + by][v];
      }
    };
    TP_UNROLLED for (int i = 0; i < count - 1; ++i) load(i, i);
    int64_t t = 0;
    for (; t + count <= met; t += count) {
      TP_UNROLLED for (int i = 0; i < count; ++i) {
        load(count - 1 + i, t + count - 1 + i);
        add(i, weights + (t + i) * next);
      }
      move(count);
    }
    for (; t < met; ++t) {
      load(count - 1, t + count - 1);
      add(0, weights + t * next);
      move(1);
    }
  }

  // Adds the products of taps q to q + count - 1 of a row: first those of the pixels that all of them meet.
  template <int bytes, int count>
  void add_taps(int64_t q, const GradientRow& row, const A* x, A* sums) const {
    const int64_t channels = row.channels;
    int64_t begin = 0, end = e_.cols.out;
    for (int64_t k = q; k < q + count; ++k) {
      begin = max(begin, e_.cols.first_reader(0, k));
      end = min(end, e_.cols.first_reader(e_.cols.in, k));
    }
    end = max(begin, end);
    const auto add = [&](auto block, int64_t c) {
      using B = decltype(block);
      const A* from = x + e_.cols.source(0, q) * channels + c;
      A* to = sums + q * channels + c;
      add_columns<count, B>(begin, end, from, row.dy + c, to, channels);
      if (count == 1) return;
      for (int64_t k = 0; k < count; ++k) {
        const int64_t first = e_.cols.first_reader(0, q + k), last = e_.cols.first_reader(e_.cols.in, q + k);
        const A* source = from + k * e_.cols.dilation * channels;
        add_columns<1, B>(first, min(begin, last), source, row.dy + c, to + k * channels, channels);
        add_columns<1, B>(max(end, first), last, source, row.dy + c, to + k * channels, channels);
      }
    };
    for_channels<bytes>(add, channels);
  }
  template <int count, class B>
  void add_columns(int64_t begin, int64_t end, const A* x, const A* dy, A* to, int64_t channels) const {
    if (begin >= end) return;
    const int64_t apart = e_.cols.dilation * channels;
    typename B::Unit sum[count][B::count];
    TP_UNROLLED for (int k = 0; k < count; ++k) {
      TP_UNROLLED for (int v = 0; v < B::count; ++v) sum[k][v] = B::at(to + k * channels)[v];
    }
    int64_t w = begin;
    if (count > 1 && e_.cols.stride == 1 && e_.cols.dilation == 1) {
      // The next pixel reads the same elements but one; column c is kept as window[c % count].
      typename B::Unit window[count][B::count];
      const auto load = [&](int64_t col, int slot) {
        TP_UNROLLED for (int v = 0; v < B::count; ++v) window[slot][v] = B::at(x + col * apart)[v];
      };
      TP_UNROLLED for (int i = 0; i < count - 1; ++i) load(w + i, i);
      for (; w + count <= end; w += count) {
        TP_UNROLLED for (int i = 0; i < count; ++i) {
          load(w + i + count - 1, (i + count - 1) % count);
          const auto* right = B::at(dy + (w + i) * channels);
          TP_UNROLLED for (int v = 0; v < B::count; ++v) {
            const auto factor = right[v];
            TP_UNROLLED for (int k = 0; k < count; ++k) sum[k][v] += window[(i + k) % count][v] * factor;
          }
        }
      }
    }
    for (; w < end; ++w) {
      const A* from = x + w * e_.cols.stride * channels;
      const auto* right = B::at(dy + w * channels);
      TP_UNROLLED for (int k = 0; k < count; ++k) {
        TP_UNROLLED for (int v = 0; v < B::count; ++v) sum[k][v] += B::at(from + k * apart)[v] * right[v];
      }
    }
    TP_UNROLLED for (int k = 0; k < count; ++k) {
      TP_UNROLLED for (int v = 0; v < B::count; ++v) B::at(to + k * channels)[v] = sum[k][v];
    }
  }

  const Elements<T> e_;
  Context& context_;
};

}  // namespace tp::conv
