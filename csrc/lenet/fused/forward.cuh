// The phases of the forward pass. Each is called by all threads of a block; the caller puts the barriers between them.
#pragma once
#include "lenet/fused/network.cuh"

namespace tp::lenet::network {

// Copies the weights of the convolutions, transposed for the phases that read them, and then starts the bulk copies of
// the dense layers' weights. These come last because they keep the memory busy, and the convolutions need their weights
// first. The first phase of `weights_arrived` completes when the bulk copies are done.
template <int images>
TP_DEVICE void load_weights(const Team<images>& t, const StepParams& p) {
  auto& room = t.room;
  constexpr int rounds = ceil_div(c3_weights, threads);
  float c3_part[rounds];  // all loads are issued before the first is stored
#pragma unroll
  for (int k = 0; k < rounds; ++k) {
    const int i = k * threads + t.thread;
    c3_part[k] = i < c3_weights ? p.parameters[c3_weight][i] : 0;
  }
  const auto bring_bias = [&](float* to, Parameter bias, int first, int count) {
    if (t.thread < count) to[t.thread] = p.parameters[bias][first + t.thread];
  };
  bring_bias(room.s2_bias, s2_bias, 0, c1_maps);
  bring_bias(room.s4_bias, s4_bias, 0, c3_maps);
  bring_bias(room.c5_bias, c5_bias, t.rank * c5_half, c5_half);
  bring_bias(room.f6_bias, f6_bias, 0, f6_outputs);
  if (!p.rbf) bring_bias(room.output_bias, output_bias, 0, classes);
  if (t.thread < c1_weights) {
    room.c1_weight[t.thread % taps * 8 + t.thread / taps] = p.parameters[c1_weight][t.thread];
  }
#pragma unroll
  for (int k = 0; k < rounds; ++k) {
    const int i = k * threads + t.thread, m = i / (c1_maps * taps), rest = i % (c1_maps * taps);
    if (i < c3_weights) room.c3_weight[rest / taps * c3_stride + rest % taps * maps_stride + m] = c3_part[k];
  }
  if (t.warp == 0) {
    const auto bring = [&](float* to, const float* from, int count) {
      const auto* begin = reinterpret_cast<const unsigned char*>(from);
      block::copy_bulk(room.weights_arrived, reinterpret_cast<unsigned char*>(to), begin, begin + count * 4, t.lane);
    };
    bring(room.c5_weight, p.parameters[c5_weight] + t.rank * c5_half * s4_values, c5_half * s4_values);
    bring(room.f6_weight, p.parameters[f6_weight], f6_outputs * c5_outputs);
    bring(room.output_weight, p.parameters[output_weight], classes * f6_outputs);
    if (t.lane == 0) room.weights_arrived.arrive();
  }
}

// The pixels of the images that this block owns, in registers until their shared memory is free: warp w has the rows 2w
// to 2w + 2, one column per lane, and the label of image w. Images beyond the minibatch are blank and have no label.
// Bytes stay bytes here, because a conversion would wait for the loads.
template <int images>
struct Pixels {
  static constexpr int rows = 3;
  unsigned pixel[Team<images>::own][rows];
  int64_t label;

  TP_DEVICE void load(const Team<images>& t, const StepParams& p, int first) {
    const int labelled = first + t.slot(tp::min(t.warp, t.own - 1));
    label = -1;
    if (p.target != nullptr && labelled < p.count) label = p.target[p.first + labelled];
#pragma unroll
    for (int i = 0; i < t.own; ++i) {
      const int image = first + t.slot(i);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const int row = tp::min(2 * t.warp + r, image_size - 1);
        const int64_t at = (p.first + image) * image_pixels + row * image_size + t.lane;
        pixel[i][r] = 0;
        if (image >= p.count) continue;
        pixel[i][r] = p.x_is_bytes ? static_cast<const uint8_t*>(p.x)[at] : static_cast<const unsigned*>(p.x)[at];
      }
    }
  }

  // Computes the means over 2x2 pixels, 31x31 per image.
  TP_DEVICE void store_boxes(const Team<images>& t, const StepParams& p) const {
    const float scale = p.x_is_bytes ? float(pixel_scale / 4) : 0.25f, offset = p.x_is_bytes ? float(pixel_offset) : 0;
    const auto value = [&](unsigned bits) { return p.x_is_bytes ? float(bits) : __uint_as_float(bits); };
#pragma unroll
    for (int i = 0; i < t.own; ++i) {
#pragma unroll
      for (int r = 0; r < rows - 1; ++r) {
        const int row = 2 * t.warp + r;
        const float column_sum = value(pixel[i][r]) + value(pixel[i][r + 1]);
        const float sum = column_sum + __shfl_down_sync(~0u, column_sum, 1);
        if (row < image_boxes && t.lane < image_boxes) {
          t.room.image[i].boxes[image_box(row, t.lane)] = sum * scale + offset;
        }
      }
    }
  }
};

