// The phases of the backward pass. Each is called by all threads of a block; the caller puts the barriers between them.
//
// The update, which sees all images at once, computes the gradients of the dense layers' weights. Those of the
// convolutions' weights are summed in registers over the images of a block (ConvGradients): the same thread adds the
// same weights for every image, so the order is the same in every run.
#pragma once
#include "lenet/fused/network.cuh"

namespace tp::lenet::network {

// Backward through OUTPUT: the gradients at F6.
template <int images>
TP_DEVICE void f6_gradient(const Team<images>& t, const StepParams& p) {
  if (t.thread >= t.own * f6_outputs) return;
  auto& image = t.room.image[t.thread / f6_outputs];
  const int k = t.thread % f6_outputs;
  const float y = image.f6[k];
  float sum = 0;
#pragma unroll
  for (int c = 0; c < classes; ++c) {
    const float w = t.room.output_weight[c * f6_outputs + k];
    sum += image.out_grad[c] * (p.rbf ? w - y : w);
  }
  image.f6_grad[k] = p.activation.gradient(sum, y);
}

// Multiplies by the transposed weights of a dense layer, for n images whose gradients are `stride` words apart: `parts`
// threads share the sum over the outputs for four inputs. The result is to[part][image][input].
template <int parts, int n, int inputs, int outputs>
TP_DEVICE void dense_transposed(int thread, const float* weights, const float* grads, int stride, float* to) {
  constexpr int quads = inputs / 4, rows = outputs / parts;
  static_assert(quads * parts <= threads && rows * parts == outputs, "one task per thread");
  if (thread >= quads * parts) return;
  const int quad = thread % quads, part = thread / quads;
  float4 sum[n] = {};
#pragma unroll 3
  for (int r = 0; r < rows; ++r) {
    const float4 w = load4(weights + (part * rows + r) * inputs + 4 * quad);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float g = grads[i * stride + part * rows + r];
      sum[i].x += w.x * g, sum[i].y += w.y * g, sum[i].z += w.z * g, sum[i].w += w.w * g;
    }
  }
#pragma unroll
  for (int i = 0; i < n; ++i) *reinterpret_cast<float4*>(to + (part * n + i) * inputs + 4 * quad) = sum[i];
}

constexpr int f6_parts = 14, c5_parts = 4;

// Backward through F6: partial sums of the gradients at C5.
template <int images>
TP_DEVICE void c5_gradient_parts(const Team<images>& t) {
  dense_transposed<f6_parts, Team<images>::own, c5_outputs, f6_outputs>(
      t.thread, t.room.f6_weight, t.room.image[0].f6_grad, image_words, t.room.scratch);
}

// Adds up the partial sums. Each gradient at C5 goes to the block that has the weights of that output.
template <int images>
TP_DEVICE void c5_gradient(const Team<images>& t, const StepParams& p) {
  if (t.thread >= t.own * c5_outputs) return;
  const int i = t.thread / c5_outputs, k = t.thread % c5_outputs, half = k / c5_half;
  float sum = 0;
#pragma unroll
  for (int part = 0; part < f6_parts; ++part) sum += t.room.scratch[(part * t.own + i) * c5_outputs + k];
  if (t.shared_image && half != t.rank) return;
  t.room_of(half).c5_grad[t.slot(i)][k % c5_half] = p.activation.gradient(sum, t.room.image[i].c5[k]);
}

// Backward through this block's half of C5: partial sums of its share of the gradients at S4, for all images of the
// cluster.
template <int images>
TP_DEVICE void s4_gradient_parts(const Team<images>& t) {
  dense_transposed<c5_parts, images, s4_values, c5_half>(t.thread, t.room.c5_weight, t.room.c5_grad[0], c5_half,
                                                         t.room.scratch);
}

// The offset in the scratch memory of the shares [rank][image][value]. They are at its end, which no phase since the
// last barrier of the cluster uses, because the other block may write them while this block is still in an earlier
// phase.
template <int images>
constexpr int shares_at = scratch_words - ranks * Team<images>::own * s4_values;

