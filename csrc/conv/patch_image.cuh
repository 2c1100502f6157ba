// Moves a finished tile of fprop or dgrad from the registers of the multiplying warps to the target.
#pragma once
#include "conv/patches.cuh"

namespace tp::conv {

// The image of a tile in shared memory, without gaps between pixels. It is stored as boxes of 64 maps, which one
// instruction copies to the target, or else as [pixel][map] or [map][pixel], whichever is the order of the target.
template <class T, class Tile>
class WgmmaImage {
 public:
  using Sums = float[Tile::sums];  // of a thread
  static constexpr int threads = Tile::warps * 32;
  static constexpr int vector = 16 / int(sizeof(T)), pixel_pitch = Tile::maps + vector,
                       map_pitch = Tile::positions + vector;

  static int bytes(const GatherWgmma<T>& work) {
    if (work.stores_boxes) return Tile::maps / 64 * box_bytes(work.shape);
    const bool by_pixel = work.g.target_strides.channel == 1;
    return int(sizeof(T)) * (by_pixel ? (Tile::positions + 1) * pixel_pitch : Tile::maps * map_pitch);
  }

  TP_DEVICE WgmmaImage(const GatherWgmma<T>& work, const WgmmaShare& share, unsigned char* data)
      : work_(work), share_(share), data_(data) {}

  // Whether the sums that this thread holds of the tile's pixels are finite.
  TP_DEVICE bool sums_are_finite(const Sums& sum) const {
    float zeros[4] = {};  // become NaN
#pragma unroll
    for (int i = 0; i < Tile::sums; ++i) zeros[i % 4] += sum[i] * 0.0f;
    if (zeros[0] + zeros[1] + zeros[2] + zeros[3] == 0) return true;
    // Some position has a sum that is not finite. Only those of pixels matter.
    float zero = 0;
#pragma unroll
    for (int i = 0; i < Tile::sums; ++i) {
      if (pixel_at(i / 4 * 8 + lane() % 4 * 2 + i % 2) != nowhere()) zero += sum[i] * 0.0f;
    }
    return zero == 0;
  }
  // Writes the sums of a warpgroup, plus the bias, to the image.
  TP_DEVICE void set(int group, Sums& sum) const {
    if (work_.g.bias) add_bias(group, sum);
    if (work_.stores_boxes || work_.g.target_strides.channel == 1) {
      set_pixels(group, sum);
      if (work_.stores_boxes) block::publish_shared();
    } else {
      set_maps(group, sum);
    }
  }
  // Copies the image to the target, by all multiplying threads. A barrier must precede it.
  TP_DEVICE void store(int thread) const {
    if (work_.stores_boxes) return store_boxes(thread);
    const Gather<T>& g = work_.g;
    const int maps = int(min(g.maps - share_.map, int64_t(Tile::maps)));
    const bool aligned = reinterpret_cast<uintptr_t>(g.target) % 16 == 0;
    const bool whole_rows =
        (work_.by_runs || share_.tile_cols == share_.cols.outputs) && share_.rows.step == 1 && share_.cols.step == 1;
    const int plane = int(share_.rows.outputs * share_.cols.outputs),
              before = work_.by_runs ? share_.col : int(share_.row * share_.cols.outputs);
    const int pixels = share_.tile_rows * share_.tile_cols;
    const auto fits = [&](int width) {
      return aligned && whole_rows && plane % width == 0 && before % width == 0 && pixels % width == 0;
    };
    if (g.target_strides.channel == 1) {
      aligned&& g.maps % vector == 0 ? store_pixels<vector>(maps, thread) : store_pixels<1>(maps, thread);
    } else if (fits(vector)) {
      store_maps<vector>(maps, thread);
    } else {
      fits(4) ? store_maps<4>(maps, thread) : store_maps<1>(maps, thread);
    }
  }

 private:
  // Where the image has eight neighbouring maps of each pixel, the j-th eight of the tile. In a box, the vectors of a
  // pixel take turns with those of seven others.
  struct EightMaps {
    unsigned first, pitch, turns, turn;  // addresses and bytes

