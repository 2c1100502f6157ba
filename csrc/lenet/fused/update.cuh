// The second kernel of a training step: the gradients of all parameters, and their update.
//
// The gradient of a dense layer is a matrix product, [outputs, images] by [images, inputs]; each block computes a tile
// of it. The block copies its rows and columns for a chunk of images to shared memory while it multiplies the chunk
// before. Its warps divide the images, and their sums are added in the order of the warps. The gradients of the
// convolutions arrive as partial sums, one per block of the step kernel, and are added in the same way. All orders
// depend only on the number of images, so every run gives the same bits.
#pragma once
#include "lenet/fused/network.cuh"

namespace tp::lenet::network {

struct UpdateParams {
  Saved saved;
  float *parameters[most_parameters], *momenta[most_parameters];
  const float *lr, *momentum, *weight_decay;
  float* loss;
  int64_t* hits;
  int count, partials;  // images of the step; sets of partial sums
  bool rbf;
};

// A dense layer, as the update reads it.
struct DenseLayer {
  const float *grad, *x;  // [images, outputs in rows of grad_stride words], [images, inputs]
  int outputs, grad_stride, inputs;
  Parameter weight;
};

constexpr int tile_outputs = 12, tile_inputs = 40, tile_size = tile_outputs * tile_inputs;
constexpr int lane_outputs = 3, lane_inputs = 5, lanes_across = tile_inputs / lane_inputs;
static_assert(tile_size + tile_outputs <= threads, "one thread per weight and bias of a tile");
static_assert(tile_outputs / lane_outputs * lanes_across == block::warp_size, "a warp covers a tile");

constexpr int tiles(int outputs, int inputs) { return ceil_div(outputs, tile_outputs) * ceil_div(inputs, tile_inputs); }
constexpr int c5_tiles = tiles(c5_outputs, s4_values), f6_tiles = tiles(f6_outputs, c5_outputs);
constexpr int output_tiles = tiles(classes, f6_outputs), conv_blocks = ceil_div(conv_parameters, block::warp_size);
constexpr int update_blocks = c5_tiles + f6_tiles + output_tiles + conv_blocks + 1;  // the last one adds up the losses

constexpr int chunk = 64, stages = 2;  // images copied at once; chunks in shared memory

struct Chunk {
  alignas(16) float grad[chunk][tile_outputs];
  alignas(16) float x[chunk][tile_inputs];
};

struct UpdateRoom {
  union {
    Chunk chunks[stages];
    float sums[warps][tile_size + tile_outputs];
  };
  block::Barrier arrived[stages];
};

// A parameter and its momentum, which are loaded before the gradient is known.
struct Descent {
  float *weight, *velocity, w, v;

  TP_DEVICE Descent(const UpdateParams& p, int parameter, int at)
      : weight(p.parameters[parameter] + at), velocity(p.momenta[parameter] + at), w(*weight), v(*velocity) {}
  TP_DEVICE void step(const UpdateParams& p, float grad) const {
    const float next = *p.momentum * v + (grad + *p.weight_decay * w);
    *velocity = next;
    *weight = w - *p.lr * next;
  }
};

// Begins to copy a tile's rows and columns for a chunk of images. Words beyond the layer's inputs are not initialized;
// they affect only sums that are never read.
TP_DEVICE inline void copy_chunk(const UpdateParams& p, UpdateRoom& room, const DenseLayer& layer, int first_output,
                                 int first_input, int number) {
  constexpr int grad_quads = tile_outputs / 4, quads = grad_quads + tile_inputs / 4;
  auto& to = room.chunks[number % stages];
  for (int e = int(threadIdx.x); e < chunk * quads; e += threads) {
    const int i = e / quads, quad = e % quads, n = number * chunk + i;
    if (n >= p.count) break;
    if (quad < grad_quads) {
      block::copy_async<16>(to.grad[i] + 4 * quad,
                            layer.grad + int64_t(n) * layer.grad_stride + first_output + 4 * quad);
    } else {
      const int input = 4 * (quad - grad_quads);
      if (first_input + input >= layer.inputs) continue;
      block::copy_async<16>(to.x[i] + input, layer.x + int64_t(n) * layer.inputs + first_input + input);
    }
  }
  room.arrived[number % stages].arrive_after_copies();
}

// A lane's sums for a tile: 3 outputs by 5 inputs, and the biases of the outputs.
struct LaneTile {
  float weight[lane_outputs][lane_inputs] = {}, bias[lane_outputs] = {};