// Adds up the partial sums. Each share goes to the owner of the image.
template <int images>
TP_DEVICE void s4_gradient_shares(const Team<images>& t) {
  constexpr int own = Team<images>::own, shares = shares_at<images>;
  static_assert(c5_parts * images * s4_values <= shares && f6_parts * own * c5_outputs <= shares,
                "the shares lie behind the parts");
  if (t.thread >= s4_values) return;
#pragma unroll
  for (int n = 0; n < images; ++n) {
    float sum = 0;
#pragma unroll
    for (int part = 0; part < c5_parts; ++part) sum += t.room.scratch[(part * images + n) * s4_values + t.thread];
    const int at = shares + (t.rank * own + n % own) * s4_values + t.thread;
    if (t.shared_image) {
      t.room.scratch[at] = sum;
      t.send(t.room.scratch[at], sum, t.room.shares_arrived);
    } else {
      t.room_of(n / own).scratch[at] = sum;
    }
  }
}

// Adds the two shares and computes the gradients at the arguments of S4's activation. Both blocks of a shared image
// compute the same.
template <int images>
TP_DEVICE void s4_gradient(const Team<images>& t, const StepParams& p) {
  constexpr int own = Team<images>::own;
  const float* shares = t.room.scratch + shares_at<images>;
  const int k = t.thread;
  if (k >= s4_values) return;
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const float sum = shares[i * s4_values + k] + shares[(own + i) * s4_values + k];
    t.room.image[i].s4_grad[k % s4_pixels * maps_stride + k / s4_pixels] =
        p.activation.gradient(sum, t.room.s4[t.slot(i)][k]);
  }
}

// Writes to global memory what the update needs of the dense layers. No barrier of the cluster follows for this group
// of images, because it would wait for these writes.
template <int images>
TP_DEVICE void save(const Team<images>& t, const StepParams& p, int first) {
  const auto copy = [&](float* to, const float* from, int count) {
    if (t.thread < count) to[t.thread] = from[t.thread];
  };
#pragma unroll
  for (int i = 0; i < t.own; ++i) {
    const int64_t n = first + t.slot(i);
    const auto& image = t.room.image[i];
    if (n >= p.count || !t.writes()) continue;
    copy(p.saved.s4 + n * s4_values, t.room.s4[t.slot(i)], s4_values);
    copy(p.saved.c5 + n * c5_outputs, image.c5, c5_outputs);
    copy(p.saved.f6 + n * f6_outputs, image.f6, f6_outputs);
    copy(p.saved.f6_grad + n * f6_outputs, image.f6_grad, f6_outputs);
    copy(p.saved.out_grad + n * padded_classes, image.out_grad, padded_classes);
  }
#pragma unroll
  for (int slot = 0; slot < images; ++slot) {
    const int64_t n = first + slot;
    if (n < p.count) copy(p.saved.c5_grad + n * c5_outputs + t.rank * c5_half, t.room.c5_grad[slot], c5_half);
  }
}

// How threads divide the gradients of the convolutions. If the blocks share an image, each has half of the maps: for
// the weights of C3, half of C3's maps; for the gradients at S2, half of S2's maps.
template <int images>
struct Shares {
  static constexpr int own = Team<images>::own;
  static constexpr int s2_maps = images == 1 ? c1_maps / ranks : c1_maps;
  static constexpr int s4_maps = images == 1 ? c3_maps / ranks : c3_maps;
  // Half of the warps compute the gradients of C3's weights while the others compute those at S2.
  static constexpr int half_warps = warps / 2;

  // C3's weights: the number of maps of S4 per warp.
  static constexpr int wgrad_maps = s4_maps * own / half_warps, wgrad_groups = s4_maps / wgrad_maps;
  static_assert(wgrad_groups * own == half_warps, "one group of maps per warp");

