// Winograd's convolution F(2 x 2, 3 x 3) (§16.5 names it; Lavin & Gray, 2016): it computes four neighbouring outputs of
// a 3 x 3 filter by 16 products instead of 36.
//
//   y = A^T [ (G g G^T) . (B^T d B) ] A        d: the 4 x 4 input elements of a tile of 2 x 2 outputs, g: the filter
//
// The product in brackets is elementwise. Summed over channels it becomes 16 matrix products, one for each element of
// the 4 x 4 matrices: transformed filters [maps, channels] times transformed tiles [channels, tiles]. The BLAS computes
// them.
//
// G contains halves, so the code uses 2 G, whose elements are integers, and divides the result by 4. This is exact if
// sums of integers are, so integer data gives the same bits as every other rung. What an infinity, a NaN or an overflow
// reaches within its tile is computed again (not_finite.h).
//
// On CUDA, filters of 3 x 3 with stride 1 in float32 have kernels of their own. One kernel does all of this for fprop
// and dgrad on Hopper (winograd_fused.cuh), and for wgrad (winograd_fused_wgrad.cuh); with many channels and maps,
// wgrad multiplies between transforms in memory (winograd_wgrad.cuh).
//
// Other filters are divided into pieces of 3 x 3 without stride (lattice.h), and the channels of the pieces are
// concatenated in the inner dimension of the products. wgrad is the transpose, G^T [ (A dy A^T) . (B^T d B) ] G, with
// the products summed over the tiles.
#include "conv/each.h"
#include "conv/lattice.h"
#include "conv/not_finite.h"
#include "conv/tiles.h"
#include "conv/winograd_sm90a.h"
#include "conv/winograd_transforms.h"
#ifdef __CUDACC__
#include "conv/winograd_fused_wgrad.cuh"
#include "conv/winograd_wgrad.cuh"
#endif

namespace tp::conv {
namespace {

using namespace winograd_tile;

constexpr int64_t workspace_bytes = 256 << 20;

// The part of the tiles of one class that fits in the workspace.
template <class T>
struct Part {
  Gather<T> g;
  LatticeAxis rows, cols;
  Tile tile;  // counts 2 x 2 outputs

  TP_HD int64_t pieces() const { return rows.groups() * cols.groups(); }
  TP_HD int64_t inner() const { return pieces() * g.depth; }
  TP_HD int64_t tiles() const { return tile.pixels(); }
  TP_HD int64_t source_size() const { return g.n * g.groups * g.depth * rows.axis.sources * cols.axis.sources; }
  TP_HD int64_t target_size() const {
    const bool backward = g.pass == Pass::dgrad;
    return g.n * g.groups * g.maps * (backward ? g.rows.in * g.cols.in : g.rows.out * g.cols.out);
  }
};

// Finds the image and the first output of tile i of a part.
struct TileAt {
  int64_t image, h, w;
  TP_HD TileAt(const Tile& t, int64_t i)
      : image(t.image + i / (t.height * t.width)),
        h((t.h + i / t.width % t.height) * outputs),
        w((t.w + i % t.width) * outputs) {}
};

// V[group][component][inner][tile] = B^T d B.
template <class T>
struct TransformInput {
  using A = acc_t<T>;
  Part<T> part;
  A* out;

  template <class Source, class Out>
  struct Bound {
    Part<T> part;
    Source source;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = part.g;
      int64_t i = item, line = divide(i, part.tiles()), group = divide(line, part.inner());
      int64_t channel = line, piece = divide(channel, g.depth), col_group = piece,
              row_group = divide(col_group, part.cols.groups());
      const TileAt at(part.tile, i);
      Patch<A> patch;
      for (int a = 0; a < side; ++a) {
        const int64_t row = part.rows.source(row_group, at.h + a);
        for (int b = 0; b < side; ++b) {
          const int64_t col = part.cols.source(col_group, at.w + b);
          T value(0.0f);
          if (row >= 0 && col >= 0) value = source[g.source_strides.at(at.image, group * g.depth + channel, row, col)];
          patch.v[a][b] = A(value);
        }
      }
      patch.transform([](A(&v)[side]) { Transforms<A>::input(v); });
      for (int component = 0; component < components; ++component) {
        out[((group * components + component) * part.inner() + line) * part.tiles() + i] =
            patch.v[component / side][component % side];
      }
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto source = block.global("source", part.g.source, part.source_size());
    const auto v = block.global("transformed", out, part.g.groups * components * part.inner() * part.tiles());
    return Bound<std::decay_t<decltype(source)>, std::decay_t<decltype(v)>>{part, source, v};
  }
};

// U[group][component][map][inner] = 4 G g G^T.
template <class T>
struct TransformFilters {
  using A = acc_t<T>;
  Part<T> part;
  A* out;