// C1 and S2: a thread computes half of a row of a map of S2.
template <int images>
TP_DEVICE void c1_s2(const Team<images>& t, const StepParams& p) {
  constexpr int columns = s2_size / 2, tasks = Team<images>::own * c1_maps * 2 * s2_size;
  static_assert(tasks <= threads, "one task per thread");
  if (t.thread >= tasks) return;
  const int row = t.thread % s2_size, half = t.thread / s2_size % 2, map = t.thread / (2 * s2_size) % c1_maps;
  auto& image = t.room.image[t.thread / (2 * s2_size * c1_maps)];
  const float* boxes = image.boxes + image_box(2 * row, 2 * columns * half);
  const float* weights = t.room.c1_weight + map;
  float sum[columns];
#pragma unroll
  for (int b = 0; b < columns; ++b) sum[b] = t.room.s2_bias[map];
#pragma unroll
  for (int i = 0; i < kernel; ++i) {
    float x[2 * columns + kernel - 2];
#pragma unroll
    for (int k = 0; k < 2 * columns + kernel - 2; ++k) x[k] = boxes[image_box(i, k)];
#pragma unroll
    for (int j = 0; j < kernel; ++j) {
      const float w = weights[(i * kernel + j) * 8];
#pragma unroll
      for (int b = 0; b < columns; ++b) sum[b] += w * x[2 * b + j];
    }
  }
  float* to = image.s2 + map * s2_pixels + row * s2_size + half * columns;
#pragma unroll
  for (int b = 0; b < columns; ++b) to[b] = p.activation.value(sum[b]);
}

// Computes the means over 2x2 pixels of S2, 13x13 per map: a thread goes down a part of a column.
template <int images>
TP_DEVICE void box_s2(const Team<images>& t) {
  constexpr int rows = Team<images>::own == 1 ? 4 : 7, parts = ceil_div(s2_boxes, rows);
  constexpr int tasks = Team<images>::own * c1_maps * parts * s2_boxes;
  static_assert(tasks <= threads, "one task per thread");
  if (t.thread >= tasks) return;
  const int column = t.thread % s2_boxes, first = t.thread / s2_boxes % parts * rows;
  const int map = t.thread / (s2_boxes * parts) % c1_maps;
  auto& image = t.room.image[t.thread / (s2_boxes * parts * c1_maps)];
  const float* s2 = image.s2 + map * s2_pixels + column;
  float* to = image.s2_boxes + map * s2_stride + column;
  float above = s2[first * s2_size] + s2[first * s2_size + 1];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const int row = tp::min(first + r, s2_boxes - 1);  // the last part is shorter, so its last row is repeated
    const float below = s2[(row + 1) * s2_size] + s2[(row + 1) * s2_size + 1];
    if (first + r < s2_boxes) to[row * s2_boxes] = (above + below) * 0.25f;
    above = below;
  }
}

constexpr int c3_group = 4;  // maps of C3 per lane

// The number of warps that share the rows of C3's kernels, for a single image.
template <int images>
constexpr int c3_parts = Team<images>::own == 1 ? 2 : 1;

// C3: a lane has one map of S2 and one row of S4, and a warp has four maps of C3 (for a single image, only the even or
// the odd rows of their kernels). So a lane reads 13 boxes and 20 weights for 100 products. The phase s4 sums over the
// maps of S2.
template <int images>
TP_DEVICE void c3(const Team<images>& t) {
  constexpr int maps = c3_group, groups = c3_maps / maps, parts = c3_parts<images>;
  const int image = t.warp / (groups * parts), part = t.warp / groups % parts, group = t.warp % groups;
  const int s2_map = t.lane / s4_size, row = t.lane % s4_size;
  if (image >= t.own || s2_map >= c1_maps) return;
  const float* boxes = t.room.image[image].s2_boxes + s2_map * s2_stride + 2 * row * s2_boxes;
  const float* weights = t.room.c3_weight + s2_map * c3_stride + maps * group;
  float sum[maps][s4_size] = {};
#pragma unroll 1
  for (int i = part; i < kernel; i += parts) {
    float x[s2_boxes];
#pragma unroll
    for (int k = 0; k < s2_boxes; ++k) x[k] = boxes[i * s2_boxes + k];
#pragma unroll
    for (int j = 0; j < kernel; ++j) {
      float w[maps];
      load_words(w, weights + (i * kernel + j) * maps_stride);
#pragma unroll
      for (int b = 0; b < s4_size; ++b) {
#pragma unroll
        for (int m = 0; m < maps; ++m) sum[m][b] += w[m] * x[2 * b + j];
      }
    }
  }
  float* to = t.room.scratch + (image * parts + part) * c1_maps * s4_values;
#pragma unroll
  for (int m = 0; m < maps; ++m) {
#pragma unroll
    for (int b = 0; b < s4_size; ++b) {
      to[((maps * group + m) * c1_maps + s2_map) * s4_pixels + row * s4_size + b] = sum[m][b];
    }
  }
}