  // S2's gradients: the number of maps of S4 per lane, and the number of partial sums that result.
  static constexpr int dgrad_maps = own == 1 ? 2 : 4, partials = c3_maps / dgrad_maps;
  static constexpr int groups_per_warp = c1_maps / s2_maps;
  static constexpr int per_map = s2_boxes * s2_boxes, per_partial = s2_maps * per_map;
  // For a single image, a phase of its own adds up the partial sums before s2_gradient reads them.
  static constexpr int partials_read = images == 1 ? 1 : partials;
  static_assert(own * partials * per_partial <= scratch_words, "partial sums must fit the scratch memory");

  // C1's weights: the number of maps of S2 per thread. A thread's task is (image, group of maps, row of the kernel or
  // bias, row of S2).
  static constexpr int c1_group = images == 1 ? 1 : 3, c1_groups = s2_maps / c1_group, c1_rows = kernel + 1;
  static constexpr int c1_tasks = own * c1_groups * c1_rows * s2_size;
  static_assert(c1_tasks <= threads, "one task per thread");
};

// A thread's sums for weights of C3 and C1 over all images so far.
template <int images>
struct ConvGradients {
  float c3[Shares<images>::wgrad_maps][kernel] = {};
  float c1[Shares<images>::c1_group][kernel] = {};
};

// The gradients of C3's weights, by the first half of the warps: a lane has one map of S2 and one row of the kernel,
// and a warp has a few maps of C3. Lane 30 reads ones instead of S2, so its first sum is the gradient of the bias.
template <int images>
TP_DEVICE void c3_wgrad(const Team<images>& t, ConvGradients<images>& gradients) {
  using S = Shares<images>;
  constexpr int maps = S::wgrad_maps;
  constexpr int bias_lane = c1_maps * kernel;
  if (t.warp >= S::half_warps || t.lane > bias_lane) return;
  const auto& image = t.room.image[t.warp / S::wgrad_groups];
  const int first_map = (t.shared_image ? t.rank * S::s4_maps : 0) + t.warp % S::wgrad_groups * maps;
  const bool is_bias = t.lane == bias_lane;
  const float* boxes = is_bias ? image.ones : image.s2_boxes + t.lane / kernel * s2_stride + t.lane % kernel * s2_boxes;
  const int row_stride = is_bias ? 0 : 2 * s2_boxes;
  const float* grads = image.s4_grad + first_map;
#pragma unroll 1
  for (int a = 0; a < s4_size; ++a) {
    float x[s2_boxes];
#pragma unroll
    for (int k = 0; k < s2_boxes; ++k) x[k] = boxes[a * row_stride + k];
#pragma unroll
    for (int b = 0; b < s4_size; ++b) {
      float g[maps];
      load_words(g, grads + (a * s4_size + b) * maps_stride);
#pragma unroll
      for (int m = 0; m < maps; ++m) {
#pragma unroll
        for (int j = 0; j < kernel; ++j) gradients.c3[m][j] += g[m] * x[2 * b + j];
      }
    }
  }
}

// Divides the rows of S2's boxes (0 to 12) into five sets of equal work. Row y gets the products of rows a of S4 and
// rows i of the kernel with 2a + i = y; each set has five such pairs. A pair is encoded as a + 8 i, plus 64 if it is
// the last of its row.
TP_DEVICE inline uint64_t row_pairs(int set) {
  constexpr auto pack = [](int a0, int i0, bool last0, int a1, int i1, bool last1, int a2, int i2, bool last2, int a3,
                           int i3, bool last3, int a4, int i4) {
    const auto pair = [](int a, int i, bool last) { return uint64_t(a + 8 * i + 64 * last); };
    return pair(a0, i0, last0) | pair(a1, i1, last1) << 8 | pair(a2, i2, last2) << 16 | pair(a3, i3, last3) << 24 |
           pair(a4, i4, true) << 32;
  };
  constexpr uint64_t rows_4_2 = pack(0, 4, false, 1, 2, false, 2, 0, true, 0, 2, false, 1, 0);
  constexpr uint64_t rows_6_3 = pack(1, 4, false, 2, 2, false, 3, 0, true, 0, 3, false, 1, 1);
  constexpr uint64_t rows_8_5 = pack(2, 4, false, 3, 2, false, 4, 0, true, 1, 3, false, 2, 1);
  constexpr uint64_t rows_0_1_7_11 = pack(0, 0, true, 0, 1, true, 2, 3, false, 3, 1, true, 4, 3);
  constexpr uint64_t rows_9_10_12 = pack(3, 3, false, 4, 1, true, 3, 4, false, 4, 2, true, 4, 4);
  return set == 0 ? rows_4_2 : set == 1 ? rows_6_3 : set == 2 ? rows_8_5 : set == 3 ? rows_0_1_7_11 : rows_9_10_12;
}

