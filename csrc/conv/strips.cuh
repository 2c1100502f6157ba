// What the kernels of register_tiled share: how a block brings images into shared memory, and how a thread reads strips
// of them.
#pragma once
#include "block/load_store.cuh"
#include "block/pipeline.cuh"
#include "conv/divisor.h"
#include "conv/gather.h"

namespace tp::conv {

// `values` consecutive elements of shared memory, by vectors of `width`; `from` is aligned to a vector.
template <int width, int values, class A>
TP_DEVICE void load_strip(const A* from, A (&to)[values]) {
  using V = block::Vector<A, width>;
#pragma unroll
  for (int i = 0; i < values; i += width) {
    const V v = *reinterpret_cast<const V*>(from + i);
#pragma unroll
    for (int k = 0; k < width; ++k) {
      if (i + k < values) to[i + k] = v.v[k];
    }
  }
}

// Waits for the asynchronous copies that this thread has begun.
TP_DEVICE inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// A pitch of shared rows with room for `columns` values, such that vectors of `width` at the same column of consecutive
// rows lie in different banks: an odd number of vectors.
inline int pitch_for(int columns, int width) {
  const int vectors = ceil_div(columns, width);
  return (vectors + 1 - vectors % 2) * width;
}

// A window of a batch of images in shared memory: [images][channels][rows][pitch], whose first row and column are at
// any place of the image or outside of it, where zeros stand.
template <class T>
struct Window {
  using A = acc_t<T>;
  static constexpr int quad = 4;  // elements per access where rows are read whole

  const T* data;
  Strides strides;
  int height, width;                  // of the image
  int images, channels, rows, pitch;  // of the window
  Divisor per_channels, per_rows, per_row;
  bool whole;  // every window covers whole rows of the image, whose quads are aligned

  Window(const T* data, const Strides& strides, int64_t height, int64_t width, int images, int channels, int rows,
         int pitch, int first_col)
      : data(data),
        strides(strides),
        height(int(height)),
        width(int(width)),
        images(images),
        channels(channels),
        rows(rows),
        pitch(pitch),
        per_channels(channels),
        per_rows(rows),
        per_row(is_whole(first_col) ? width / quad : pitch),
        whole(is_whole(first_col)) {}

  // With what stands behind it on a whole quad.
  TP_HD int values() const { return ceil_div(images * channels * rows * pitch, quad) * quad; }

#ifdef __CUDACC__
  // Zeros where fill() writes nothing, for windows that begin at the same column.
  TP_DEVICE void clear(A* window, int t, int threads) const {
    if (!whole) return;
    for (int i = t; i < values(); i += threads) window[i] = A(0);
  }
  // `count` channels of the images from (image, channel, row, col) on; those beyond `image_end` are left as they are.
  // Rows outside of the image are written as zeros. What needs no conversion is copied asynchronously: call
  // wait_for_copies() before the barrier.
  TP_DEVICE void fill(A* window, int64_t image, int64_t image_end, int64_t channel, int count, int row, int col, int t,
                      int threads) const {
    const T* const origin = data + image * strides.image + channel * strides.channel;
    const int present = image_end - image < images ? int(image_end - image) : images;
    const int total = present * channels * rows * int(per_row.value);
    if (whole) {
#pragma unroll 4
      for (int i = t; i < total; i += threads) fill_quad(window, origin, i, count, row, col);
    } else {
#pragma unroll 4
      for (int i = t; i < total; i += threads) fill_one(window, origin, i, count, row, col);
    }
  }
#endif

 private:
  bool is_whole(int first_col) const {
    return first_col <= 0 && width - first_col <= pitch && pitch % quad == 0 && width % quad == 0 && strides.col == 1 &&
           strides.row % quad == 0 && strides.channel % quad == 0 && strides.image % quad == 0 &&
           reinterpret_cast<uintptr_t>(data) % (quad * sizeof(T)) == 0;
  }

#ifdef __CUDACC__
  // Item i of a window: where it goes, its place in the row, and the row of the image that it comes from, if any.
  struct Item {
    int at, place;
    const T* from;
    bool needed;
  };
  TP_DEVICE Item locate(const T* origin, int i, int count, int first_row) const {
    Item item{0, i, nullptr, false};
    int row = per_row.divide(item.place);
    item.at = row * pitch;
    int channel = per_rows.divide(row);
    const int image = per_channels.divide(channel), source = first_row + row;
    item.needed = channel < count;
    if (item.needed && source >= 0 && source < height) {
      item.from = origin + image * strides.image + channel * strides.channel + source * strides.row;
    }
    return item;
  }
  TP_DEVICE void fill_one(A* window, const T* origin, int i, int count, int row, int col) const {
    const Item item = locate(origin, i, count, row);
    if (!item.needed) return;
    const int source = col + item.place;
    const bool exists = item.from && source >= 0 && source < width;
    A* const to = window + item.at + item.place;
    const T* const from = item.from + source * strides.col;
    if constexpr (std::is_same<T, float>::value) {
      if (exists) return block::copy_async<4>(to, from);
    }
    *to = exists ? A(*from) : A(0);
  }
  TP_DEVICE void fill_quad(A* window, const T* origin, int i, int count, int row, int col) const {
    const Item item = locate(origin, i, count, row);
    if (!item.needed) return;
    A* const to = window + item.at + item.place * quad - col;
    const T* const from = item.from + item.place * quad;
    if constexpr (std::is_same<T, A>::value) {
      if (item.from && col % quad == 0) {
#pragma unroll
        for (int k = 0; k < quad; k += 16 / int(sizeof(T))) block::copy_async<16>(to + k, from + k);
        return;
      }
    }
    block::Vector<T, quad> values{};
    if (item.from) values = *reinterpret_cast<const block::Vector<T, quad>*>(from);
#pragma unroll
    for (int k = 0; k < quad; ++k) to[k] = A(values.v[k]);
  }
#endif
};

}  // namespace tp::conv
