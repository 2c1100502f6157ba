#include "conv/conv.h"

namespace tp::conv {
namespace {

// The least number of channels and maps per group with which Winograd's algorithm fills its blocks well enough, and the
// least number of channels for which patches are no task for the BLAS.
constexpr int64_t few_channels = 32, some_channels = 8;

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
// channels_last first, and fills only half of its tiles with 32 channels or maps: 32 -> 32 of 56 x 56, 32 images, 0.081
// and 0.085 instead of 0.145 and 0.123.
bool saves_products(const Args& args) {
  const auto count = [&](double pixels, int64_t maps, int64_t channels) {
    return pixels * double(args.n * args.groups) * double(maps) * double(channels);
  };
  const auto tiles = [](const Axis& axis) { return double(ceil_div(axis.out, int64_t(2))); };
  const int64_t channels = args.c / args.groups, maps = args.m / args.groups;
  const double direct = count(9.0 * double(args.rows.out) * double(args.cols.out), maps, channels);
  const double here = count(16 * tiles(args.rows) * tiles(args.cols), ceil_div(maps, int64_t(64)) * 64,
                            ceil_div(channels, int64_t(32)) * 32);
  const bool copies = args.layout == Layout::nchw, few = min(channels, maps) <= few_channels;
  return direct >= (copies ? 0x1p27 : 0x1p29) && here <= (copies || few ? 0.9 : 0.65) * direct;
}

// Whether Winograd's algorithm is faster than the matrix product that it saves. On an H200 in float32, ms: 64 -> 64
// channels of 56 x 56 pixels 0.22 instead of 0.33 for 64 images, and 0.019 instead of 0.046 for one; 128 -> 128 of 28 x
// 28 0.20 instead of 0.33, and 0.020 instead of 0.081; 32 -> 32 of 56 x 56, 32 images, 0.076 instead of 0.088. With
// fewer channels, its first and last steps outweigh what it saves: 24 -> 24 takes 0.064 instead of 0.052. Half types
// are multiplied on tensor cores, which are faster than its transforms. GPUs other than Hopper's multiply by cuBLAS
// between transforms in memory; what is faster there has not been measured.
bool suits_winograd(const Args& args) {
  const auto fits = [](const Axis& axis) { return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1; };
  return args.dtype == DType::float32 && fits(args.rows) && fits(args.cols) &&
         min(args.c, args.m) / args.groups >= few_channels && (args.pass != Pass::wgrad || saves_products(args));
}

// From how many channels and maps on the matrix product is faster than register strips: if at least `depth` are summed
// over, and the fewer of the two are at least `few`, or the fewer at least `beside` and the others at least `many`.
// Strips add up one channel after another, so sums over many of them take long, and their wgrad keeps
// filters of one pixel in too few threads (bfloat16 32 -> 64 of 56 x 56: 0.585 ms instead of 0.011); the product fills
// only a part of its tiles with few channels or maps.
struct Enough {
  int few, many, beside, depth;
};

// Fitted to 3,370 problems of 1 to 96 channels and maps on an H200 and an H100: [float32, half types][filters of 3 x 3
// and 5 x 5, of a pixel][pass][NCHW, channels_last].
constexpr int never = 1 << 30;
constexpr Enough enough_channels[2][2][3][2] = {
    {{{{32, 96, 6, 0}, {32, 48, 12, 0}}, {{16, 64, 8, 0}, {16, 32, 8, 0}}, {{24, never, 0, 0}, {12, 32, 4, 0}}},
     {{{16, 48, 1, 16}, {24, 32, 1, 16}}, {{16, 48, 1, 24}, {16, 32, 1, 0}}, {{16, 32, 6, 0}, {16, 16, 4, 0}}}},
    {{{{16, 24, 6, 0}, {16, 24, 1, 8}}, {{12, 64, 4, 0}, {16, 24, 4, 0}}, {{16, 32, 4, 0}, {8, 16, 1, 0}}},
     {{{16, 24, 1, 24}, {16, 24, 1, 24}}, {{16, 48, 1, 24}, {8, 24, 1, 0}}, {{8, 48, 1, 0}, {16, 24, 1, 0}}}}};

bool product_beats_strips(const Args& args) {
  const int64_t channels = args.c / args.groups, maps = args.m / args.groups, few = min(channels, maps),
                many = max(channels, maps);
  if (args.dtype == DType::float64) return few > few_channels;
  // Three channels and up to 32 maps have a kernel of their own (few_channels_wgrad.cuh). On an H200 in bfloat16 and
  // channels_last, 3 -> 32 of 224 x 224, 64 images, takes 0.257 ms instead of 0.364, and 3 -> 64 0.494 instead of
  // 0.365.
  if (args.pass == Pass::wgrad && args.rows.kernel == 3 && channels == 3 && maps <= 32) return false;
  const bool is_half = args.dtype != DType::float32, is_pixel = args.rows.kernel * args.cols.kernel == 1;
  const Enough& enough = enough_channels[is_half][is_pixel][int(args.pass)][args.layout == Layout::nhwc];
  const int64_t depth = args.pass == Pass::fprop ? channels : args.pass == Pass::dgrad ? maps : never;
  return depth >= enough.depth && (few >= enough.few || (many >= enough.many && few >= enough.beside));
}

// Whether the matrix product is faster than register_tiled without strips. Its slabs have the channels of several taps
// if there are few, so what counts is the number of columns, which is one per channel and tap. Only in float32 to at
// most four channels or maps is few_maps.cuh faster. On an H200, 3 -> 64 of 224 x 224 with 7 x 7 filters and
// stride 2, 64 images, the product and register_tiled, ms: float32 NCHW fprop 0.68 and 2.67, dgrad 3.96 and 0.91, wgrad
// 0.76 and 13.7; bfloat16 channels_last fprop 0.29 and 3.18, dgrad 1.29 and 1.34.
bool product_beats_loops(const Args& args) {
  const int64_t channels = args.c / args.groups, maps = args.m / args.groups, many = max(channels, maps),
                columns = channels * args.rows.kernel * args.cols.kernel;
  const bool is_half = args.dtype == DType::float16 || args.dtype == DType::bfloat16;
  if (args.pass == Pass::wgrad) return columns >= 12 && many * columns >= 384;
  const bool moves_by_one = args.pass == Pass::dgrad || args.rows.stride == 1;
  if (args.dtype == DType::float32 && moves_by_one && (args.pass == Pass::dgrad ? channels : maps) <= 4) return false;
  return (is_half && columns >= 192) || (many >= 16 && columns >= 16);
}

// Whether filters divide an image of few channels into patches, as the first layer of a vision transformer does. Then
// the unrolled matrix has as many elements as the image, and one product by the BLAS is fastest: on an H200, 3 -> 768
// of 224 x 224 with patches of 16 x 16, 16 images, bfloat16, 0.064 ms instead of 0.27. Only for wgrad in NCHW is the
// implicit product as fast.
bool has_patches(const Args& args) {
  const auto divides = [](const Axis& a) {
    return a.kernel > 1 && a.stride == a.kernel && a.pad == 0 && a.dilation == 1;
  };
  const bool few = args.groups == 1 && args.c < some_channels && args.m >= few_channels;
  return few && divides(args.rows) && divides(args.cols) && !(args.pass == Pass::wgrad && args.layout == Layout::nchw);
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

bool reads_nhwc_filters(std::string_view rung) { return rung == "implicit_gemm" || rung == "threaded"; }

const char* choose(const Args& args, const Device& device) {
  if (!device.cuda) return "threaded";
  if (suits_winograd(args)) return "winograd";
  if (has_patches(args)) return "im2col_gemm";
  const bool product = has_strips(args) ? product_beats_strips(args) : product_beats_loops(args);
  return product ? "implicit_gemm" : "register_tiled";
}

}  // namespace tp::conv