// Backward through C3, by the second half of the warps: a lane computes one set of rows of one map's boxes, summed over
// a few maps of C3. It computes no product with padding.
template <int images>
TP_DEVICE void c3_dgrad(const Team<images>& t) {
  using S = Shares<images>;
  constexpr int maps = S::dgrad_maps, lanes = S::s2_maps * kernel;
  const int task = t.warp - S::half_warps, group_in_warp = t.lane / lanes;
  constexpr int warps_per_image = S::partials / S::groups_per_warp;
  if (task < 0 || task >= S::own * warps_per_image || group_in_warp >= S::groups_per_warp) return;
  const int i = task / warps_per_image, partial = task % warps_per_image * S::groups_per_warp + group_in_warp;
  const int map = t.lane % lanes / kernel, set = t.lane % kernel;
  const int s2_map = map + (t.shared_image ? t.rank * S::s2_maps : 0);
  const float* grads = t.room.image[i].s4_grad + partial * maps;
  const float* weights = t.room.c3_weight + s2_map * c3_stride + partial * maps;
  float* to = t.room.scratch + (i * S::partials + partial) * S::per_partial + map * S::per_map;
  uint64_t pairs = row_pairs(set);
  float sum[s2_boxes] = {};
#pragma unroll 1
  for (int step = 0; step < s4_size; ++step, pairs >>= 8) {
    const int a = int(pairs) & 7, row = int(pairs) >> 3 & 7;
    const bool last = int(pairs) & 64;
    float g[s4_size][maps], w[kernel][maps];
#pragma unroll
    for (int k = 0; k < kernel; ++k) {
      load_words(g[k], grads + (a * s4_size + k) * maps_stride);
      load_words(w[k], weights + (row * kernel + k) * maps_stride);
    }
#pragma unroll
    for (int b = 0; b < s4_size; ++b) {
#pragma unroll
      for (int j = 0; j < kernel; ++j) {
#pragma unroll
        for (int m = 0; m < maps; ++m) sum[2 * b + j] += g[b][m] * w[j][m];
      }
    }
    if (last) {
      const int y = 2 * a + row;
#pragma unroll
      for (int x = 0; x < s2_boxes; ++x) {
        to[y * s2_boxes + x] = sum[x];
        sum[x] = 0;
      }
    }
  }
}

// Adds up the partial sums of c3_dgrad, into the first of them.
template <int images>
TP_DEVICE void add_partials(const Team<images>& t) {
  using S = Shares<images>;
  static_assert(S::own == 1 && S::per_partial <= threads, "one thread per box of the image");
  if (t.thread >= S::per_partial) return;
  float* to = t.room.scratch + t.thread;
  float sum = 0;
#pragma unroll
  for (int q = 0; q < S::partials; ++q) sum += to[q * S::per_partial];
  *to = sum;
}