// S4: adds up the sums of c3's lanes. Both blocks get the values, because C5 needs those of all images of the cluster.
template <int images>
TP_DEVICE void s4(const Team<images>& t, const StepParams& p) {
  constexpr int parts = c3_parts<images>;
  if (t.thread >= s4_values) return;
  const int k = t.thread, map = k / s4_pixels, pixel = k % s4_pixels;
#pragma unroll
  for (int image = 0; image < t.own; ++image) {
    float sum = t.room.s4_bias[map];
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const float* from = t.room.scratch + (image * parts + part) * c1_maps * s4_values + map * c1_maps * s4_pixels;
#pragma unroll
      for (int c = 0; c < c1_maps; ++c) sum += from[c * s4_pixels + pixel];
    }
    const float value = p.activation.value(sum);
    t.room.s4[t.slot(image)][k] = value;
    if (!t.shared_image) t.partner.s4[t.slot(image)][k] = value;
  }
}

// Sums `count` values per lane, a power of two, over a warp: the sum of value i goes to the lanes from i * 32 / count
// on.
template <int count>
TP_DEVICE float sum_across(float (&value)[count], int lane) {
  int left = count;
#pragma unroll
  for (int step = block::warp_size / 2; step > 0; step /= 2) {
    if (left == 1) {
      value[0] += __shfl_xor_sync(~0u, value[0], step);
      continue;
    }
    left /= 2;
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      if (i >= left) break;
      const float sent = upper ? value[i] : value[i + left], kept = upper ? value[i + left] : value[i];
      value[i] = kept + __shfl_xor_sync(~0u, sent, step);
    }
  }
  return value[0];
}

constexpr int power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// A dense layer for `n` images whose inputs are `stride` words apart: a warp computes `rows` outputs at once, and its
// lanes divide the inputs, four at a time. One lane then calls finish(output, image, sum). `term` adds the contribution
// of one weight and one input.
template <int rows, int n, int inputs, class Term, class Finish>
TP_DEVICE void dense(int warp, int lane, const float* weights, int outputs, const float* x, int stride, Term term,
                     Finish finish) {
  constexpr int quads = inputs / 4, sums = power_of_two(rows * n), lanes_per_sum = block::warp_size / sums;
  static_assert(inputs % 4 == 0 && sums <= block::warp_size, "");
  for (int first = warp * rows; first < outputs; first += warps * rows) {
    float sum[sums] = {};
#pragma unroll
    for (int step = 0; step < ceil_div(quads, block::warp_size); ++step) {
      const int quad = step * block::warp_size + lane;
      if (quad >= quads) break;
      float4 b[n];
#pragma unroll
      for (int i = 0; i < n; ++i) b[i] = load4(x + i * stride + 4 * quad);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const float4 a = load4(weights + (first + r) * inputs + 4 * quad);
#pragma unroll
        for (int i = 0; i < n; ++i) {
          sum[r * n + i] = term(a.w, b[i].w, term(a.z, b[i].z, term(a.y, b[i].y, term(a.x, b[i].x, sum[r * n + i]))));
        }
      }
    }
    const float total = sum_across(sum, lane);
    const int which = lane / lanes_per_sum;
    if (lane % lanes_per_sum == 0 && which < rows * n) finish(first + which / n, which % n, total);
  }
}

struct Product {
  TP_DEVICE float operator()(float w, float x, float sum) const { return fmaf(w, x, sum); }
};
struct SquaredDistance {
  TP_DEVICE float operator()(float w, float x, float sum) const { return fmaf(x - w, x - w, sum); }
};

