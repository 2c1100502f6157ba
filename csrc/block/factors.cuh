// The factors of a matrix product, copied to shared memory slab by slab as fma_tile.cuh reads them, and the writes of
// its sums.
#pragma once
#include "block/fma_tile.cuh"

namespace tp::block {

// How a factor is copied. If the inner dimension is contiguous, each warp copies eight elements of it for four sides,
// element by element. Otherwise it copies 16 bytes of adjacent sides at a time, or single elements if strides do not
// allow that.
enum class Order { inner, sides, any };

// One of the factors: `sides` rows of A or columns of B, each of `inner` elements; one of the strides is 1.
template <class T>
struct Factor {
  const T* data;
  int64_t side_stride, inner_stride, sides;

  Order order() const {
    constexpr int64_t vector = 16 / int64_t(sizeof(T));
    if (inner_stride == 1) return Order::inner;
    const bool whole = side_stride == 1 && inner_stride % vector == 0 && sides % vector == 0;
    return whole && reinterpret_cast<uintptr_t>(data) % 16 == 0 ? Order::sides : Order::any;
  }
};

// Copies slabs of a factor to [slab][pitch] in shared memory.
template <class Tile, int tile_sides, int pitch, Order order, class T>
class FactorLoader {
  static constexpr int width = order == Order::sides ? 16 / int(sizeof(T)) : 1, across = tile_sides / width,
                       turns = tile_sides * Tile::slab / width / Tile::threads, eighths = Tile::slab / 8;
  static constexpr int k_step = order == Order::inner ? 0 : Tile::threads / across,
                       side_step = order == Order::inner ? Tile::threads / Tile::slab : 0;
  static_assert(Tile::threads % across == 0 && Tile::threads % Tile::slab == 0 && turns > 0, "whole turns");

 public:
  TP_DEVICE FactorLoader(const Factor<T>& f, int64_t first_side, int64_t first, int64_t last) {
    const int t = int(threadIdx.x), lane = t % 32, warp = t / 32;
    k_ = order == Order::inner ? warp % eighths * 8 + lane % 8 : t / across;
    side_ = order == Order::inner ? warp / eighths * 4 + lane / 8 : t % across * width;
    from_ = f.data + (first_side + side_) * f.side_stride + (first + k_) * f.inner_stride;
    step_ = side_step * f.side_stride + k_step * f.inner_stride;
    slab_step_ = Tile::slab * f.inner_stride;
    sides_ = int(min(f.sides - first_side, int64_t(tile_sides))), left_ = last - first;
  }

  // Begins to copy the next slab; elements that do not exist are 0.
  TP_DEVICE void load(T* slab) {
    if (sides_ == tile_sides && left_ >= Tile::slab) {
      copy(slab, [](int) { return true; });
    } else {
      copy(slab, [&](int i) { return side_ + i * side_step < sides_ && k_ + i * k_step < left_; });
    }
    from_ += slab_step_;
    left_ -= Tile::slab;
  }

 private:
  template <class Exists>
  TP_DEVICE void copy(T* slab, const Exists& exists) const {
    T* const to = slab + k_ * pitch + side_;
    const T* from = from_;
#pragma unroll
    for (int i = 0; i < turns; ++i) {
      copy_or_zero<width* int(sizeof(T))>(to + i * (k_step * pitch + side_step), from, exists(i));
      from += step_;
    }
  }

  int k_, side_, sides_;
  int64_t left_, step_, slab_step_;
  const T* from_;
};

// Writes four adjacent elements of a row, of which `count` exist. `aligned`: the row begins at a multiple of four
// elements.
template <class T, class A>
TP_DEVICE void write_quad(T* to, const A* values, int64_t count, bool aligned) {
  Vector<T, 4> v{{T(values[0]), T(values[1]), T(values[2]), T(values[3])}};
  if (aligned) {
    *reinterpret_cast<Vector<T, 4>*>(to) = v;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < count) to[k] = v.v[k];
    }
  }
}

}  // namespace tp::block
