// The minibatches of an epoch, stored one after another: the images of a data set in a new order, each shifted, rotated
// and scaled a little.
//
// Random numbers are hashes of (seed, epoch, image, use). They need no generator state, so any thread can compute any
// of them, and they are the same on every device. The order of the images is a permutation that is evaluated image by
// image: a Feistel network permutes the numbers of 2k bits, and is applied again as long as its result is not less than
// the number of images.
#pragma once
#include "lenet/lenet.h"

namespace tp::lenet {

struct MinibatchArgs {
  int64_t images;
  const uint8_t* x;             // [images, 1, 32, 32]
  const int64_t* target;        // [images]
  const int64_t *seed, *epoch;  // on the device: a CUDA graph reads them at every replay
  bool shuffle, distort;
  void* out;            // like x: normalized floats if `distort`, else bytes
  int64_t* out_target;  // [images]
};

// Runs on the context's device.
void minibatches(const MinibatchArgs&, Context&);

namespace detail {
void minibatches_on_gpu(const MinibatchArgs&, Context&);
}

}  // namespace tp::lenet