  template <class Weight, class Out>
  struct Bound {
    Part<T> part;
    Weight weight;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = part.g;
      int64_t line = item, map = divide(line, part.inner()), group = divide(map, g.maps);
      int64_t channel = line, piece = divide(channel, g.depth), col_group = piece,
              row_group = divide(col_group, part.cols.groups());
      Patch<A> patch;
      for (int a = 0; a < side; ++a) {
        const int64_t p = a < part.rows.group_taps ? part.rows.tap(row_group, a) : -1;
        for (int b = 0; b < side; ++b) {
          const int64_t q = b < part.cols.group_taps ? part.cols.tap(col_group, b) : -1;
          T value(0.0f);
          if (p >= 0 && q >= 0) value = weight[g.weight_at(group, map, channel, p, q)];
          patch.v[a][b] = A(value);
        }
      }
      patch.transform([](A(&v)[side]) { Transforms<A>::filter(v); });
      for (int component = 0; component < components; ++component) {
        out[((group * components + component) * g.maps + map) * part.inner() + line] =
            patch.v[component / side][component % side];
      }
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto weight = block.global("weight", part.g.weight, part.g.groups * part.g.group_stride);
    const auto u = block.global("filters", out, part.g.groups * components * part.g.maps * part.inner());
    return Bound<std::decay_t<decltype(weight)>, std::decay_t<decltype(u)>>{part, weight, u};
  }
};

// target = A^T M A / 4 + bias, for M[group][component][map][tile]; only the bias if there are no products.
template <class T>
struct TransformOutput {
  using A = acc_t<T>;
  Part<T> part;
  A* products;
  boolean* noted;  // whether an output is not finite

  template <class Target, class Bias, class Products, class Noted>
  struct Bound {
    Part<T> part;
    Target target;
    Bias bias;
    Products products;
    Noted noted;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = part.g;
      int64_t i = item, map = divide(i, part.tiles()), group = divide(map, g.maps);
      const TileAt at(part.tile, i);
      Patch<A> patch;
      for (int component = 0; component < components; ++component) {
        A value = 0;
        if (part.inner() > 0) value = products[((group * components + component) * g.maps + map) * part.tiles() + i];
        patch.v[component / side][component % side] = value;
      }
      patch.transform([](A(&v)[side]) { Transforms<A>::output(v); });
      A shift = 0;
      if (g.bias) {
        const T value = bias[group * g.maps + map];
        shift = A(value);
      }
      for (int a = 0; a < outputs && at.h + a < part.rows.outputs(); ++a) {
        for (int b = 0; b < outputs && at.w + b < part.cols.outputs(); ++b) {
          const A value = patch.v[a][b] * A(0.25f) + shift;
          target[g.target_strides.at(at.image, group * g.maps + map, part.rows.target(at.h + a),
                                     part.cols.target(at.w + b))] = T(value);
          if (!is_finite(value)) noted[0] = boolean(true);
        }
      }
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto target = block.global("target", part.g.target, part.target_size());
    const auto bias = block.global("bias", part.g.bias, part.g.bias ? part.g.groups * part.g.maps : 0);
    const auto m = block.global("products", products, part.g.groups * components * part.g.maps * part.tiles());
    const auto note = block.global("noted", noted, 1, simt::Sharing::idempotent);
    return Bound<std::decay_t<decltype(target)>, std::decay_t<decltype(bias)>, std::decay_t<decltype(m)>,
                 std::decay_t<decltype(note)>>{part, target, bias, m, note};
  }
};

// W[group][component][map][tile] = A dy A^T.
template <class T>
struct TransformGradient {
  using A = acc_t<T>;
  Part<T> part;
  A* out;

