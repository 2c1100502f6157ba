// Convolution by the fast Fourier transform (§16.5 names it; Mathieu et al., 2013): in the frequency domain a
// convolution is a product, frequency by frequency.
//
//   y = F^-1 [ sum over channels of F(x) . conj(F(w)) ]
//
// Images and filters are padded with zeros to the same power of two along each axis, large enough that the outputs that
// wrap around are none that are kept. The transform is Stockham's: every pass of radix 2 reads one array and writes
// another, in an order that needs no bit reversal at the end. A pass is one launch over all lines of all images.
//
// A filter that has a stride or a dilation is divided into dense filters (lattice.h), and large outputs are divided
// into boxes. wgrad is the same with exchanged roles: the filter's gradient at tap j is the sum of products of x at a +
// j and dy at a, so F(dw) = sum over images of F(x) . conj(F(dy)).
//
// The result is not exact: its error is proportional to the magnitudes of the whole image and the whole filter, and
// grows with the number of passes, even for outputs that are small. A NaN spreads to everything that is transformed
// with it.
#include "conv/fourier.h"
#include "conv/lattice.h"
#include "conv/tiles.h"

namespace tp::conv {
namespace {

constexpr int64_t workspace_bytes = 256 << 20, most_outputs = 64;  // outputs of a box along each axis

// ---- loads and stores

// A box of outputs of one class, and the plane in which it is computed.
template <class T>
struct Box {
  Gather<T> g;
  LatticeAxis rows, cols;
  Tile tile;
  int64_t height, width;  // of the plane

  TP_HD int64_t pieces() const { return rows.groups() * cols.groups(); }
  TP_HD int64_t source_size() const { return g.n * g.groups * g.depth * rows.axis.sources * cols.axis.sources; }
  TP_HD int64_t target_size() const {
    const bool backward = g.pass == Pass::dgrad;
    return g.n * g.groups * g.maps * (backward ? g.rows.in * g.cols.in : g.rows.out * g.cols.out);
  }
};

// Finds the element of a batch of planes that an item stands for.
struct PlaneItem {
  int64_t col, row, plane;
  TP_HD PlaneItem(int64_t i, int64_t height, int64_t width) : col(i) {
    row = divide(col, width);
    plane = divide(row, height);
  }
};

// planes[image][group][piece][channel] = the part of the source that the box reads.
template <class T>
struct LoadSource {
  using A = acc_t<T>;
  Box<T> box;
  Complex<A>* out;

  TP_HD int64_t items() const {
    return box.tile.images * box.g.groups * box.pieces() * box.g.depth * box.height * box.width;
  }
  template <class Source, class Out>
  struct Bound {
    Box<T> box;
    Source source;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = box.g;
      const PlaneItem at(item, box.height, box.width);
      int64_t channel = at.plane, piece = divide(channel, g.depth), group = divide(piece, box.pieces()),
              image = divide(group, g.groups), col_group = piece, row_group = divide(col_group, box.cols.groups());
      // Loads only the points that an output of the box reads.
      const bool used =
          at.row < box.tile.height + box.rows.group_taps - 1 && at.col < box.tile.width + box.cols.group_taps - 1;
      const int64_t row = used ? box.rows.source(row_group, box.tile.h + at.row) : -1,
                    col = used ? box.cols.source(col_group, box.tile.w + at.col) : -1;
      T value(0.0f);
      if (row >= 0 && col >= 0) {
        value = source[g.source_strides.at(box.tile.image + image, group * g.depth + channel, row, col)];
      }
      out[item] = Complex<A>{A(value), A(0)};
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto source = block.global("source", box.g.source, box.source_size());
    const auto planes = block.global("planes", out, items());
    return Bound<std::decay_t<decltype(source)>, std::decay_t<decltype(planes)>>{box, source, planes};
  }
};

// planes[group][map][piece][channel] = the taps of each piece, at the beginning of the plane.
template <class T>
struct LoadFilters {
  using A = acc_t<T>;
  Box<T> box;
  Complex<A>* out;