// Backward through the means over 2x2 pixels: the gradients at the arguments of S2's activation replace its values. A
// thread goes down a column of pixels.
template <int images>
TP_DEVICE void s2_gradient(const Team<images>& t, const StepParams& p) {
  using S = Shares<images>;
  constexpr int rows = S::own == 1 && S::s2_maps < c1_maps ? 2 : 7, parts = s2_size / rows;
  constexpr int tasks = S::own * S::s2_maps * parts * s2_size;
  static_assert(tasks <= threads, "one task per thread");
  if (t.thread >= tasks) return;
  const int v = t.thread % s2_size, part = t.thread / s2_size % parts, map = t.thread / (s2_size * parts) % S::s2_maps;
  const int i = t.thread / (s2_size * parts * S::s2_maps);
  const float* from = t.room.scratch + i * S::partials * S::per_partial + map * S::per_map;
  // The sum of the boxes (y, v - 1) and (y, v), if they exist. All loads are unconditional.
  const int left = tp::max(v - 1, 0), right = tp::min(v, s2_boxes - 1);
  const float has_left = v > 0 ? 0.25f : 0, has_right = v < s2_boxes ? 0.25f : 0;
  const auto row_sum = [&](int y) {
    const bool has_row = y >= 0 && y < s2_boxes;
    float left_sum = 0, right_sum = 0;
#pragma unroll
    for (int q = 0; q < S::partials_read; ++q) {
      const float* row = from + q * S::per_partial + (has_row ? y : 0) * s2_boxes;
      left_sum += row[left];
      right_sum += row[right];
    }
    return has_row ? has_left * left_sum + has_right * right_sum : 0;
  };
  float* s2 = t.room.image[i].s2 + (map + (t.shared_image ? t.rank * S::s2_maps : 0)) * s2_pixels + v;
  float above = row_sum(part * rows - 1);
#pragma unroll 2
  for (int r = 0; r < rows; ++r) {
    const int u = part * rows + r;
    const float below = row_sum(u);
    s2[u * s2_size] = p.activation.gradient(above + below, s2[u * s2_size]);
    above = below;
  }
}

// The gradients of C1's weights: a thread has one row of S2, one row of the kernel and a few maps. A sixth row of the
// kernel stands for the bias: it reads ones instead of the image, so its first sum is the gradient of the bias.
template <int images>
TP_DEVICE void c1_wgrad(const Team<images>& t, ConvGradients<images>& gradients) {
  using S = Shares<images>;
  constexpr int maps = S::c1_group;
  if (t.thread >= S::c1_tasks) return;
  const int u = t.thread % s2_size, row = t.thread / s2_size % S::c1_rows;
  const int group = t.thread / (s2_size * S::c1_rows) % S::c1_groups;
  const auto& image = t.room.image[t.thread / (s2_size * S::c1_rows * S::c1_groups)];
  const int first_map = (t.shared_image ? t.rank * S::s2_maps : 0) + group * maps;
  const float* boxes = row == kernel ? image.ones : image.boxes + (2 * u + row) * image_stride;
  const float* grads = image.s2 + first_map * s2_pixels + u * s2_size;
#pragma unroll
  for (int v = 0; v < s2_size; ++v) {
#pragma unroll
    for (int m = 0; m < maps; ++m) {
      const float g = grads[m * s2_pixels + v];
#pragma unroll
      for (int j = 0; j < kernel; ++j) gradients.c1[m][j] += g * boxes[image_box(0, 2 * v + j)];
    }
  }
}

// The sums of a block's threads in scratch memory: those of C3 for all images but the first, followed by those of S2's
// rows for C1.
template <int images>
struct ConvSums {
  using S = Shares<images>;
  static constexpr int per_map = c1_maps * taps + 1, c3_sums = S::s4_maps * per_map;
  static constexpr int per_c1_map = S::c1_rows * kernel, c1_rows = S::own * s2_size;
  static_assert((S::own - 1) * c3_sums + c1_rows * S::s2_maps * per_c1_map <= scratch_words,
                "sums must fit the scratch memory");
  float *c3, *c1;
  int image, map;  // of C3: lanes are assigned as in c3_wgrad
  bool has_c3;     // whether this lane has sums of C3

  TP_DEVICE explicit ConvSums(const Team<images>& t)
      : c3(t.room.scratch),
        c1(t.room.scratch + (S::own - 1) * c3_sums),
        image(t.warp / S::wgrad_groups),
        map(t.warp % S::wgrad_groups * S::wgrad_maps),
        has_c3(t.warp < S::half_warps && t.lane <= c1_maps * kernel) {}
};

