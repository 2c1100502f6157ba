// LeNet-5 in the fewest launches: one for the outputs, and two for a training step (forward and backward of a
// minibatch, then the update).
//
// The network is small: 0.15 million products per image, since S2 and S4 pool before they convolve
// (fused/network.cuh). A third of them, and most of the 62 thousand weights, are in C5. So the time goes to launches,
// barriers and memory latency rather than arithmetic. Therefore a cluster of two blocks takes a few images through the
// whole network, forward and backward, in shared memory (fused/network.cuh), and writes to global memory only what the
// gradients of the weights need. The update kernel computes those gradients and applies them. All sums have a fixed
// order. Each kernel is launched while the previous one still runs, and waits for it only where it needs its results:
// the pixels of a minibatch are read while the weights are still being updated.
#include "lenet/lenet.h"
#ifdef __CUDACC__
#include "lenet/fused/backward.cuh"
#include "lenet/fused/forward.cuh"
#include "lenet/fused/update.cuh"

namespace tp::lenet {
namespace network {

constexpr int most_shared_bytes = 227 * 1024;  // per block, from compute capability 9.0 on
constexpr int most_at_once = 4;                // images of a cluster

// Initializes shared memory once, before the first group of images.
template <int images>
TP_DEVICE void prepare(const Team<images>& t) {
  if (t.thread < 32) {
    for (auto& image : t.room.image) image.ones[t.thread] = 1;
  }
  if (t.thread == 0) {
    t.room.weights_arrived.init(1);
    if constexpr (images == 1) {
      const auto expect = [](auto& barrier, int values) {
        barrier.init(1);
        barrier.expect(values * int(sizeof(float)));
        barrier.arrive();
      };
      expect(t.room.c5_arrived, c5_half);
      expect(t.room.shares_arrived, s4_values);
    }
  }
  // The other block runs after this, so that its shared memory may be written, and all threads see the barrier.
  t.sync_cluster();
}

// Waits for all values of the phase before, of this block and of the partner.
template <int images>
TP_DEVICE void exchange(const Team<images>& t, const block::Barrier& arrived) {
  if constexpr (images > 1) return t.sync_cluster();
  t.sync();
  arrived.wait(0);
}

// Computes the outputs; without training it also writes them to global memory.
template <int images, bool train>
TP_DEVICE void forward(const Team<images>& t, const StepParams& p, int first) {
  t.sync();
  c1_s2(t, p);
  t.sync();
  box_s2(t);
  t.sync();
  c3(t);
  t.sync();
  s4(t, p);
  t.room.weights_arrived.wait(0);
  if constexpr (images == 1) t.sync();
  if constexpr (images > 1) t.sync_cluster();
  c5(t, p);
  exchange(t, t.room.c5_arrived);
  f6(t, p);
  t.sync();
  output<images, train>(t, p, first);
  t.sync();
}

// The backward pass. It also reads the pixels of the images from `next` on, but late, because registers are scarce
// until then.
template <int images>
TP_DEVICE void backward(const Team<images>& t, const StepParams& p, int first, int next, Pixels<images>& pixels,
                        ConvGradients<images>& gradients) {
  loss(t, p, first, pixels.label);
  t.sync();
  f6_gradient(t, p);
  t.sync();
  c5_gradient_parts(t);
  t.sync();
  c5_gradient(t, p);
  if constexpr (images == 1) t.sync();
  if constexpr (images > 1) t.sync_cluster();
  s4_gradient_parts(t);
  t.sync();
  s4_gradient_shares(t);
  exchange(t, t.room.shares_arrived);
  s4_gradient(t, p);
  save(t, p, first);
  t.sync();
  c3_wgrad(t, gradients);
  c3_dgrad(t);
  t.sync();
  if constexpr (images == most_at_once) pixels.load(t, p, next);
  if constexpr (images == 1) {
    add_partials(t);
    t.sync();
  }
  s2_gradient(t, p);
  t.sync();
  c1_wgrad(t, gradients);
}

// Each cluster takes every `clusters`-th group of images. Groups of fewer than most_at_once images are used only if
// each cluster has one. Then there is no loop around the phases: the compiler would compute the indices of all of them
// before it, in every thread.
template <int images, bool train>
__global__ void __launch_bounds__(threads, 1) step_kernel(const __grid_constant__ StepParams p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  const Team<images> t(memory);
  const int stride = int(gridDim.x) / ranks * images;
  int first = int(blockIdx.x) / ranks * images;
  Pixels<images> pixels;
  pixels.load(t, p, first);
  prepare(t);
  block::wait_for_launch_before();
  block::allow_next_launch();
  load_weights(t, p);
  ConvGradients<images> gradients;
  const auto take = [&](int next) {
    pixels.store_boxes(t, p);
    if constexpr (!train) pixels.load(t, p, next);
    forward<images, train>(t, p, first);
    if constexpr (train) backward(t, p, first, next, pixels, gradients);
    t.sync();
  };
  if constexpr (images < most_at_once) {
    take(p.count);
  } else {
    for (; first < p.count; first += stride) take(first + stride);
  }
  if constexpr (train) store_conv_gradients(t, p, gradients);
#endif
}

// `early`: the previous launch on the stream is of this operator, and did not write any of the images.
template <class Params>
void launch(void (*kernel)(Params), int blocks, int cluster, int shared_bytes, bool early, Context& context,
            const Params& p) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = size_t(shared_bytes);
  config.stream = cudaStream_t(context.stream);
  config.attrs = attributes;
  if (early) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(cluster), 1, 1};
  }
  cudaLaunchKernelEx(&config, kernel, p);
  check_launch("fused");
}

