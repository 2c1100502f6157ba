// What the kernels of register_tiled share: how a block copies images to shared memory, and how a thread reads strips
// of them.
#pragma once
#include "block/copies.cuh"
#include "block/load_store.cuh"
#include "block/pipeline.cuh"
#include "conv/divisor.h"
#include "conv/gather.h"

namespace tp::conv {

// Loads `values` consecutive elements from shared memory in vectors of `width`. `from` must be aligned to a vector.
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

// As above, but vectors whose bit in `present` is not set are not read; they count as zeros.
template <int width, int values, class A>
TP_DEVICE void load_strip(const A* from, unsigned present, A (&to)[values]) {
  static_assert(values % width == 0, "whole vectors");
  using V = block::Vector<A, width>;
#pragma unroll
  for (int i = 0; i < values; i += width) {
    V v{};
    if (present >> (i / width) & 1) v = *reinterpret_cast<const V*>(from + i);
#pragma unroll
    for (int k = 0; k < width; ++k) to[i + k] = v.v[k];
  }
}

// Stores `width` consecutive elements. `to` must be aligned to a vector of them.
template <int width, class T>
TP_DEVICE void store_vector(T* to, const block::Vector<T, width>& values) {
  constexpr int bytes = width * int(sizeof(T));
  using Word = std::conditional_t<bytes % 16 == 0, uint4, std::conditional_t<bytes == 8, uint2, unsigned>>;
  // Stores words, because the compiler does not always make one access of a struct.
  if constexpr (bytes % 16 == 0 || bytes == 8 || bytes == 4) {
    Word words[bytes / sizeof(Word)];
    memcpy(words, &values, bytes);
#pragma unroll
    for (int i = 0; i < bytes / int(sizeof(Word)); ++i) reinterpret_cast<Word*>(to)[i] = words[i];
  } else {
#pragma unroll
    for (int i = 0; i < width; ++i) to[i] = values.v[i];
  }
}

// A pitch for rows in shared memory that has room for `columns` values. It is an odd number of vectors, so that vectors
// of `width` at the same column of consecutive rows are in different banks.
inline int pitch_for(int columns, int width) {
  const int vectors = ceil_div(columns, width);
  return (vectors + 1 - vectors % 2) * width;
}

// A window of a batch of images in shared memory: [images][channels][rows][pitch]. Its first row and column may be
// anywhere in the image, or outside of it, where the window contains zeros. There are three ways to fill it. If a
// window covers whole rows and addresses allow it, threads copy vectors of `vector` elements; the columns beside the
// image are cleared once, at the beginning. Otherwise threads copy element by element. In both cases a thread keeps its
// column and goes from row to row. If a window is whole channels exactly as they are in memory, one bulk copy per image
// moves them.
//
// `batch` is for values that must be converted: a thread reads so many before it stores the first, so that the reads
// are on their way together.
template <class T, int batch = 1>
struct Window {
  using A = acc_t<T>;

  const T* data;
  int64_t image_stride;
  int channel_stride, row_stride, col_stride;
  int height, width;                                // of the image
  int images, channels, rows, pitch, image_values;  // of the window
  int vector;                                       // elements per access: 4, 2, or 1, which works for any window
  bool bulk;
  int row_step;  // the number of rows that the threads of a block fill at once
  Divisor per_channels, per_rows, per_row;

  // `lanes` is the width of the vectors in which threads will read the window. If first_row and first_col are not
  // positive, every window begins there; a positive value means that windows begin at varying positions.
  Window(const T* data, const Strides& strides, int64_t height, int64_t width, int images, int channels, int rows,
         int pitch, int lanes, int first_row, int first_col, int threads)
      : data(data),
        image_stride(strides.image),
        channel_stride(int(strides.channel)),
        row_stride(int(strides.row)),
        col_stride(int(strides.col)),
        height(int(height)),
        width(int(width)),
        images(images),
        channels(channels),
        rows(rows),
        pitch(pitch),
        image_values(image_pitch(channels * rows * pitch, lanes)),
        vector(1),
        bulk(false),
        row_step(1),
        per_channels(channels),
        per_rows(rows),
        per_row(pitch) {
    if (col_stride == 1 && first_col <= 0 && width - first_col <= pitch) {
      vector = in_vectors(4) ? 4 : in_vectors(2) ? 2 : 1;
      bulk = std::is_same<T, A>::value && pitch == width && rows == height && first_row == 0 && first_col == 0 &&
             image_values % 4 == 0 && channel_stride % 4 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
      if (vector > 1) per_row = Divisor(width / vector);
    }
    row_step = max(1, threads / int(per_row.value));
  }

  // As pitch_for, for images: equal positions in consecutive images are in different banks.
  static int image_pitch(int values, int lanes) {
    if (values % 4 == 0) lanes = 4;
    return values + (values / lanes % 2 == 0 ? lanes : 0);
  }
  // The size of the window, rounded up so that what follows it is aligned to 16 bytes.
  TP_HD int values() const { return ceil_div(images * image_values, 4) * 4; }