// C5: this block's half of the outputs, for all images of the cluster. Each value goes to the owner of its image.
template <int images>
TP_DEVICE void c5(const Team<images>& t, const StepParams& p) {
  constexpr int rows = 4;
  static_assert(c5_half % rows == 0, "whole groups of outputs");
  dense<rows, images, s4_values>(t.warp, t.lane, t.room.c5_weight, c5_half, t.room.s4[0], s4_values, Product{},
                                 [&](int output, int slot, float sum) {
                                   const float value = p.activation.value(sum + t.room.c5_bias[output]);
                                   const int k = t.rank * c5_half + output;
                                   if (t.shared_image) {
                                     t.room.image[0].c5[k] = value;
                                     t.send(t.room.image[0].c5[k], value, t.room.c5_arrived);
                                   } else {
                                     t.room_of(slot / t.own).image[slot % t.own].c5[k] = value;
                                   }
                                 });
}

// F6, for the images that this block owns.
template <int images>
TP_DEVICE void f6(const Team<images>& t, const StepParams& p) {
  constexpr int rows = 6;
  static_assert(f6_outputs % rows == 0, "whole groups of outputs");
  dense<rows, Team<images>::own, c5_outputs>(t.warp, t.lane, t.room.f6_weight, f6_outputs, t.room.image[0].c5,
                                             image_words, Product{}, [&](int output, int image, float sum) {
                                               t.room.image[image].f6[output] =
                                                   p.activation.value(sum + t.room.f6_bias[output]);
                                             });
}

// OUTPUT: logits, or Gaussians of the distances from the centres. Without training they are the result.
template <int images, bool train>
TP_DEVICE void output(const Team<images>& t, const StepParams& p, int first) {
  constexpr int own = Team<images>::own;
  const auto layer = [&](auto term, auto value_of) {
    dense<1, own, f6_outputs>(t.warp, t.lane, t.room.output_weight, classes, t.room.image[0].f6, image_words, term,
                              [&](int output, int image, float sum) {
                                const float value = value_of(output, sum);
                                t.room.image[image].out[output] = value;
                                const int64_t n = first + t.slot(image);
                                if (!train && n < p.count) p.out[(p.first + n) * classes + output] = value;
                              });
  };
  if (p.rbf) {
    layer(SquaredDistance{}, [&](int, float sum) { return expf(sum * float(-1 / (2 * sigma_squared))); });
  } else {
    layer(Product{}, [&](int output, float sum) { return sum + t.room.output_bias[output]; });
  }
}

// The loss of an image, and its gradient at the logits, or at the exponents of the Gaussians: one warp per image, one
// lane per class. An image beyond the minibatch has no gradient, and neither has one whose label is not a class. For
// such a label the cross-entropy is NaN, as everywhere in this library, and the target of every Gaussian is 0.
template <int images>
TP_DEVICE void loss(const Team<images>& t, const StepParams& p, int first, int64_t label) {
  if (t.warp >= t.own) return;
  auto& image = t.room.image[t.warp];
  const int n = first + t.slot(t.warp);
  const bool counts = n < p.count, is_class = t.lane < classes;
  const bool valid = label >= 0 && label < classes, is_label = is_class && label == t.lane;
  const float y = is_class ? image.out[t.lane] : -INFINITY;
  float greatest = y;
#pragma unroll
  for (int step = 8; step > 0; step /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, step));
  const unsigned best = __ballot_sync(~0u, is_class && y == greatest);
  float term, grad;
  if (p.rbf) {
    const float error = y - float(is_label);
    term = is_class ? error * error * 0.5f : 0;
    grad = error * y * float(1 / sigma_squared);
  } else {
    term = is_class ? expf(y - greatest) : 0;
    grad = 0;
  }
  float sum = term;
#pragma unroll
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  float total = sum;
  if (!p.rbf) {
    const float log_sum = logf(sum), of_label = __shfl_sync(~0u, y, valid ? int(label) : 0);
    total = valid ? log_sum - (of_label - greatest) : NAN;
    grad = valid ? __fdividef(term, sum) - float(is_label) : 0;
  }
  if (t.lane < padded_classes) image.out_grad[t.lane] = counts && is_class ? __fdividef(grad, float(p.count)) : 0;
  if (t.lane == 0 && counts && t.writes()) {
    p.saved.loss[n] = total;
    p.saved.hit[n] = valid && __ffs(int(best)) - 1 == int(label);
  }
}

}  // namespace tp::lenet::network