// Returns the number of partial sums of the convolutions' gradients.
template <int images, bool train>
int launch_step(const StepParams& p, int most_clusters, bool early, Context& context) {
  static_assert(sizeof(Room<images>) <= most_shared_bytes, "a block's shared memory");
  constexpr int bytes = int(sizeof(Room<images>));
  const auto kernel = step_kernel<images, train>;
  block::allow_shared_memory(kernel, bytes);
  const int groups = ceil_div(p.count, images), rounds = ceil_div(groups, most_clusters);
  const int clusters = ceil_div(groups, rounds);
  launch(kernel, clusters * ranks, ranks, bytes, early, context, p);
  return images == 1 ? clusters : clusters * ranks;
}

StepParams step_params(const Args& args) {
  StepParams p{};
  p.x = args.x;
  p.x_is_bytes = args.x_is_bytes;
  p.target = args.target;
  p.rbf = args.output == Output::rbf;
  p.out = static_cast<float*>(args.out);
  p.activation = {args.activation == Activation::bipolar_sigmoid ? 0.5f : 1.0f, args.activation == Activation::relu};
  for (int i = 0; i < most_parameters; ++i) p.parameters[i] = static_cast<const float*>(args.parameters[i]);
  return p;
}

// The fewer images there are, the fewer images a cluster takes at once.
int launch_train(const StepParams& p, int most_clusters, bool early, Context& context) {
  if (p.count <= most_clusters) return launch_step<1, true>(p, most_clusters, early, context);
  if (p.count <= 2 * most_clusters) return launch_step<2, true>(p, most_clusters, early, context);
  return launch_step<most_at_once, true>(p, most_clusters, early, context);
}

constexpr int64_t most_images = 1 << 20;  // per launch of the forward pass

void run_forward(const Args& args, int most_clusters, Context& context) {
  StepParams p = step_params(args);
  for (p.first = 0; p.first < args.images; p.first += most_images) {
    p.count = int(tp::min(most_images, args.images - p.first));
    launch_step<most_at_once, false>(p, most_clusters, false, context);
  }
}

Saved allocate_saved(int64_t images, int blocks, Context& context) {
  const auto floats = [&](int64_t n) { return context.workspace<float>(n); };
  return {floats(images * s4_values),
          floats(images * c5_outputs),
          floats(images * f6_outputs),
          floats(images * c5_outputs),
          floats(images * f6_outputs),
          floats(images * padded_classes),
          floats(images),
          context.workspace<int>(images),
          floats(int64_t(blocks) * conv_parameters)};
}

void run_training(const Args& args, int most_clusters, Context& context) {
  StepParams p = step_params(args);
  p.saved = allocate_saved(tp::min(args.batch, args.images), most_clusters * ranks, context);
  UpdateParams u{};
  u.saved = p.saved;
  u.rbf = p.rbf;
  u.momentum = static_cast<const float*>(args.momentum);
  u.weight_decay = static_cast<const float*>(args.weight_decay);
  for (int i = 0; i < most_parameters; ++i) {
    u.parameters[i] = static_cast<float*>(args.parameters[i]);
    u.momenta[i] = static_cast<float*>(args.momenta[i]);
  }
  for (int64_t step = 0; step * args.batch < args.images; ++step) {
    p.first = step * args.batch;
    p.count = u.count = int(tp::min(args.batch, args.images - p.first));
    u.partials = launch_train(p, most_clusters, step > 0, context);
    u.lr = static_cast<const float*>(args.lr) + step * args.lr_stride;
    u.loss = static_cast<float*>(args.losses) + step;
    u.hits = args.hits + step;
    launch(update_kernel, update_blocks, 1, 0, true, context, u);
  }
}

}  // namespace network

const char* fused_refuses(const Args& args) {
  if (args.dtype != DType::float32) return "it computes in float32";
  if (args.pooling != Pooling::subsample) return "its pooling is \"subsample\"";
  if (args.batch > network::most_images) return "a minibatch has at most 1048576 images";
  for (const Parameter weight : {c5_weight, f6_weight, output_weight}) {
    if (reinterpret_cast<uintptr_t>(args.parameters[weight]) % 16 != 0)
      return "its weights lie at multiples of 16 bytes";
  }
  if (!block::is_for_hopper(network::step_kernel<network::most_at_once, false>))
    return "it needs compute capability 9.0";
  return nullptr;
}

void fused(const Args& args, Context& context) {
  const char* refusal = fused_refuses(args);
  if (refusal != nullptr) fail(ErrorKind::value, "lenet5: algorithm 'fused' cannot serve this call: ", refusal);
  const int most_clusters = block::device_attribute<cudaDevAttrMultiProcessorCount>() / network::ranks;
  args.train ? network::run_training(args, most_clusters, context) : network::run_forward(args, most_clusters, context);
}

}  // namespace tp::lenet
#else
namespace tp::lenet {

const char* fused_refuses(const Args&) { return "this library was built without CUDA"; }

}  // namespace tp::lenet
#endif