    TP_DEVICE EightMaps(const WgmmaImage& image, unsigned j) {
      const bool boxes = image.work_.stores_boxes;
      first = block::shared_address(image.data_) + (boxes ? j / 8 * unsigned(box_bytes(image.work_.shape)) : j * 16);
      pitch = boxes ? block::row_bytes : pixel_pitch * unsigned(sizeof(T));
      turns = boxes ? 7 * 16 : 0;
      turn = boxes ? j % 8 * 16 : 0;
    }
    TP_DEVICE unsigned at(unsigned pixel) const { return first + pixel * pitch + ((pixel * 16 & turns) ^ turn); }
  };
  // Writes four matrices at a time: sixteen maps, in rows, by sixteen positions.
  TP_DEVICE void set_pixels(int group, const Sums& sum) const {
    static_assert(Tile::sums % 8 == 0);
    const EightMaps maps(*this, unsigned(row_of(group, 0)) / 16 * 2 + unsigned(lane()) / 8 % 2);
    const int first = lane() / 16 * 8 + lane() % 8;
    const auto set = [&](int j, unsigned address) {
      const auto pair = [&](int i) { return block::half_pair<T>(sum[j + i], sum[j + i + 1]); };
      block::store_transposed(address, pair(0), pair(2), pair(4), pair(6));
    };
    if (work_.stores_boxes && work_.shape.rows == 1 && work_.shape.cols == Tile::positions) {
      // Every position is a pixel, and the compiler knows the distances between the addresses.
      const unsigned address = maps.at(unsigned(first));
#pragma unroll
      for (int j = 0; j < Tile::sums; j += 8) set(j, address + unsigned(j * 2 * block::row_bytes));
      return;
    }
#pragma unroll
    for (int j = 0; j < Tile::sums; j += 8) set(j, maps.at(unsigned(pixel_at(j * 2 + first))));
  }
  // The same if the image has the pixels of a map next to each other: pairs of neighbouring positions.
  TP_DEVICE void set_maps(int group, const Sums& sum) const {
#pragma unroll
    for (int j = 0; j < Tile::sums; j += 4) {
      const int position = j * 2 + lane() % 4 * 2, first = pixel_at(position), second = pixel_at(position + 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const unsigned pair = block::half_pair<T>(sum[j + i * 2], sum[j + i * 2 + 1]);
        unsigned short* const row = reinterpret_cast<unsigned short*>(data_) + row_of(group, i) * map_pitch;
        row[first] = static_cast<unsigned short>(pair);
        row[second] = static_cast<unsigned short>(pair >> 16);
      }
    }
  }
  TP_DEVICE void add_bias(int group, Sums& sum) const {
    const auto shift_of = [&](int map) {
      return share_.map + map < work_.g.maps ? float(work_.g.bias[share_.group * work_.g.maps + share_.map + map])
                                             : 0.0f;
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float shift = shift_of(row_of(group, i));
#pragma unroll
      for (int j = 0; j < Tile::sums / 2; ++j) sum[j / 2 * 4 + i * 2 + j % 2] += shift;
    }
  }
  TP_HD static int box_bytes(const PatchShape& shape) {
    return ceil_div((shape.rows * shape.cols + 1) * block::row_bytes, 1024) * 1024;
  }
  TP_DEVICE static int lane() { return int(threadIdx.x) % 32; }
  // The map of the first (i = 0) or second row of the tile whose sums this thread holds.
  TP_DEVICE static int row_of(int group, int i) {
    int thread = int(threadIdx.x) % block::warpgroup;
    // Hides the value, or the compiler would keep all addresses that follow from it in registers from tile to tile.
    asm volatile("" : "+r"(thread));
    return group * 64 + thread / 32 * 16 + thread % 32 / 4 + i * 8;
  }
  // The index of the pixel at a position. Positions between rows map to nowhere(), an index that nobody reads. A box
  // always has the full size, even at the end of the target.
  TP_DEVICE int pixel_at(int position) const {
    const int rows = work_.stores_boxes ? work_.shape.rows : share_.tile_rows;
    const int cols = work_.stores_boxes ? work_.shape.cols : share_.tile_cols;
    const int row = position * work_.one_row >> 16, col = position - row * work_.shape.pitch;
    return row < rows && col < cols ? row * cols + col : nowhere();
  }
  TP_DEVICE int nowhere() const { return work_.stores_boxes ? work_.shape.rows * work_.shape.cols : Tile::positions; }
  TP_DEVICE void store_boxes(int thread) const {
    if (thread > 0) return;
    const CUtensorMap& target = work_.targets[share_.phase];
    const PhasePixel first = pixel_of_tile(work_, share_, 0, 0);
    for (int map = 0; map < Tile::maps && share_.map + map < work_.g.maps; map += 64) {
      const int channel = share_.group * int(work_.g.maps) + share_.map + map;
      const unsigned from = block::shared_address(data_) + unsigned(map / 64 * box_bytes(work_.shape));
      if (work_.by_runs) {
        store_run(target, int(first.image), int(first.h), int(first.w), channel, from);
      } else {
        store_window(target, int(first.image), int(first.h), int(first.w), channel, from);
      }
    }
    block::commit_stores();
  }
  TP_DEVICE T* target_of(int pixel) const {
    const int row = pixel / share_.tile_cols, col = pixel % share_.tile_cols;
    const PhasePixel at = pixel_of_tile(work_, share_, row, col);
    return work_.g.target + work_.g.target_strides.at(at.image, share_.group * work_.g.maps + share_.map,
                                                      share_.rows.target(at.h), share_.cols.target(at.w));
  }
  // Each thread copies the same maps of all its pixels.
  template <int width>
  TP_DEVICE void store_pixels(int maps, int thread) const {
    constexpr int across = Tile::maps / width;
    using V = block::Vector<T, width>;
    const T* const data = reinterpret_cast<const T*>(data_);
    const int map = thread % across * width, pixels = share_.tile_rows * share_.tile_cols;
    if (map >= maps) return;
#pragma unroll 4
    for (int pixel = thread / across; pixel < pixels; pixel += threads / across) {
      *reinterpret_cast<V*>(target_of(pixel) + map) = *reinterpret_cast<const V*>(data + pixel * pixel_pitch + map);
    }
  }
  // Each thread copies all its maps of the same pixels.
  template <int width>
  TP_DEVICE void store_maps(int maps, int thread) const {
    constexpr int across = min(Tile::positions / width, threads), step = threads / across;
    using V = block::Vector<T, width>;
    const T* const data = reinterpret_cast<const T*>(data_);
    const int pixels = share_.tile_rows * share_.tile_cols;
    if (thread >= across * step) return;
    for (int pixel = thread % across * width; pixel < pixels; pixel += across * width) {
      int map = thread / across;
      T* to = target_of(pixel) + map * work_.g.target_strides.channel;
#pragma unroll 8
      for (; map < maps; map += step, to += step * work_.g.target_strides.channel) {
        *reinterpret_cast<V*>(to) = *reinterpret_cast<const V*>(data + map * map_pitch + pixel);
      }
    }
  }

  const GatherWgmma<T>& work_;
  const WgmmaShare& share_;
  unsigned char* const data_;
};

}  // namespace tp::conv
