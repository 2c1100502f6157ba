// The minibatches of an epoch, laid out one after another: the images of a data set in a new order, each moved, turned
// and scaled a little.
//
// Random numbers are a hash of (seed, epoch, image, use): no generator has a state, any of them can be computed by any
// thread, and they are the same on every device. The order is a permutation that is evaluated image by image: a Feistel
// network permutes the numbers of 2k bits; where it leaves 0..n, it is applied again, until it comes back.
#pragma once
#include "lenet/lenet.h"

namespace tp::lenet {

struct MinibatchArgs {
  int64_t images;
  const uint8_t* x;             // [images, 1, 32, 32]
  const int64_t* target;        // [images]
  const int64_t *seed, *epoch;  // on the device: a CUDA graph reads them at every replay
  bool shuffle, distort;
  void* out;            // like x: normalized floats where `distort`, else bytes
  int64_t* out_target;  // [images]
};

// Runs on the context's device.
void minibatches(const MinibatchArgs&, Context&);

namespace detail {
void minibatches_on_gpu(const MinibatchArgs&, Context&);
}

}  // namespace tp::lenet
