// A batch of images divided into boxes: several whole images if they are small, or parts of one if it is large.
#pragma once
#include "conv/conv.h"

namespace tp::conv {

// The pixels [h, h + height) x [w, w + width) of the images [image, image + images).
struct Tile {
  int64_t image, h, w, images, height, width;
  TP_HD int64_t pixels() const { return images * height * width; }
};

struct Tiling {
  int64_t images, height, width;  // of the whole batch
  Tile size;                      // of all tiles except the last ones

  // The smallest number of tiles of at most `most` pixels; all tiles have about the same size.
  Tiling(int64_t images, int64_t height, int64_t width, int64_t most) : images(images), height(height), width(width) {
    const int64_t w = even(width, most), h = even(height, w == width ? most / max(w, int64_t(1)) : 1);
    size = {0, 0, 0, even(images, h == height && w == width ? most / max(h * w, int64_t(1)) : 1), h, w};
  }
  int64_t count() const {
    return across(images, size.images) * across(height, size.height) * across(width, size.width);
  }
  Tile operator[](int64_t i) const {
    const int64_t columns = across(width, size.width), rows = across(height, size.height);
    Tile t = size;
    t.image = i / (rows * columns) * size.images;
    t.h = i / columns % rows * size.height;
    t.w = i % columns * size.width;
    t.images = min(size.images, images - t.image);
    t.height = min(size.height, height - t.h);
    t.width = min(size.width, width - t.w);
    return t;
  }

 private:
  static int64_t even(int64_t n, int64_t most) {
    return n <= most ? n : ceil_div(n, ceil_div(n, max(most, int64_t(1))));
  }
  static int64_t across(int64_t n, int64_t part) { return part ? ceil_div(n, part) : 0; }
};

}  // namespace tp::conv
