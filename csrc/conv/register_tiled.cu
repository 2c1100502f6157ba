// Convolution for few channels: each thread keeps a tile of sums in registers, so that every value it reads is used in
// many products. It computes no matrix product, because with few channels the matrices would be too narrow.
//
// Filters of 1 x 1, 3 x 3 and 5 x 5 with stride and dilation 1 read strips of pixels from shared memory
// (strips_gather.cuh, strips_wgrad.cuh). All others read through the caches (pixel_tiles.cuh), and so do depthwise
// filters that strips do not suit (depthwise.cuh), and others with few maps (few_maps.cuh). All sum half types in float
// and round once; wgrad adds up slices of the batch in a fixed order.
//
// The best tile depends on the shape: a long strip reads less per product, but wastes work at the end of a narrow
// image, and leaves threads idle in a small batch. time_of() estimates which tile is fastest.
#include "conv/conv.h"
#ifdef __CUDACC__
#include "conv/depthwise.cuh"
#include "conv/few_channels_dgrad.cuh"
#include "conv/few_channels_wgrad.cuh"
#include "conv/few_maps.cuh"
#include "conv/pixel_tiles.cuh"
#include "conv/strips_gather.cuh"
#include "conv/strips_wgrad.cuh"

namespace tp::conv {
namespace {

// How many threads keep an H200 busy: 512 on each of its 132 multiprocessors, which is what the registers allow.
constexpr double concurrent_threads = 132 * 512;

// The estimated time of one channel with this tile. A thread's time is its products, plus five products' time per read;
// it is multiplied by the number of rounds in which the device runs all threads. The estimate orders the tiles as an
// H200 does, for both layers of LeNet-5 at batches of 128 and 4096.
template <class Tile, class T>
double time_of(const Gather<T>& g) {
  if (!fits_ends<Tile>(g)) return 1e30;
  const GatherAxis rows = gather_axis(g.rows, g.pass, 0), cols = gather_axis(g.cols, g.pass, 0);
  const auto across = [](int64_t n, int part) { return double(ceil_div(n, int64_t(part))); };
  const double threads = across(rows.outputs, Tile::tile_rows) * across(cols.outputs, Tile::columns) *
                         across(g.maps, Tile::maps) * double(g.n * g.groups);
  constexpr int K = Tile::K;
  const double products = K * Tile::products * Tile::tile_rows * Tile::maps;
  const double reads =
      (Tile::tile_rows + K - 1) * ceil_div(Tile::source_columns, Tile::width) + K * Tile::weights / 4.0;
  return max(1.0, threads / concurrent_threads) * (products + 5 * reads);
}

template <class T, class... Tiles>
bool launch_best(const Gather<T>& g, Context& context, Types<Tiles...>) {
  const double times[] = {time_of<Tiles>(g)...};
  int best = 0, i = 0;
  bool done = false;
  for (int k = 1; k < int(sizeof...(Tiles)); ++k) best = times[k] < times[best] ? k : best;
  ((i++ == best ? void(done = launch_strips<T, Tiles>(g, context)) : void()), ...);
  return done;
}

bool moves_by_one(const Axis& a) { return a.stride == 1 && a.dilation == 1; }

// Whether strips can be used: they count the elements of an image in int.
template <class T>
bool fits_strips(const Elements<T>& e) {
  constexpr int64_t most = 1 << 24;  // rows, columns, channels, maps
  const auto small = [](const Axis& a) { return a.in <= most && a.out <= most && a.pad <= most; };
  return e.rows.kernel == e.cols.kernel && moves_by_one(e.rows) && moves_by_one(e.cols) && small(e.rows) &&
         small(e.cols) && e.channels <= most && e.maps <= most && e.groups <= most &&
         max(e.x_strides.image, e.y_strides.image) < int64_t(1) << 31;
}

// The gradients of an image with three channels, as in the first layer of a network, have kernels of their own
// (few_channels.cuh).
template <class T>
bool has_three_channels(const Elements<T>& e) {
  return fits_strips(e) && e.rows.kernel == 3 && e.channels == 3;
}

// Strips are faster for depthwise filters only where the pixels of a row are contiguous.
template <class T>
bool is_depthwise_without_strips(const Elements<T>& e) {
  return is_depthwise(e) && !(e.x_strides.channel != 1 && e.rows.stride == 1 && e.rows.kernel <= 5);
}

template <class T>
void gather(const Elements<T>& e, Pass pass, Context& context) {
  if constexpr (sizeof(acc_t<T>) == 4) {
    if (is_depthwise_without_strips(e)) return launch_depthwise_gather(e, pass, context);
  }
  const Gather<T> g(e, pass);
  const bool few_maps = g.maps <= 2;  // then values are reused across rows of pixels, not across maps
  bool done = false;
  if constexpr (sizeof(acc_t<T>) == 4) {
    if (pass == Pass::dgrad && has_three_channels(e) && launch_few_dgrad<3>(e, context)) return;
  }
  if (fits_strips(e) && e.rows.kernel == 5) {
    if (few_maps) {
      done = launch_best(g, context,
                         Types<StripTile<5, 4, 8, 1, Ends::vectors>, StripTile<5, 4, 8, 1>,
                               StripTile<5, 1, 4, 1, Ends::vectors>, StripTile<5, 2, 4, 1>>{});
    } else if (pass == Pass::fprop) {
      done = launch_best(g, context, Types<StripTile<5, 1, 4, 6>, StripTile<5, 1, 10, 4>, StripTile<5, 1, 4, 2>>{});
    } else {
      done = launch_best(g, context,
                         Types<StripTile<5, 1, 4, 6>, StripTile<5, 1, 10, 4>, StripTile<5, 1, 14, 2, Ends::none>,
                               StripTile<5, 1, 2, 3>>{});
    }
  } else if (fits_strips(e) && e.rows.kernel == 3) {
    done = few_maps
               ? launch_best(g, context, Types<StripTile<3, 4, 8, 1>, StripTile<3, 1, 4, 4>>{})
               : launch_best(g, context, Types<StripTile<3, 1, 4, 6>, StripTile<3, 1, 8, 4>, StripTile<3, 1, 2, 4>>{});
  } else if (fits_strips(e) && e.rows.kernel == 1) {
    done = launch_best(g, context, Types<StripTile<1, 1, 4, 8>, StripTile<1, 1, 4, 2>>{});
  }
  if constexpr (sizeof(acc_t<T>) == 4) {
    if (!done && fits_few_maps(g)) return launch_few_maps(g, context);
  }
  if (!done) launch_gather_tiles(g, context);
}

template <class T>
void wgrad(const Elements<T>& e, Context& context) {
  bool done = false;
  if constexpr (sizeof(acc_t<T>) == 4) {
    if (is_depthwise_without_strips(e)) return launch_depthwise_wgrad(e, context);
    if (has_three_channels(e) && launch_few_wgrad<3>(e, context)) return;
  }
  if (fits_strips(e) && e.rows.kernel == 5) {
    done = e.maps == 1           ? launch_strips_wgrad<T, TapTile<5, 4, 1>>(e, context)
           : e.cols.out % 4 == 0 ? launch_strips_wgrad<T, TapTile<5, 4, 2>>(e, context)
                                 : launch_strips_wgrad<T, TapTile<5, 10, 2>>(e, context);
  } else if (fits_strips(e) && e.rows.kernel == 3) {
    done = e.maps == 1 ? launch_strips_wgrad<T, TapTile<3, 4, 1>>(e, context)
                       : launch_strips_wgrad<T, TapTile<3, 8, 4>>(e, context);
  }
  if (!done) launch_wgrad_tiles(e, context);
}

}  // namespace

void register_tiled(const Args& args, Context& context) {
  dispatch(FloatTypes{}, args.dtype, "conv2d", [&](auto type) {
    const Elements<typename decltype(type)::type> e(args);
    args.pass == Pass::wgrad ? wgrad(e, context) : gather(e, args.pass, context);
  });
}

}  // namespace tp::conv
#endif