  TP_HD int64_t items() const {
    return box.g.groups * box.g.maps * box.pieces() * box.g.depth * box.height * box.width;
  }
  template <class Weight, class Out>
  struct Bound {
    Box<T> box;
    Weight weight;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = box.g;
      const PlaneItem at(item, box.height, box.width);
      int64_t channel = at.plane, piece = divide(channel, g.depth), map = divide(piece, box.pieces()),
              group = divide(map, g.maps), col_group = piece, row_group = divide(col_group, box.cols.groups());
      const int64_t p = at.row < box.rows.group_taps ? box.rows.tap(row_group, at.row) : -1,
                    q = at.col < box.cols.group_taps ? box.cols.tap(col_group, at.col) : -1;
      T value(0.0f);
      if (p >= 0 && q >= 0) value = weight[g.weight_at(group, map, channel, p, q)];
      out[item] = Complex<A>{A(value), A(0)};
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto weight = block.global("weight", box.g.weight, box.g.groups * box.g.group_stride);
    const auto planes = block.global("planes", out, items());
    return Bound<std::decay_t<decltype(weight)>, std::decay_t<decltype(planes)>>{box, weight, planes};
  }
};

// planes[image][group][map] = the box of the target (for wgrad, dy).
template <class T>
struct LoadTarget {
  using A = acc_t<T>;
  Box<T> box;
  Complex<A>* out;

  TP_HD int64_t items() const { return box.tile.images * box.g.groups * box.g.maps * box.height * box.width; }
  template <class Target, class Out>
  struct Bound {
    Box<T> box;
    Target target;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = box.g;
      const PlaneItem at(item, box.height, box.width);
      int64_t map = at.plane, image = divide(map, g.groups * g.maps);
      T value(0.0f);
      if (at.row < box.tile.height && at.col < box.tile.width) {
        value = target[g.target_strides.at(box.tile.image + image, map, box.rows.target(box.tile.h + at.row),
                                           box.cols.target(box.tile.w + at.col))];
      }
      out[item] = Complex<A>{A(value), A(0)};
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto target = block.global("target", box.g.target, box.target_size());
    const auto planes = block.global("planes", out, items());
    return Bound<std::decay_t<decltype(target)>, std::decay_t<decltype(planes)>>{box, target, planes};
  }
};

// Y[image][group][map] = sum over pieces and channels of X conj(W); zeros if there are no pieces.
template <class T>
struct Multiply {
  using A = acc_t<T>;
  Box<T> box;
  const Complex<A>*source, *filters;
  Complex<A>* out;

  TP_HD int64_t items() const { return box.tile.images * box.g.groups * box.g.maps * box.height * box.width; }
  template <class Source, class Filters, class Out>
  struct Bound {
    Box<T> box;
    Source source;
    Filters filters;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = box.g;
      const int64_t plane = box.height * box.width, inner = box.pieces() * g.depth;
      int64_t at = item, map = divide(at, plane), image = divide(map, g.groups * g.maps);
      const int64_t x = (image * g.groups + map / g.maps) * inner, w = map * inner;
      Complex<A> sum{0, 0};
      for (int64_t k = 0; k < inner; ++k) {
        const Complex<A> a = source[(x + k) * plane + at], b = filters[(w + k) * plane + at];
        sum = sum + times_conjugate(a, b);
      }
      out[item] = sum;
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const int64_t inner = box.pieces() * box.g.depth * box.height * box.width;
    const auto x = block.global("source", source, box.tile.images * box.g.groups * inner);
    const auto w = block.global("filters", filters, box.g.groups * box.g.maps * inner);
    const auto y = block.global("out", out, items());
    return Bound<std::decay_t<decltype(x)>, std::decay_t<decltype(w)>, std::decay_t<decltype(y)>>{box, x, w, y};
  }
};

// W[group][map][piece][channel] = sum over images of X conj(dY).
template <class T>
struct Correlate {
  using A = acc_t<T>;
  Box<T> box;
  const Complex<A>*source, *gradient;
  Complex<A>* out;

  TP_HD int64_t items() const {
    return box.g.groups * box.g.maps * box.pieces() * box.g.depth * box.height * box.width;
  }
  template <class Source, class Gradient, class Out>
  struct Bound {
    Box<T> box;
    Source source;
    Gradient gradient;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = box.g;
      const int64_t plane = box.height * box.width, inner = box.pieces() * g.depth;
      int64_t at = item, line = divide(at, plane), map = divide(line, inner);
      Complex<A> sum{0, 0};
      for (int64_t image = 0; image < box.tile.images; ++image) {
        const Complex<A> a = source[((image * g.groups + map / g.maps) * inner + line) * plane + at],
                         b = gradient[(image * g.groups * g.maps + map) * plane + at];
        sum = sum + times_conjugate(a, b);
      }
      out[item] = sum;
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const int64_t plane = box.height * box.width, inner = box.pieces() * box.g.depth * plane;
    const auto x = block.global("source", source, box.tile.images * box.g.groups * inner);
    const auto dy = block.global("gradient", gradient, box.tile.images * box.g.groups * box.g.maps * plane);
    const auto w = block.global("out", out, items());
    return Bound<std::decay_t<decltype(x)>, std::decay_t<decltype(dy)>, std::decay_t<decltype(w)>>{box, x, dy, w};
  }
};

// target = the box's elements of the planes, divided by the factor that a transform and its inverse multiply by, plus
// the bias.
template <class T>
struct Store {
  using A = acc_t<T>;
  Box<T> box;
  const Complex<A>* planes;

