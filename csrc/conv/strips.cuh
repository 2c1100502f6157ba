// What the kernels of register_tiled share: how a block brings images into shared memory, and how a thread reads strips
// of them.
#pragma once
#include "block/load_store.cuh"
#include "conv/copies.cuh"
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

// A pitch of shared rows with room for `columns` values, such that vectors of `width` at the same column of consecutive
// rows lie in different banks: an odd number of vectors.
inline int pitch_for(int columns, int width) {
  const int vectors = ceil_div(columns, width);
  return (vectors + 1 - vectors % 2) * width;
}

// A window of a batch of images in shared memory: [images][channels][rows][pitch], whose first row and column are at
// any place of the image or outside of it, where zeros stand. Where a window covers whole rows, whose addresses allow
// it, it is filled by vectors of `vector` elements, and the columns beside the image are zeros from the beginning.
template <class T>
struct Window {
  using A = acc_t<T>;

  const T* data;
  Strides strides;
  int height, width;                                // of the image
  int images, channels, rows, pitch, image_values;  // of the window
  int vector;                                       // elements per access: 4, 2, or 1 for any window
  Divisor per_channels, per_rows, per_row;

  // `lanes`: the width of the vectors in which threads will read the window.
  Window(const T* data, const Strides& strides, int64_t height, int64_t width, int images, int channels, int rows,
         int pitch, int lanes, int first_col)
      : data(data),
        strides(strides),
        height(int(height)),
        width(int(width)),
        images(images),
        channels(channels),
        rows(rows),
        pitch(pitch),
        image_values(image_pitch(channels * rows * pitch, lanes)),
        vector(vector_for(first_col)),
        per_channels(channels),
        per_rows(rows),
        per_row(vector > 1 ? width / vector : pitch) {}

  // As pitch_for: the same place of consecutive images lies in different banks.
  static int image_pitch(int values, int lanes) { return values + (values / lanes % 2 == 0 ? lanes : 0); }
  // With what stands behind it on a multiple of 16 bytes.
  TP_HD int values() const { return ceil_div(images * image_values, 4) * 4; }

  // Zeros where fill() writes nothing, for windows that begin at the same column.
  TP_DEVICE void clear(A* window, int t, int threads) const {
    if (vector == 1) return;
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
    if (vector == 4) {
#pragma unroll 2
      for (int i = t; i < total; i += threads) fill_vector<4>(window, origin, i, count, row, col);
    } else if (vector == 2) {
#pragma unroll 2
      for (int i = t; i < total; i += threads) fill_vector<2>(window, origin, i, count, row, col);
    } else {
#pragma unroll 2
      for (int i = t; i < total; i += threads) fill_one(window, origin, i, count, row, col);
    }
  }

 private:
  int vector_for(int first_col) const {
    const auto fits = [&](int v) {
      return pitch % v == 0 && image_values % v == 0 && width % v == 0 && strides.row % v == 0 &&
             strides.channel % v == 0 && strides.image % v == 0 &&
             reinterpret_cast<uintptr_t>(data) % (v * sizeof(T)) == 0;
    };
    if (first_col > 0 || width - first_col > pitch || strides.col != 1) return 1;
    return fits(4) ? 4 : fits(2) ? 2 : 1;
  }

  // Item i of a window: where its row lies, its place in the row, and the row of the image that it comes from, if any.
  struct Item {
    int at, place;
    const T* from;
    bool needed;
  };
  TP_DEVICE Item locate(const T* origin, int i, int count, int first_row) const {
    Item item{0, i, nullptr, false};
    int row = per_row.divide(item.place);
    int channel = per_rows.divide(row);
    const int image = per_channels.divide(channel), source = first_row + row;
    item.at = image * image_values + (channel * rows + row) * pitch;
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
      if (exists) return copy_or_zero<4>(to, from, true);
    }
    *to = exists ? A(*from) : A(0);
  }
  template <int width>
  TP_DEVICE void fill_vector(A* window, const T* origin, int i, int count, int row, int col) const {
    const Item item = locate(origin, i, count, row);
    if (!item.needed) return;
    A* const to = window + item.at + item.place * width - col;
    const T* const from = item.from + item.place * width;
    if constexpr (std::is_same<T, A>::value) {
      constexpr int bytes = min(16, width * int(sizeof(T)));
      if (col % width == 0) {
#pragma unroll
        for (int k = 0; k < width; k += bytes / int(sizeof(T))) {
          copy_or_zero<bytes>(to + k, item.from ? from + k : data, item.from != nullptr);
        }
        return;
      }
    }
    block::Vector<T, width> values{};
    if (item.from) values = *reinterpret_cast<const block::Vector<T, width>*>(from);
#pragma unroll
    for (int k = 0; k < width; ++k) to[k] = A(values.v[k]);
  }
};

}  // namespace tp::conv