  template <class Gradient, class Out>
  struct Bound {
    Part<T> part;
    Gradient gradient;
    Out out;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = part.g;
      int64_t i = item, map = divide(i, part.tiles()), group = divide(map, g.maps);
      const TileAt at(part.tile, i);
      Patch<A> patch{};
      for (int a = 0; a < outputs && at.h + a < part.rows.outputs(); ++a) {
        for (int b = 0; b < outputs && at.w + b < part.cols.outputs(); ++b) {
          const T value = gradient[g.target_strides.at(at.image, group * g.maps + map, part.rows.target(at.h + a),
                                                       part.cols.target(at.w + b))];
          patch.v[a][b] = A(value);
        }
      }
      patch.transform([](A(&v)[side]) { Transforms<A>::gradient(v); });
      for (int component = 0; component < components; ++component) {
        out[((group * components + component) * g.maps + map) * part.tiles() + i] =
            patch.v[component / side][component % side];
      }
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto gradient = block.global("gradient", part.g.target, part.target_size());
    const auto w = block.global("transformed", out, part.g.groups * components * part.g.maps * part.tiles());
    return Bound<std::decay_t<decltype(gradient)>, std::decay_t<decltype(w)>>{part, gradient, w};
  }
};

// sums[filter element] += G^T P G of one part, for P[group][component][map][inner]. Each tap of a filter belongs to one
// piece.
template <class T>
struct AddFilters {
  using A = acc_t<T>;
  Part<T> part;
  A *products, *sums;

