// Computes one output of an epoch's images, and the random distortion of its image.
#pragma once
#include "block/per_output.h"
#include "lenet/minibatches/minibatches.h"

namespace tp::lenet {

// The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection in which every output bit depends on every
// input bit.
TP_HD inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

TP_HD inline uint64_t epoch_key(int64_t seed, int64_t epoch) {
  return mix(mix(uint64_t(seed) + 0x9e3779b97f4a7c15u) + uint64_t(epoch));
}

// A random number, uniform in [-1, 1).
TP_HD inline float random_number(uint64_t key, int64_t image, int use) {
  return float(mix(key ^ mix(uint64_t(image) * 8 + uint64_t(use) + 1)) >> 40) * (1.0f / (1 << 23)) - 1;
}

// The index of the i-th image of the epoch: a random permutation of the n images.
TP_HD inline int64_t shuffled(uint64_t key, int64_t i, int64_t n) {
  int half = 1;  // bits
  while (int64_t(1) << 2 * half < n) ++half;
  const uint64_t mask = (uint64_t(1) << half) - 1;
  uint64_t x = uint64_t(i);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (mix(key + (round << 56) + right) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= uint64_t(n));
  return int64_t(x);
}

// How an image is distorted: pixel (row, column) of the result comes from (from_row, from_column) of the original,
//   from_column = cos column - sin row + right,   from_row = sin column + cos row + down,   relative to the centre.
struct Motion {
  int64_t image;
  float cos, sin, right, down;
};

constexpr float most_turn = 0.17453293f, most_zoom = 0.1f, most_shift = 2;  // 10 degrees, a tenth, 2 pixels

struct Draw {
  static constexpr const char* name = "lenet5_minibatches";
  const int64_t *target, *seed, *epoch;
  int64_t* out_target;
  Motion* motions;
  int64_t images;
  bool shuffle;

  template <class Block>
  TP_HD auto bind(Block&) const {
    return [*this](int64_t i) {
      return [*this, i](int64_t) {
        const uint64_t key = epoch_key(*seed, *epoch);
        const int64_t image = shuffle ? shuffled(key, i, images) : i;
        const float turn = most_turn * random_number(key, image, 0),
                    zoom = 1 + most_zoom * random_number(key, image, 1);
        motions[i] = {image, zoom * std::cos(turn), zoom * std::sin(turn), most_shift * random_number(key, image, 2),
                      most_shift * random_number(key, image, 3)};
        out_target[i] = target[image];
      };
    };
  }
};

// A pixel of the original; blank outside.
struct Original {
  const uint8_t* pixels;

  TP_HD float operator()(int row, int column) const {
    const bool inside = unsigned(row) < unsigned(image_size) && unsigned(column) < unsigned(image_size);
    return inside ? float(pixels[row * image_size + column]) : 0;
  }
};

// A pixel of a distorted image, interpolated between the four around it, and normalized.
struct Distort {
  static constexpr const char* name = "lenet5_minibatches";
  const uint8_t* x;
  const Motion* motions;
  float* out;

  template <class Block>
  TP_HD auto bind(Block&) const {
    return [*this](int64_t i) {
      const Motion m = motions[i];
      const Original original{x + m.image * image_pixels};
      float* to = out + i * image_pixels;
      return [=](int64_t pixel) {
        constexpr float centre = (image_size - 1) / 2.0f;
        const float row = float(int(pixel) / image_size) - centre, column = float(int(pixel) % image_size) - centre;
        const float from_row = m.sin * column + m.cos * row + m.down + centre;
        const float from_column = m.cos * column - m.sin * row + m.right + centre;
        const float top = std::floor(from_row), left = std::floor(from_column);
        const float below = from_row - top, beside = from_column - left;
        const int r = int(top), c = int(left);
        const float upper = original(r, c) * (1 - beside) + original(r, c + 1) * beside;
        const float lower = original(r + 1, c) * (1 - beside) + original(r + 1, c + 1) * beside;
        to[pixel] = (upper * (1 - below) + lower * below) * float(pixel_scale) + float(pixel_offset);
      };
    };
  }
};

struct Gather {
  static constexpr const char* name = "lenet5_minibatches";
  const uint8_t* x;
  const Motion* motions;
  uint8_t* out;

  template <class Block>
  TP_HD auto bind(Block&) const {
    return [*this](int64_t i) {
      const uint8_t* from = x + motions[i].image * image_pixels;
      uint8_t* to = out + i * image_pixels;
      return [=](int64_t pixel) { to[pixel] = from[pixel]; };
    };
  }
};

template <class Run>
void compute_minibatches(const MinibatchArgs& a, const Run& run) {
  if (a.images == 0) return;
  Motion* motions = run.context.template workspace<Motion>(a.images);
  run({a.images, 1, 200}, Draw{a.target, a.seed, a.epoch, a.out_target, motions, a.images, a.shuffle});
  if (a.distort) {
    run({a.images, image_pixels, 30}, Distort{a.x, motions, static_cast<float*>(a.out)});
  } else {
    run({a.images, image_pixels, 1}, Gather{a.x, motions, static_cast<uint8_t*>(a.out)});
  }
}

}  // namespace tp::lenet
