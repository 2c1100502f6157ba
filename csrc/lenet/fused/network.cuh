// The layout of the network in the fused kernels: which block computes what, and where it is in shared memory.
//
// A cluster of two blocks takes `images` images through the network at once. C5 has nearly all the weights (192 KB), so
// each block keeps half of it, 60 outputs, in shared memory and computes them for all images of the cluster. All other
// layers are small: with two or more images, each block owns half of the images and computes these layers for them. A
// single image is owned by both blocks: in the forward pass both compute the same, and in the backward pass each
// computes half of the gradients. Then no block takes a second image in a launch, so the blocks send each other values
// without a barrier of the cluster: a barrier in shared memory counts the bytes that arrive.
//
// The mean over 2x2 pixels and the convolution before it are both linear, with no activation between them, so they
// commute: S2 and S4 are 5x5 convolutions with stride 2 of the 2x2 means of their input. That takes a quarter of the
// products of convolving first. It holds for the backward pass as well: the gradient of a weight is the sum over the
// 196 pooled pixels (25 for S4), not over the four times as many pixels before pooling. The means of the image and of
// S2 are called `boxes` here.
#pragma once
#include <cooperative_groups.h>

#include "block/launch.cuh"
#include "block/pipeline.cuh"
#include "lenet/lenet.h"

namespace tp::lenet::network {

constexpr int threads = 512, warps = threads / block::warp_size;
constexpr int ranks = 2;  // blocks of a cluster
constexpr int c5_half = c5_outputs / ranks;

// Boxes of the image, 31x31. Even columns come before odd ones, so windows of stride 2 read consecutive words. With 39
// words per row, a warp reads 32 different banks both across pooled pixels (14 per row) and down the rows.
constexpr int image_boxes = 31, image_stride = 39, odd_columns = 16;
// Boxes of a map of S2, 13x13. With 193 words per map, lanes that read the same column of six maps and of five rows,
// one or two rows apart, access different banks.
constexpr int s2_boxes = 13, s2_stride = 193;
// Weights of C3 as [map of S2][tap][map of C3], and gradients at S4 as [pixel][map of C3], 20 words per 16 maps.
constexpr int maps_stride = 20, c3_stride = taps * maps_stride;

// Parameters of the convolutions in a block's partial gradients: C1's weights, S2's biases, C3's weights, S4's biases.
constexpr int c1_weights = c1_maps * taps, c3_weights = c3_maps * c1_maps * taps;
constexpr int s2_bias_at = c1_weights, c3_weight_at = s2_bias_at + c1_maps, s4_bias_at = c3_weight_at + c3_weights;
constexpr int conv_parameters = s4_bias_at + c3_maps;

TP_HD constexpr int image_box(int row, int column) {
  return row * image_stride + (column & 1) * odd_columns + column / 2;
}

constexpr int scratch_words = 8192;
constexpr int padded_classes = 12;  // rows of out_grad in 16-byte words; the gradients of the last two classes are 0

// An image's data in the shared memory of its owner. Arrays that are read 16 bytes at a time are aligned.
struct alignas(16) ImageRoom {
  alignas(16) float c5[c5_outputs];
  alignas(16) float f6[f6_outputs];
  alignas(16) float s4_grad[s4_pixels * maps_stride];  // at the argument of the activation
  float s2[c1_maps * s2_pixels];  // values; in the backward pass, gradients at the argument of the activation
  float s2_boxes[c1_maps * s2_stride];
  // Bank 6 follows s2_boxes in c3_wgrad, whose other lanes read the banks 0 to 5, 7 to 18 and 20 to 31.
  float ones[32];
  float boxes[image_boxes * image_stride];
  float f6_grad[f6_outputs], out[classes], out_grad[padded_classes];
};

constexpr int image_words = sizeof(ImageRoom) / sizeof(float);  // the distance between the same words of two images

template <int images>
struct Room {
  static constexpr int own = images == 1 ? 1 : images / ranks;

  // Arrays that are read 16 bytes at a time, or filled by bulk copies, are aligned.
  alignas(16) float c5_weight[c5_half * s4_values], f6_weight[f6_outputs * c5_outputs],
      output_weight[classes * f6_outputs];
  alignas(16) float c1_weight[taps * 8], c3_weight[c1_maps * c3_stride];
  alignas(16) float s4[images][s4_values], c5_grad[images][c5_half];
  ImageRoom image[own];
  float s2_bias[c1_maps], s4_bias[c3_maps], c5_bias[c5_half], f6_bias[f6_outputs], output_bias[classes];
  float scratch[scratch_words];
  block::Barrier weights_arrived, c5_arrived, shares_arrived;
};

// A thread's indices, the shared memory of its block, and that of the other block of the cluster.
template <int images>
struct Team {
  static constexpr int own = Room<images>::own;
  static constexpr bool shared_image = images == 1;  // both blocks own the same image
  Room<images>& room;
  Room<images>& partner;
  int rank, thread, warp, lane;