// Stores the sums of this thread, except those of C3 for the first image, which stay in registers.
template <int images>
TP_DEVICE __forceinline__ void stage_conv_gradients(const Team<images>& t, const ConvSums<images>& sums,
                                                    const ConvGradients<images>& gradients) {
  using S = Shares<images>;
  using Sums = ConvSums<images>;
  if (sums.has_c3 && sums.image > 0) {
#pragma unroll
    for (int m = 0; m < S::wgrad_maps; ++m) {
#pragma unroll
      for (int j = 0; j < kernel; ++j) {
        if (t.lane == c1_maps * kernel && j > 0) continue;
        sums.c3[(sums.image - 1) * Sums::c3_sums + (sums.map + m) * Sums::per_map + t.lane * kernel + j] =
            gradients.c3[m][j];
      }
    }
  }
  if (t.thread < S::c1_tasks) {
    const int u = t.thread % s2_size, row = t.thread / s2_size % S::c1_rows;
    const int group = t.thread / (s2_size * S::c1_rows) % S::c1_groups;
    const int of_image = t.thread / (s2_size * S::c1_rows * S::c1_groups);
#pragma unroll
    for (int m = 0; m < S::c1_group; ++m) {
#pragma unroll
      for (int j = 0; j < kernel; ++j) {
        const int line = (of_image * s2_size + u) * S::s2_maps + group * S::c1_group + m;
        sums.c1[line * Sums::per_c1_map + row * kernel + j] = gradients.c1[m][j];
      }
    }
  }
}

// Adds up the sums of a block's threads and writes them to the block's partial sums, in the order of the parameters. If
// the blocks share an image, each writes its own maps.
template <int images>
TP_DEVICE void store_conv_gradients(const Team<images>& t, const StepParams& p,
                                    const ConvGradients<images>& gradients) {
  using S = Shares<images>;
  using Sums = ConvSums<images>;
  const int block = int(blockIdx.x), set = t.shared_image ? block / ranks : block;
  float* out = p.saved.conv_grad + int64_t(set) * conv_parameters;
  const Sums sums(t);
  stage_conv_gradients(t, sums, gradients);
  t.sync();
  // C3: the lanes of the first image add the sums of the other images to theirs.
  if (sums.has_c3 && sums.image == 0) {
    const int s4_map = (t.shared_image ? t.rank * S::s4_maps : 0) + sums.map;
#pragma unroll
    for (int m = 0; m < S::wgrad_maps; ++m) {
#pragma unroll
      for (int j = 0; j < kernel; ++j) {
        const bool is_bias = t.lane == c1_maps * kernel;
        if (is_bias && j > 0) continue;
        float sum = gradients.c3[m][j];
        for (int k = 1; k < S::own; ++k) {
          sum += sums.c3[(k - 1) * Sums::c3_sums + (sums.map + m) * Sums::per_map + t.lane * kernel + j];
        }
        out[is_bias ? s4_bias_at + s4_map + m : c3_weight_at + (s4_map + m) * c1_maps * taps + t.lane * kernel + j] =
            sum;
      }
    }
  }
  // C1: meanwhile, the other half of the block adds up the sums of the rows of S2.
  for (int e = t.thread - threads / 2; e >= 0 && e < S::s2_maps * Sums::per_c1_map; e += threads / 2) {
    const int s2_map = (t.shared_image ? t.rank * S::s2_maps : 0) + e / Sums::per_c1_map, tap = e % Sums::per_c1_map;
    if (tap > taps) continue;
    float sum = 0;
#pragma unroll 14
    for (int r = 0; r < Sums::c1_rows; ++r) sum += sums.c1[r * S::s2_maps * Sums::per_c1_map + e];
    out[tap == taps ? s2_bias_at + s2_map : s2_map * taps + tap] = sum;
  }
}

}  // namespace tp::lenet::network
