// The second kernel of a training step: the gradients of all parameters, and their update.
//
// The gradient of a dense layer is a product of matrices, [outputs, images] by [images, inputs]; each block computes a
// tile of it. The warps share the images out, and their sums are added in the order of the warps. Gradients of the
// convolutions arrive as partial sums, one per block of the step kernel, and are added in the same way. All orders
// depend on the number of images alone, so that every run gives the same bits.
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

// A dense layer as the update sees it.
struct DenseLayer {
  const float *grad, *x;  // [images, outputs], [images, inputs]
  int outputs, inputs;
  Parameter weight;
};

constexpr int tile_outputs = 12, tile_inputs = 40, tile_size = tile_outputs * tile_inputs;
constexpr int lane_outputs = 3, lane_inputs = 5, lanes_across = tile_inputs / lane_inputs;
static_assert(tile_size + tile_outputs <= threads, "one thread per weight and bias of a tile");
static_assert(tile_outputs / lane_outputs * lanes_across == block::warp_size, "a warp covers a tile");

constexpr int tiles(int outputs, int inputs) {
  return ceil_div(outputs, tile_outputs) * ceil_div(inputs, tile_inputs);
}
constexpr int c5_tiles = tiles(c5_outputs, s4_values), f6_tiles = tiles(f6_outputs, c5_outputs);
constexpr int output_tiles = tiles(classes, f6_outputs), conv_blocks = ceil_div(conv_parameters, block::warp_size);
constexpr int update_blocks = c5_tiles + f6_tiles + output_tiles + conv_blocks + 1;  // the last one adds up the losses

struct UpdateRoom {
  float sums[warps][tile_size + tile_outputs];
};

TP_DEVICE inline void descend(const UpdateParams& p, int parameter, int at, float grad) {
  float *weight = p.parameters[parameter] + at, *velocity = p.momenta[parameter] + at;
  const float w = *weight, v = *p.momentum * *velocity + (grad + *p.weight_decay * w);
  *velocity = v;
  *weight = w - *p.lr * v;
}

// A tile of a dense layer's weights; tiles that begin at input 0 update the biases of their outputs, too.
TP_DEVICE inline void update_dense(const UpdateParams& p, UpdateRoom& room, const DenseLayer& layer, int tile) {
  const int across = ceil_div(layer.inputs, tile_inputs);
  const int first_output = tile / across * tile_outputs, first_input = tile % across * tile_inputs;
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  const int my_output = lane / lanes_across * lane_outputs, my_input = lane % lanes_across;
  float sum[lane_outputs][lane_inputs] = {}, bias[lane_outputs] = {};
#pragma unroll 4
  for (int n = warp; n < p.count; n += warps) {
    float g[lane_outputs], x[lane_inputs];
#pragma unroll
    for (int r = 0; r < lane_outputs; ++r) {
      const int output = first_output + my_output + r;
      g[r] = output < layer.outputs ? layer.grad[int64_t(n) * layer.outputs + output] : 0;
    }
#pragma unroll
    for (int c = 0; c < lane_inputs; ++c) {
      const int input = first_input + my_input + c * lanes_across;
      x[c] = input < layer.inputs ? layer.x[int64_t(n) * layer.inputs + input] : 0;
    }
#pragma unroll
    for (int r = 0; r < lane_outputs; ++r) {
      bias[r] += g[r];
#pragma unroll
      for (int c = 0; c < lane_inputs; ++c) sum[r][c] += g[r] * x[c];
    }
  }
#pragma unroll
  for (int r = 0; r < lane_outputs; ++r) {
#pragma unroll
    for (int c = 0; c < lane_inputs; ++c) {
      room.sums[warp][(my_output + r) * tile_inputs + my_input + c * lanes_across] = sum[r][c];
    }
    if (my_input == 0) room.sums[warp][tile_size + my_output + r] = bias[r];
  }
  __syncthreads();
  const auto total = [&](int at) {
    float all = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) all += room.sums[w][at];
    return all;
  };
  const int e = int(threadIdx.x), is_bias = e >= tile_size;
  const int output = is_bias ? e - tile_size : e / tile_inputs, input = first_input + e % tile_inputs;
  const bool centres = p.rbf && layer.weight == output_weight;
  if (e >= tile_size + tile_outputs || first_output + output >= layer.outputs) return;
  if (is_bias) {
    if (first_input == 0 && !centres) descend(p, layer.weight + 1, first_output + output, total(e));
    return;
  }
  if (input >= layer.inputs) return;
  const int at = (first_output + output) * layer.inputs + input;
  float grad = total(e);
  if (centres) grad -= total(tile_size + output) * p.parameters[layer.weight][at];  // g (x - centre)
  descend(p, layer.weight, at, grad);
}

// 32 parameters of the convolutions: one per lane; the warps share the partial sums out.
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
  if (e < s2_bias_at) return descend(p, c1_weight, e, sum);
  if (e < c3_weight_at) return descend(p, s2_bias, e - s2_bias_at, sum);
  if (e < s4_bias_at) return descend(p, c3_weight, e - c3_weight_at, sum);
  descend(p, s4_bias, e - s4_bias_at, sum);
}

// The mean loss of the step's images, and how many of them were recognized.
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
  block::wait_for_launch_before();
  int part = int(blockIdx.x);
  if (part < c5_tiles) {
    return update_dense(p, room, {p.saved.c5_grad, p.saved.s4, c5_outputs, s4_values, c5_weight}, part);
  }
  part -= c5_tiles;
  if (part < f6_tiles) {
    return update_dense(p, room, {p.saved.f6_grad, p.saved.c5, f6_outputs, c5_outputs, f6_weight}, part);
  }
  part -= f6_tiles;
  if (part < output_tiles) {
    return update_dense(p, room, {p.saved.out_grad, p.saved.f6, classes, f6_outputs, output_weight}, part);
  }
  part -= output_tiles;
  if (part < conv_blocks) return update_conv(p, room, part);
  sum_losses(p, room);
}

}  // namespace tp::lenet::network