  // Clears the columns that fill() never writes, for windows that all begin at the same column.
  TP_DEVICE void clear(A* window, int t, int threads) const {
    if (vector == 1 || vector * int(per_row.value) == pitch) return;
    for (int i = t; i < values(); i += threads) window[i] = A(0);
  }
  // Starts to copy `count` channels of the images from (image, channel, row, col) on. Images from `image_end` on are
  // left as they are, and rows outside of the image are written as zeros. The caller must call wait(), then synchronize
  // the block. If `bulk`, `arrived` takes one arrival per warp.
  TP_DEVICE void fill(A* window, int64_t image, int64_t image_end, int64_t channel, int count, int row, int col, int t,
                      int threads, block::Barrier& arrived) const {
    const T* const origin = data + image * image_stride + channel * channel_stride;
    const int present = image_end - image < images ? int(image_end - image) : images;
    if (bulk) {
      for (int i = t / block::warp_size; i < present; i += threads / block::warp_size) {
        const T* const from = origin + int64_t(i) * image_stride;
        block::copy_bulk(arrived, reinterpret_cast<unsigned char*>(window + i * image_values),
                         reinterpret_cast<const unsigned char*>(from),
                         reinterpret_cast<const unsigned char*>(from + count * channel_stride), t % block::warp_size);
      }
      __syncwarp();
      if (t % block::warp_size == 0) arrived.arrive();
    } else if (vector == 4) {
      fill_rows<4>(window, origin, present, count, row, col, t, threads);
    } else if (vector == 2) {
      fill_rows<2>(window, origin, present, count, row, col, t, threads);
    } else {
      fill_rows<1>(window, origin, present, count, row, col, t, threads);
    }
  }

  TP_DEVICE void wait(const block::Barrier& arrived, unsigned parity) const {
    block::wait_for_copies();
    if (bulk) arrived.wait(parity);
  }

 private:
  // Whether rows, channels and images begin at multiples of `v` elements in both memories.
  bool in_vectors(int v) const {
    return pitch % v == 0 && image_values % v == 0 && width % v == 0 && row_stride % v == 0 &&
           channel_stride % v == 0 && image_stride % v == 0 && reinterpret_cast<uintptr_t>(data) % (v * sizeof(T)) == 0;
  }

  template <int lanes>
  TP_DEVICE void fill_rows(A* window, const T* origin, int present, int count, int row, int col, int t,
                           int threads) const {
    int item = t;
    const int first = per_row.divide(item), end = present * channels * rows,
              beside = image_values - channels * rows * pitch;
    if (first >= row_step) return;
    for (; item < int(per_row.value); item += threads) {  // more than one turn only if a row is longer than the block
      const int column = lanes == 1 ? col + item : item * lanes;
      A* const to_column = window + (lanes == 1 ? item : column - col);
      const T* const from_column = origin + (lanes == 1 ? int64_t(column) * col_stride : int64_t(column));
      const bool inside = lanes > 1 || unsigned(column) < unsigned(width), aligned = col % lanes == 0;
      if constexpr (batch > 1 && !std::is_same<T, A>::value) {
        convert_rows<lanes>(to_column, from_column, first, end, beside, count, row, inside, aligned);
      } else {
#pragma unroll 1
        for (int i = first; i < end; i += row_step) {
          int source = i, channel = per_rows.divide(source);
          A* to = to_column + i * pitch;
          const T* from = from_column;
          if (images > 1) {
            const int image = per_channels.divide(channel);
            to += image * beside;
            from += image * image_stride;
          }
          if (channel >= count) continue;
          source += row;
          from += int64_t(channel) * channel_stride + int64_t(source) * row_stride;
          const bool exists = inside && unsigned(source) < unsigned(height);
          if constexpr (lanes == 1) {
            fill_one(to, from, exists);
          } else {
            fill_vector<lanes>(to, from, exists, aligned);
          }
        }
      }
    }
  }
  template <int lanes>
  TP_DEVICE void convert_rows(A* to_column, const T* from_column, int first, int end, int beside, int count, int row,
                              bool inside, bool aligned) const {
#pragma unroll 1
    for (int i = first; i < end; i += batch * row_step) {
      A* to[batch];
      block::Vector<T, lanes> values[batch];
      bool copies[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        int source = i + b * row_step, channel = per_rows.divide(source);
        to[b] = to_column + (i + b * row_step) * pitch;
        const T* from = from_column;
        if (images > 1) {
          const int image = per_channels.divide(channel);
          to[b] += image * beside;
          from += image * image_stride;
        }
        copies[b] = i + b * row_step < end && channel < count;
        source += row;
        from += int64_t(channel) * channel_stride + int64_t(source) * row_stride;
        values[b] = {};
        if (copies[b] && inside && unsigned(source) < unsigned(height)) {
          values[b] = *reinterpret_cast<const block::Vector<T, lanes>*>(from);
        }
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        if (copies[b]) store_converted<lanes>(to[b], values[b], aligned);
      }
    }
  }
  TP_DEVICE void fill_one(A* to, const T* from, bool exists) const {
    if constexpr (std::is_same<T, float>::value) {
      block::copy_or_zero<4>(to, exists ? from : data, exists);
    } else {
      *to = exists ? A(*from) : A(0);
    }
  }
  template <int lanes>
  TP_DEVICE void fill_vector(A* to, const T* from, bool exists, bool aligned) const {
    if constexpr (std::is_same<T, A>::value) {
      constexpr int bytes = min(16, lanes * int(sizeof(T)));
      if (aligned) {
#pragma unroll
        for (int k = 0; k < lanes; k += bytes / int(sizeof(T))) {
          block::copy_or_zero<bytes>(to + k, exists ? from + k : data, exists);
        }
        return;
      }
    }
    block::Vector<T, lanes> values{};
    if (exists) values = *reinterpret_cast<const block::Vector<T, lanes>*>(from);
    store_converted<lanes>(to, values, aligned);
  }
  template <int lanes>
  TP_DEVICE void store_converted(A* to, const block::Vector<T, lanes>& values, bool aligned) const {
    using V = block::Vector<A, lanes>;
    V converted;
#pragma unroll
    for (int k = 0; k < lanes; ++k) converted.v[k] = A(values.v[k]);
    if (aligned) {
      *reinterpret_cast<V*>(to) = converted;
    } else {
#pragma unroll
      for (int k = 0; k < lanes; ++k) to[k] = converted.v[k];
    }
  }
};

}  // namespace tp::conv
