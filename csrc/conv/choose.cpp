#include "conv/conv.h"

namespace tp::conv {
namespace {

// With at most this many channels or maps per group, register strips are faster than a matrix product. On an H200,
// strips compute 16 TFLOP/s in float32 for 32 -> 32 channels of 56 x 56 pixels with 3 x 3 filters. The matrix product
// computes 44 with full tiles, but 32 maps fill only half a tile.
constexpr int64_t few_channels = 32;
// Where strips do not apply, a matrix product is faster from this many channels and maps on.
constexpr int64_t some_channels = 8;

// Whether register_tiled has strips for these filters (strips_gather.cuh, strips_wgrad.cuh). A block keeps the filters
// of some maps in shared memory, for all channels that are summed over, so they must be small.
bool has_strips(const Args& args) {
  const Axis &rows = args.rows, &cols = args.cols;
  const bool moves_by_one = rows.stride == 1 && cols.stride == 1 && rows.dilation == 1 && cols.dilation == 1;
  if (rows.kernel != cols.kernel || !moves_by_one) return false;
  constexpr int64_t most_rows = 192;  // the most filter rows in float32 that a block keeps
  const int64_t depth = args.pass == Pass::wgrad ? 1 : (args.pass == Pass::fprop ? args.c : args.m) / args.groups;
  const int64_t words = args.dtype == DType::float64 ? 2 : 1;
  return (rows.kernel == 1 || rows.kernel == 3 || rows.kernel == 5) && depth * rows.kernel * words <= most_rows;
}

// Whether Winograd's wgrad saves enough products, given that its blocks compute 64 maps, 32 channels and 2 x 2 pixels
// whether or not they exist. On an H200, ms, for NCHW and channels_last: 128 -> 128 channels of 28 x 28 pixels, 64
// images, 0.244 and 0.233 instead of 0.366 and 0.326; 4 images 0.048 instead of 0.060 and 0.051; 40 -> 64, where it
// saves 30 % of the products, 0.087 and 0.091 instead of 0.097 and 0.075. The matrix product copies NCHW to
// channels_last first.
bool saves_products(const Args& args) {
  const auto count = [&](double pixels, int64_t maps, int64_t channels) {
    return pixels * double(args.n * args.groups) * double(maps) * double(channels);
  };
  const auto tiles = [](const Axis& axis) { return double(ceil_div(axis.out, int64_t(2))); };
  const int64_t channels = args.c / args.groups, maps = args.m / args.groups;
  const double direct = count(9.0 * double(args.rows.out) * double(args.cols.out), maps, channels);
  const double here = count(16 * tiles(args.rows) * tiles(args.cols), ceil_div(maps, int64_t(64)) * 64,
                            ceil_div(channels, int64_t(32)) * 32);
  const bool copies = args.layout == Layout::nchw;
  return direct >= (copies ? 0x1p27 : 0x1p29) && here <= (copies ? 0.9 : 0.65) * direct;
}

// Whether Winograd's algorithm is faster than the matrix product that it saves. On an H200 in float32, ms: 64 -> 64
// channels of 56 x 56 pixels 0.22 instead of 0.33 for 64 images, and 0.019 instead of 0.046 for one; 128 -> 128 of 28 x
// 28 0.20 instead of 0.33, and 0.020 instead of 0.081; 33 -> 33 of 28 x 28 0.05 instead of 0.07. With fewer channels,
// its first and last steps outweigh what it saves: 16 -> 128 takes 0.06 instead of 0.055. Half types are multiplied on
// tensor cores, which are faster than its transforms. GPUs other than Hopper's multiply by cuBLAS between transforms in
// memory; what is faster there has not been measured.
bool suits_winograd(const Args& args) {
  const auto fits = [](const Axis& axis) { return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1; };
  return args.dtype == DType::float32 && fits(args.rows) && fits(args.cols) &&
         min(args.c, args.m) / args.groups > few_channels && (args.pass != Pass::wgrad || saves_products(args));
}

}  // namespace

// The times are in nanoseconds, on an H200: products between transforms in memory reach 22 per picosecond, and the
// transforms write 2.7 bytes per picosecond; one kernel for both reaches 12 products per picosecond. Both compute
// blocks of 64 maps and of 64 or 32 channels, whether or not these exist.
bool stores_images(const Args& args) {
  const auto padded = [](int64_t n, int64_t block) { return double(ceil_div(n, block) * block); };
  const int64_t channels = args.c / args.groups, maps = args.m / args.groups;
  const double tiles =
      double(ceil_div(args.rows.out, int64_t(2)) * ceil_div(args.cols.out, int64_t(2))) * double(args.n * args.groups);
  const double bytes = 64 * tiles * (padded(maps, 64) + padded(channels, 64));
  constexpr double most = 0x1p30, launches = 4e3;
  const double stored = 16 * tiles * padded(maps, 64) * padded(channels, 64) / 22e3 + bytes / 2.7e3 + launches,
               fused = 16 * tiles * padded(maps, 64) * padded(channels, 32) / 12e3;
  return bytes <= most && stored < fused;
}

bool reads_nhwc_filters(std::string_view rung) { return rung == "implicit_gemm"; }

const char* choose(const Args& args, const Device& device) {
  if (!device.cuda) return "threaded";
  const int64_t channels = args.c / args.groups, maps = args.m / args.groups;
  if (suits_winograd(args)) return "winograd";
  if (min(channels, maps) > few_channels) return "implicit_gemm";
  if (has_strips(args)) return "register_tiled";
  // For wgrad, the matrix has one column per channel and tap.
  const int64_t columns = args.pass == Pass::wgrad ? channels * args.rows.kernel * args.cols.kernel : channels;
  return min(columns, maps) >= some_channels ? "implicit_gemm" : "register_tiled";
}

}  // namespace tp::conv