  TP_HD int64_t items() const { return box.g.groups * box.g.maps * box.tile.pixels(); }
  template <class Planes, class Target, class Bias>
  struct Bound {
    Box<T> box;
    Planes planes;
    Target target;
    Bias bias;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = box.g;
      const PlaneItem at(item, box.tile.height, box.tile.width);
      int64_t map = at.plane, image = divide(map, g.groups * g.maps);
      const Complex<A> value = planes[(at.plane * box.height + at.row) * box.width + at.col];
      A sum = value.re / A(double(box.height * box.width));
      if (g.bias) {
        const T shift = bias[map];
        sum += A(shift);
      }
      target[g.target_strides.at(box.tile.image + image, map, box.rows.target(box.tile.h + at.row),
                                 box.cols.target(box.tile.w + at.col))] = T(sum);
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto from =
        block.global("planes", planes, box.tile.images * box.g.groups * box.g.maps * box.height * box.width);
    const auto target = block.global("target", box.g.target, box.target_size());
    const auto bias = block.global("bias", box.g.bias, box.g.bias ? box.g.groups * box.g.maps : 0);
    return Bound<std::decay_t<decltype(from)>, std::decay_t<decltype(target)>, std::decay_t<decltype(bias)>>{
        box, from, target, bias};
  }
};

// sums[filter element] += the taps at the beginning of each plane; each tap belongs to one piece.
template <class T>
struct AddTaps {
  using A = acc_t<T>;
  Box<T> box;
  const Complex<A>* planes;
  A* sums;

  TP_HD int64_t items() const {
    return box.g.groups * box.g.maps * box.pieces() * box.g.depth * box.rows.group_taps * box.cols.group_taps;
  }
  template <class Planes, class Sums>
  struct Bound {
    Box<T> box;
    Planes planes;
    Sums sums;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = box.g;
      const PlaneItem at(item, box.rows.group_taps, box.cols.group_taps);
      int64_t channel = at.plane, piece = divide(channel, g.depth), map = divide(piece, box.pieces()),
              group = divide(map, g.maps), col_group = piece, row_group = divide(col_group, box.cols.groups());
      const int64_t p = box.rows.tap(row_group, at.row), q = box.cols.tap(col_group, at.col);
      if (p < 0 || q < 0) return;
      const Complex<A> value = planes[(at.plane * box.height + at.row) * box.width + at.col];
      sums[g.weight_at(group, map, channel, p, q)] += value.re / A(double(box.height * box.width));
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto from =
        block.global("planes", planes, box.g.groups * box.g.maps * box.pieces() * box.g.depth * box.height * box.width);
    const auto to = block.global("sums", sums, box.g.groups * box.g.group_stride);
    return Bound<std::decay_t<decltype(from)>, std::decay_t<decltype(to)>>{box, from, to};
  }
};

// ---- the passes

// One class of outputs: the size of its planes, and the number of images per box.
template <class T>
struct Class {
  Gather<T> g;
  LatticeAxis rows, cols;
  int64_t box_height, box_width, height, width, images;

  Class(const Gather<T>& g, const LatticeAxis& rows, const LatticeAxis& cols)
      : g(g),
        rows(rows),
        cols(cols),
        box_height(min(rows.outputs(), most_outputs)),
        box_width(min(cols.outputs(), most_outputs)) {
    height = power_of_two(box_height + rows.group_taps - 1);
    width = power_of_two(box_width + cols.group_taps - 1);
    const int64_t per_image = (inner() + g.groups * g.maps) * plane() * 2 * int64_t(sizeof(Complex<acc_t<T>>));
    images = max(int64_t(1), min(g.n, workspace_bytes / per_image));
  }
  int64_t plane() const { return height * width; }
  int64_t inner() const { return g.groups * rows.groups() * cols.groups() * g.depth; }
  int64_t filters() const { return inner() * g.maps; }