  template <class Products, class Sums>
  struct Bound {
    Part<T> part;
    Products products;
    Sums sums;
    TP_HD void operator()(int64_t item) const {
      const Gather<T>& g = part.g;
      int64_t line = item, map = divide(line, part.inner()), group = divide(map, g.maps);
      int64_t channel = line, piece = divide(channel, g.depth), col_group = piece,
              row_group = divide(col_group, part.cols.groups());
      Patch<A> patch;
      for (int component = 0; component < components; ++component) {
        const A value = products[((group * components + component) * g.maps + map) * part.inner() + line];
        patch.v[component / side][component % side] = value;
      }
      patch.transform([](A(&v)[side]) { Transforms<A>::taps_of(v); });
      for (int a = 0; a < part.rows.group_taps; ++a) {
        const int64_t p = part.rows.tap(row_group, a);
        for (int b = 0; b < part.cols.group_taps; ++b) {
          const int64_t q = part.cols.tap(col_group, b);
          if (p >= 0 && q >= 0) sums[g.weight_at(group, map, channel, p, q)] += patch.v[a][b] * A(0.25f);
        }
      }
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto p = block.global("products", products, part.g.groups * components * part.g.maps * part.inner());
    const auto s = block.global("sums", sums, part.g.groups * part.g.group_stride);
    return Bound<std::decay_t<decltype(p)>, std::decay_t<decltype(s)>>{part, p, s};
  }
};

// Calls f(part) for parts of the tiles of one class whose matrices, of `rows` rows in all, fit in the workspace.
template <class T, class F>
void for_parts(const Gather<T>& g, const LatticeAxis& rows, const LatticeAxis& cols, int64_t matrix_rows, const F& f) {
  const int64_t most = max(int64_t(1), workspace_bytes / (matrix_rows * components * int64_t(sizeof(acc_t<T>))));
  const Tiling tiling(g.n, ceil_div(rows.outputs(), int64_t(outputs)), ceil_div(cols.outputs(), int64_t(outputs)),
                      most);
  for (int64_t i = 0; i < tiling.count(); ++i) f(Part<T>{g, rows, cols, tiling[i]});
}

// The greatest number of pieces into which a filter of any class is divided.
int64_t most_groups(const Axis& axis, Pass pass) {
  int64_t most = 0;
  for (int64_t phase = 0; phase < phases(axis, pass); ++phase) {
    most = max(most, LatticeAxis(gather_axis(axis, pass, phase), 0, taps).groups());
  }
  return most;
}

template <class T>
void gather(const Elements<T>& e, Pass pass, Context& context) {
  using A = acc_t<T>;
  const Gather<T> g(e, pass);
  boolean* const noted = context.workspace<boolean>(1);
#ifdef __CUDACC__
  if constexpr (std::is_same<T, float>::value) {
    if (context.device.cuda && winograd_on_hopper(g, noted, context)) {
      return compute_again(e, pass, noted, context);
    }
  }
#endif
  const int64_t inner = most_groups(g.rows, g.pass) * most_groups(g.cols, g.pass) * g.depth;
  const int64_t matrix_rows = g.groups * (inner + g.maps);
  const int64_t columns = max(int64_t(1), workspace_bytes / (matrix_rows * components * int64_t(sizeof(A))));
  const int64_t most = min(columns, g.n * ceil_div(phase_outputs(g.rows, g.pass), int64_t(outputs)) *
                                        ceil_div(phase_outputs(g.cols, g.pass), int64_t(outputs)));
  A* const transformed = context.workspace<A>(g.groups * components * inner * most);
  A* const filters = context.workspace<A>(g.groups * components * g.maps * inner);
  A* const products = context.workspace<A>(g.groups * components * g.maps * most);
  context.clear(noted, sizeof(*noted));
  for_lattices(g, taps, [&](const LatticeAxis& rows, const LatticeAxis& cols) {
    bool first = true;
    for_parts(g, rows, cols, matrix_rows, [&](const Part<T>& part) {
      const int64_t depth = part.inner(), tiles = part.tiles();
      if (first) {
        each(context, "winograd_filters", g.groups * g.maps * depth, TransformFilters<T>{part, filters});
      }
      first = false;
      if (depth > 0) {
        each(context, "winograd_input", g.groups * depth * tiles, TransformInput<T>{part, transformed});
        context.gemm(Gemm{dtype_of<A>::value, g.groups * components, g.maps, tiles, depth,
                          Matrix{filters, depth, 1, g.maps * depth}, Matrix{transformed, tiles, 1, depth * tiles},
                          products, g.maps * tiles});
      }
      each(context, "winograd_output", g.groups * g.maps * tiles, TransformOutput<T>{part, products, noted});
    });
  });
  compute_again(e, pass, noted, context);
}

template <class T>
void wgrad(const Elements<T>& e, [[maybe_unused]] bool in_memory, Context& context) {
  using A = acc_t<T>;
#ifdef __CUDACC__
  if constexpr (std::is_same<T, float>::value) {
    if (context.device.cuda && in_memory) {
      boolean* const noted = context.workspace<boolean>(1);
      if (launch_winograd_wgrad(e, noted, context)) return compute_again(e, Pass::wgrad, noted, context);
    }
    if (context.device.cuda && launch_winograd_fused_wgrad(e, context)) {
      return compute_again(e, Pass::wgrad, nullptr, context);
    }
  }
#endif
  Gather<T> g(e, Pass::fprop);
  const int64_t inner = most_groups(g.rows, g.pass) * most_groups(g.cols, g.pass) * g.depth;
  const int64_t matrix_rows = g.groups * (inner + g.maps);
  const int64_t columns = max(int64_t(1), workspace_bytes / (matrix_rows * components * int64_t(sizeof(A))));
  const int64_t most =
      min(columns, g.n * ceil_div(e.rows.out, int64_t(outputs)) * ceil_div(e.cols.out, int64_t(outputs)));
  A* const transformed = context.workspace<A>(g.groups * components * inner * most);
  A* const gradient = context.workspace<A>(g.groups * components * g.maps * most);
  A* const products = context.workspace<A>(g.groups * components * g.maps * inner);
  A* const sums = context.workspace<A>(e.weights());
  context.clear(sums, e.weights() * int64_t(sizeof(A)));
  for_lattices(g, taps, [&](const LatticeAxis& rows, const LatticeAxis& cols) {
    for_parts(g, rows, cols, matrix_rows, [&](const Part<T>& part) {
      const int64_t depth = part.inner(), tiles = part.tiles();
      each(context, "winograd_input", g.groups * depth * tiles, TransformInput<T>{part, transformed});
      each(context, "winograd_gradient", g.groups * g.maps * tiles, TransformGradient<T>{part, gradient});
      context.gemm(Gemm{dtype_of<A>::value, g.groups * components, g.maps, depth, tiles,
                        Matrix{gradient, tiles, 1, g.maps * tiles}, Matrix{transformed, 1, tiles, depth * tiles},
                        products, g.maps * depth});
      each(context, "winograd_taps", g.groups * g.maps * depth, AddFilters<T>{part, products, sums});
    });
  });
  each(context, "winograd_round", e.weights(), Copy<A, T>{sums, e.weight, e.weights(), false});
  compute_again(e, Pass::wgrad, nullptr, context);
}

}  // namespace

void winograd(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    const Elements<typename decltype(type)::type> e(args);
    args.pass == Pass::wgrad ? wgrad(e, stores_images(args), context) : gather(e, args.pass, context);
  });
}

}  // namespace tp::conv