  TP_DEVICE void add(const Chunk& chunk, int i, int output, int input) {
    float g[lane_outputs], x[lane_inputs];
#pragma unroll
    for (int r = 0; r < lane_outputs; ++r) g[r] = chunk.grad[i][output + r];
#pragma unroll
    for (int c = 0; c < lane_inputs; ++c) x[c] = chunk.x[i][input + c * lanes_across];
#pragma unroll
    for (int r = 0; r < lane_outputs; ++r) {
      bias[r] += g[r];
#pragma unroll
      for (int c = 0; c < lane_inputs; ++c) weight[r][c] += g[r] * x[c];
    }
  }
  TP_DEVICE void store(float* to, int output, int input) const {
#pragma unroll
    for (int r = 0; r < lane_outputs; ++r) {
#pragma unroll
      for (int c = 0; c < lane_inputs; ++c) {
        to[(output + r) * tile_inputs + input + c * lanes_across] = weight[r][c];
      }
      if (input == 0) to[tile_size + output + r] = bias[r];
    }
  }
};

// Stores each warp's sums over its images in `room.sums`.
TP_DEVICE inline void sum_tile(const UpdateParams& p, UpdateRoom& room, const DenseLayer& layer, int first_output,
                               int first_input) {
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  const int output = lane / lanes_across * lane_outputs, input = lane % lanes_across;
  const int chunks = ceil_div(p.count, chunk);
  LaneTile sum;
  copy_chunk(p, room, layer, first_output, first_input, 0);
  for (int number = 0; number < chunks; ++number) {
    if (number + 1 < chunks) copy_chunk(p, room, layer, first_output, first_input, number + 1);
    room.arrived[number % stages].wait(unsigned(number / stages) & 1);
    const auto& from = room.chunks[number % stages];
    const int images = tp::min(chunk, p.count - number * chunk);
#pragma unroll
    for (int k = 0; k < chunk / warps; ++k) {
      const int i = k * warps + warp;
      if (i < images) sum.add(from, i, output, input);
    }
    __syncthreads();
  }
  sum.store(room.sums[warp], output, input);
  __syncthreads();
}

// Updates a tile of a dense layer's weights, one per thread. Tiles that begin at input 0 also update the biases of
// their outputs.
TP_DEVICE inline void update_dense(const UpdateParams& p, UpdateRoom& room, const DenseLayer& layer, int tile) {
  const int across = ceil_div(layer.inputs, tile_inputs);
  const int first_output = tile / across * tile_outputs, first_input = tile % across * tile_inputs;
  const int e = int(threadIdx.x), output = e < tile_size ? e / tile_inputs : e - tile_size;
  const int input = first_input + e % tile_inputs;
  const bool centres = p.rbf && layer.weight == output_weight, is_bias = e >= tile_size;
  const bool exists = first_output + output < layer.outputs && output < tile_outputs &&
                      (is_bias ? first_input == 0 && !centres : input < layer.inputs);
  const int at = is_bias ? first_output + output : (first_output + output) * layer.inputs + input;
  const Descent descent(p, exists ? layer.weight + is_bias : layer.weight, exists ? at : 0);
  sum_tile(p, room, layer, first_output, first_input);
  if (!exists) return;
  const auto total = [&](int word) {
    float all = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) all += room.sums[w][word];
    return all;
  };
  float grad = total(e);
  if (centres) grad -= total(tile_size + output) * descent.w;  // the gradient times (x - centre)
  descent.step(p, grad);
}

// Updates 32 parameters of the convolutions, one per lane; the warps divide the partial sums.
TP_DEVICE inline void update_conv(const UpdateParams& p, UpdateRoom& room, int part) {
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  const int e = part * block::warp_size + lane;
  float sum = 0;
  if (e < conv_parameters) {
#pragma unroll 8
    for (int k = warp; k < p.partials; k += warps) sum += p.saved.conv_grad[int64_t(k) * conv_parameters + e];
  }
  room.sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || e >= conv_parameters) return;
  sum = 0;
#pragma unroll
  for (int w = 0; w < warps; ++w) sum += room.sums[w][lane];
  const int parameter = e < s2_bias_at ? c1_weight : e < c3_weight_at ? s2_bias : e < s4_bias_at ? c3_weight : s4_bias;
  const int begin = e < s2_bias_at ? 0 : e < c3_weight_at ? s2_bias_at : e < s4_bias_at ? c3_weight_at : s4_bias_at;
  Descent(p, parameter, e - begin).step(p, sum);
}

// Computes the mean loss of the step's images, and the number of images recognized.
TP_DEVICE inline void sum_losses(const UpdateParams& p, UpdateRoom& room) {
  const int thread = int(threadIdx.x);
  float* losses = room.sums[0];
  int* hits = reinterpret_cast<int*>(room.sums[2]);
  static_assert(2 * (tile_size + tile_outputs) >= threads, "one word per thread");
  losses[thread] = 0;
  hits[thread] = 0;
  for (int n = thread; n < p.count; n += threads) losses[thread] += p.saved.loss[n], hits[thread] += p.saved.hit[n];
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) losses[thread] += losses[thread + half], hits[thread] += hits[thread + half];
  }
  if (thread > 0) return;
  *p.loss = losses[0] / float(p.count);
  *p.hits = hits[0];
}

__global__ void __launch_bounds__(threads) update_kernel(const __grid_constant__ UpdateParams p) {
  __shared__ UpdateRoom room;
  block::allow_next_launch();
  if (threadIdx.x < stages) room.arrived[threadIdx.x].init(threads);
  __syncthreads();
  block::wait_for_launch_before();
  int part = int(blockIdx.x);
  if (part < c5_tiles) {
    return update_dense(p, room, {p.saved.c5_grad, p.saved.s4, c5_outputs, c5_outputs, s4_values, c5_weight}, part);
  }
  part -= c5_tiles;
  if (part < f6_tiles) {
    return update_dense(p, room, {p.saved.f6_grad, p.saved.c5, f6_outputs, f6_outputs, c5_outputs, f6_weight}, part);
  }
  part -= f6_tiles;
  if (part < output_tiles) {
    return update_dense(p, room, {p.saved.out_grad, p.saved.f6, classes, padded_classes, f6_outputs, output_weight},
                        part);
  }
  part -= output_tiles;
  if (part < conv_blocks) return update_conv(p, room, part);
  sum_losses(p, room);
}

}  // namespace tp::lenet::network