  TP_DEVICE explicit Team(unsigned char* memory)
      : room(*reinterpret_cast<Room<images>*>(memory)),
        partner(*cooperative_groups::this_cluster().map_shared_rank(
            reinterpret_cast<Room<images>*>(memory), int(cooperative_groups::this_cluster().block_rank()) ^ 1)),
        rank(int(cooperative_groups::this_cluster().block_rank())),
        thread(int(threadIdx.x)),
        warp(thread / block::warp_size),
        lane(thread % block::warp_size) {}

  // The number within the cluster of an image that this block owns.
  TP_DEVICE int slot(int image) const { return shared_image ? 0 : rank * own + image; }
  TP_DEVICE Room<images>& room_of(int owner) const { return owner == rank ? room : partner; }
  // Tells whether this block writes values that both blocks compute to global memory.
  TP_DEVICE bool writes() const { return !shared_image || rank == 0; }
  TP_DEVICE void sync() const { __syncthreads(); }
  TP_DEVICE void sync_cluster() const { cooperative_groups::this_cluster().sync(); }
  // Stores a value in the partner's shared memory, where this block has `word`; the partner's `barrier` counts
  // its bytes. A store that a barrier of the cluster makes visible takes longer, as that waits for all other stores
  // too.
  TP_DEVICE void send(const float& word, float value, const block::Barrier& barrier) const {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(partner_address(&word)),
        "r"(__float_as_uint(value)), "r"(partner_address(&barrier))
        : "memory");
  }
  TP_DEVICE unsigned partner_address(const void* own) const {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(block::shared_address(own)), "r"(rank ^ 1));
    return address;
  }
};

// tanh with a relative error of a few units in the last place: 1 - 2 / (exp(2x) + 1), and the series at 0 where that
// would cancel. It takes a third of the instructions of detail::tanh, and every image needs 1,780 of them.
TP_DEVICE inline float fast_tanh(float x) {
  const float square = x * x;
  const float tail = -1 / 3.f + square * (2 / 15.f + square * (-17 / 315.f + square * (62 / 2835.f)));
  const float series = x + x * square * tail;
  const float far = 1 - __fdividef(2, __expf(2 * x) + 1);
  return fabsf(x) < 0.3f ? series : far;
}

// The activation: tanh of the scaled argument, or relu. gradient() takes the gradient at the value and returns that at
// the argument.
struct Activator {
  float scale;
  bool relu;

  TP_DEVICE float value(float x) const { return relu ? activate<Activation::relu>(x) : fast_tanh(scale * x); }
  TP_DEVICE float gradient(float grad, float y) const {
    return relu ? activate_backward<Activation::relu>(grad, y) : scale * activate_backward<Activation::tanh>(grad, y);
  }
};

// What the step kernel passes to the update. For every image: the inputs of the dense layers and the gradients at their
// outputs, from which the update computes the gradients of the dense layers. For the convolutions: gradients summed
// over the images of each block (or cluster, if its blocks share an image).
struct Saved {
  float *s4, *c5, *f6;                  // [images of a step, values]
  float *c5_grad, *f6_grad, *out_grad;  // the same, at the arguments of the activations; out_grad has padded rows
  float* loss;                          // [images of a step]
  int* hit;                             // [images of a step]
  float* conv_grad;                     // [partial sums, conv_parameters]
};

struct StepParams {
  const void* x;
  const int64_t* target;
  const float* parameters[most_parameters];
  float* out;
  Saved saved;
  Activator activation;
  int64_t first;  // image of the step
  int count;      // images of the step
  bool x_is_bytes, rbf;
};

TP_DEVICE inline float4 load4(const float* p) { return *reinterpret_cast<const float4*>(p); }
TP_DEVICE inline float2 load2(const float* p) { return *reinterpret_cast<const float2*>(p); }

// `count` (1, 2 or 4) consecutive words.
template <int count>
TP_DEVICE void load_words(float (&to)[count], const float* from) {
  if constexpr (count == 4) {
    const float4 v = load4(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if constexpr (count == 2) {
    const float2 v = load2(from);
    to[0] = v.x, to[1] = v.y;
  } else {
    to[0] = *from;
  }
}

}  // namespace tp::lenet::network