  template <class F>
  void for_boxes(const F& f) const {
    for (int64_t image = 0; image < g.n; image += images) {
      for (int64_t h = 0; h < rows.outputs(); h += box_height) {
        for (int64_t w = 0; w < cols.outputs(); w += box_width) {
          const Tile tile{image,
                          h,
                          w,
                          min(images, g.n - image),
                          min(box_height, rows.outputs() - h),
                          min(box_width, cols.outputs() - w)};
          f(Box<T>{g, rows, cols, tile, height, width});
        }
      }
    }
  }
};

// The scratch memory of a pass. It grows to the size that the largest class needs, and all classes use it.
template <class A>
class Planes {
 public:
  explicit Planes(Context& context) : context_(context) {}
  Complex<A>* get(int64_t size) {
    if (size > size_) data_ = context_.workspace<Complex<A>>(size_ = size);
    return data_;
  }

 private:
  Context& context_;
  Complex<A>* data_ = nullptr;
  int64_t size_ = 0;
};

constexpr int64_t any_taps = int64_t(1) << 62;

template <class T>
void gather(const Gather<T>& g, Context& context) {
  using A = acc_t<T>;
  Planes<A> source_a(context), source_b(context), filters_a(context), filters_b(context), out_a(context),
      out_b(context);
  for_lattices(g, any_taps, [&](const LatticeAxis& rows, const LatticeAxis& cols) {
    const Class<T> c(g, rows, cols);
    const Transform<A> transform(c.height, c.width, context);
    Complex<A>* filters = nullptr;
    c.for_boxes([&](const Box<T>& box) {
      const int64_t sources = box.tile.images * c.inner(), targets = box.tile.images * g.groups * g.maps;
      if (!filters && c.filters() > 0) {
        Complex<A>* const planes = filters_a.get(c.filters() * c.plane());
        each(context, "fft_filters", c.filters() * c.plane(), LoadFilters<T>{box, planes});
        filters = transform(planes, filters_b.get(c.filters() * c.plane()), c.filters(), false);
      }
      Complex<A>* source = source_a.get(max(sources, int64_t(1)) * c.plane());
      each(context, "fft_source", sources * c.plane(), LoadSource<T>{box, source});
      source = transform(source, source_b.get(max(sources, int64_t(1)) * c.plane()), sources, false);
      Complex<A>* out = out_a.get(targets * c.plane());
      each(context, "fft_multiply", targets * c.plane(), Multiply<T>{box, source, filters, out});
      out = transform(out, out_b.get(targets * c.plane()), targets, true);
      const Store<T> store{box, out};
      each(context, "fft_store", store.items(), store);
    });
  });
}

template <class T>
void wgrad(const Elements<T>& e, Context& context) {
  using A = acc_t<T>;
  const Gather<T> g(e, Pass::fprop);
  Planes<A> source_a(context), source_b(context), filters_a(context), filters_b(context), out_a(context),
      out_b(context);
  A* const sums = context.workspace<A>(e.weights());
  context.clear(sums, e.weights() * int64_t(sizeof(A)));
  for_lattices(g, any_taps, [&](const LatticeAxis& rows, const LatticeAxis& cols) {
    const Class<T> c(g, rows, cols);
    const Transform<A> transform(c.height, c.width, context);
    c.for_boxes([&](const Box<T>& box) {
      const int64_t sources = box.tile.images * c.inner(), targets = box.tile.images * g.groups * g.maps;
      Complex<A>* source = source_a.get(sources * c.plane());
      each(context, "fft_source", sources * c.plane(), LoadSource<T>{box, source});
      source = transform(source, source_b.get(sources * c.plane()), sources, false);
      Complex<A>* gradient = out_a.get(targets * c.plane());
      each(context, "fft_gradient", targets * c.plane(), LoadTarget<T>{box, gradient});
      gradient = transform(gradient, out_b.get(targets * c.plane()), targets, false);
      Complex<A>* filters = filters_a.get(c.filters() * c.plane());
      each(context, "fft_correlate", c.filters() * c.plane(), Correlate<T>{box, source, gradient, filters});
      filters = transform(filters, filters_b.get(c.filters() * c.plane()), c.filters(), true);
      const AddTaps<T> add{box, filters, sums};
      each(context, "fft_taps", add.items(), add);
    });
  });
  each(context, "fft_round", e.weights(), Copy<A, T>{sums, e.weight, e.weights(), false});
}

}  // namespace

void fft(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    using T = typename decltype(type)::type;
    const Elements<T> e(args);
    args.pass == Pass::wgrad ? wgrad(e, context) : gather(Gather<T>(e, args.pass), context);
  });
}

}  // namespace tp::conv
