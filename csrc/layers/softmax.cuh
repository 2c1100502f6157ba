// Softmax cross-entropy over rows of logits, each of which is read once from memory.
//
// A row of up to 1,024 classes is held in the registers of one warp (up to 32 classes: of 8 lanes of a warp), so the
// maximum, the sum of exponentials and the gradient need no second read. A block takes a longer row: it keeps a running
// maximum and a sum relative to it (the online softmax), and reads the row again, from the cache, for the gradient. The
// number of classes alone determines which lane holds which class, so results are the same bits for every address.
#pragma once
#include "block/block_sum.cuh"
#include "block/exponential.h"
#include "block/launch.cuh"
#include "block/load_store.cuh"
#include "layers/layers.h"

namespace tp::layers {

using block::exponential;

constexpr int warp_row_classes = 1024;  // the longest row that a warp holds

TP_DEVICE inline float greater(float a, float b) { return fmaxf(a, b); }
TP_DEVICE inline double greater(double a, double b) { return fmax(a, b); }

template <class T>
struct SoftmaxArgs {
  const T* x;
  const int64_t* target;
  int64_t rows, classes;
  const T* grad;  // of the loss: one number per row, or one for all rows
  T* out;         // the losses or their sum; or the gradient of x
  acc_t<T>* partial;
  int64_t rows_per_block;
  Reduction reduction;
  bool aligned;  // whether x, and out if it is like x, can be accessed by whole vectors
};

template <class T>
TP_DEVICE acc_t<T> grad_of_row(const SoftmaxArgs<T>& a, int64_t row) {
  if (a.reduction == Reduction::none) return acc_t<T>(a.grad[row]);
  return acc_t<T>(a.grad[0]) / acc_t<T>(a.reduction == Reduction::mean ? a.rows : 1);
}

// The logit at the label, NaN if the label is not a class. The loss needs it besides the softmax. It is loaded early,
// so that it arrives together with the row.
template <class T>
TP_DEVICE acc_t<T> logit_of(const T* row, int64_t classes, int64_t label) {
  using A = acc_t<T>;
  return label >= 0 && label < classes ? A(row[label]) : std::numeric_limits<A>::quiet_NaN();
}

// -log softmax(x)[label]. The maximum ignores NaN, but the sum does not; and if the maximum is infinite, the sum is
// NaN. So the loss is NaN whenever one of its terms is.
template <class A>
TP_DEVICE A loss_of(A logit, A most, A sum) {
  return A(std::log(sum)) - (logit - most);
}

// The values of a row that one of `lanes` lanes holds: vectors of `width` adjacent values, assigned to the lanes in
// turn. Past the end of the row the values are -inf.
template <class T, int width, int values, int lanes>
struct HeldRow {
  using A = acc_t<T>;
  using V = block::Vector<T, width>;
  static constexpr int vectors = values / width;
  A x[values];
  int lane;

  TP_DEVICE int column(int k) const { return (k * lanes + lane) * width; }

  TP_DEVICE void load(const T* row, int count, bool aligned) {
    V held[vectors];
#pragma unroll
    for (int k = 0; k < vectors; ++k) {
      if (column(k) >= count) continue;
      if (width == 1 || aligned) {
        held[k] = *reinterpret_cast<const V*>(row + column(k));
      } else {
#pragma unroll
        for (int v = 0; v < width; ++v) held[k].v[v] = row[column(k) + v];
      }
    }
#pragma unroll
    for (int k = 0; k < vectors; ++k) {
#pragma unroll
      for (int v = 0; v < width; ++v) {
        x[k * width + v] = column(k) < count ? A(held[k].v[v]) : -std::numeric_limits<A>::infinity();
      }
    }
  }

  TP_DEVICE A own_maximum() const {
    A most = x[0];
#pragma unroll
    for (int i = 1; i < values; ++i) most = greater(most, x[i]);
    return most;
  }
  // Replaces every x by exp(x - most), and returns their sum.
  TP_DEVICE A own_exponentials(A most) {
    A sums[width] = {};
#pragma unroll
    for (int i = 0; i < values; ++i) {
      x[i] = exponential(x[i] - most);
      sums[i % width] += x[i];
    }
#pragma unroll
    for (int half = width / 2; half > 0; half /= 2) {
#pragma unroll
      for (int v = 0; v < half; ++v) sums[v] += sums[v + half];
    }
    return sums[0];
  }

  // The maximum over all `lanes`, which are adjacent lanes of one warp; every lane gets the result.
  TP_DEVICE A maximum() const {
    A most = own_maximum();
#pragma unroll
    for (int stride = 1; stride < lanes; stride *= 2) most = greater(most, __shfl_xor_sync(~0u, most, stride, lanes));
    return most;
  }
  TP_DEVICE A exponentials(A most) {
    A sum = own_exponentials(most);
#pragma unroll
    for (int stride = 1; stride < lanes; stride *= 2) sum += __shfl_xor_sync(~0u, sum, stride, lanes);
    return sum;
  }

  // out = (x / sum - one_hot(label)) * grad, or 0 if not `valid`.
  TP_DEVICE void store_gradient(T* out, int count, int label, bool valid, A sum, A grad, bool aligned) const {
    const A scale = A(1) / sum;
#pragma unroll
    for (int k = 0; k < vectors; ++k) {
      if (column(k) >= count) continue;
      V y;
#pragma unroll
      for (int v = 0; v < width; ++v) {
        y.v[v] = T(valid ? (x[k * width + v] * scale - A(column(k) + v == label)) * grad : A(0));
      }
      if (width == 1 || aligned) {
        *reinterpret_cast<V*>(out + column(k)) = y;
      } else {
#pragma unroll
        for (int v = 0; v < width; ++v) out[column(k) + v] = y.v[v];
      }
    }
  }
};

// Stores the sum of the losses of a block's rows: the result if there is only one block, otherwise a partial sum.
template <class T>
TP_DEVICE void store_sum(const SoftmaxArgs<T>& a, acc_t<T> sum) {
  if (gridDim.x > 1) {
    a.partial[blockIdx.x] = sum;
  } else {
    a.out[0] = T(sum / acc_t<T>(a.reduction == Reduction::mean ? a.rows : 1));
  }
}

// ---- one row per warp, or per `lanes` lanes of a warp

// Limits registers so that a multiprocessor holds enough rows at once to keep memory busy.
template <class A, int width, int threads>
constexpr int least_blocks = threads > 256 || sizeof(A) > 4 ? 1
                             : width > 1                    ? 3
                                                            : 2;

template <class T, int width, int values, int lanes, int threads>
__global__ void __launch_bounds__(threads, least_blocks<acc_t<T>, width, threads>)
    warp_row_losses(const SoftmaxArgs<T> a) {
  using A = acc_t<T>;
  block::allow_next_launch();
  HeldRow<T, width, values, lanes> held;
  held.lane = int(threadIdx.x) % lanes;
  const int64_t first = blockIdx.x * a.rows_per_block, end = tp::min(a.rows, first + a.rows_per_block);
  A total = 0;
  for (int64_t begin = first; begin < end; begin += threads / lanes) {  // the same for all lanes, because they shuffle
    const int64_t row = tp::min(begin + threadIdx.x / lanes, end - 1);
    const T* x = a.x + row * a.classes;
    const A logit = logit_of(x, a.classes, a.target[row]);
    held.load(x, int(a.classes), a.aligned);
    const A most = held.maximum(), sum = held.exponentials(most);
    if (held.lane != 0 || row != begin + threadIdx.x / lanes) continue;
    const A loss = loss_of(logit, most, sum);
    if (a.reduction == Reduction::none) {
      a.out[row] = T(loss);
    } else {
      total += loss;
    }
  }
  if (a.reduction == Reduction::none) return;
  total = block::block_sum<threads>(total);
  if (threadIdx.x == 0) store_sum(a, total);
}

template <class T, int width, int values, int lanes, int threads>
__global__ void __launch_bounds__(threads, least_blocks<acc_t<T>, width, threads>)
    warp_row_gradients(const SoftmaxArgs<T> a) {
  using A = acc_t<T>;
  HeldRow<T, width, values, lanes> held;
  held.lane = int(threadIdx.x) % lanes;
  const int64_t wanted = int64_t(blockIdx.x) * (threads / lanes) + threadIdx.x / lanes;
  const int64_t row = tp::min(wanted, a.rows - 1);
  const int64_t label = a.target[row];
  const A grad = grad_of_row(a, row);
  held.load(a.x + row * a.classes, int(a.classes), a.aligned);
  const A most = held.maximum(), sum = held.exponentials(most);
  if (row != wanted) return;
  const bool valid = label >= 0 && label < a.classes;
  held.store_gradient(a.out + row * a.classes, int(a.classes), int(label), valid, sum, grad, a.aligned);
}

// ---- one row per block

constexpr int block_row_threads = 512;

// The maximum and the sum of exp(x - most).
template <class A>
struct Running {
  A most = -std::numeric_limits<A>::infinity(), sum = 0;

  // The number that exponentials are relative to. As long as all values are -inf it is 0, so that exponentials are 0
  // and not NaN.
  TP_DEVICE static A base(A most) { return most == -std::numeric_limits<A>::infinity() ? A(0) : most; }

  TP_DEVICE void merge(const Running& other) {
    const A both = greater(most, other.most), to = base(both);
    sum = sum * exponential(most - to) + other.sum * exponential(other.most - to);
    most = both;
  }
};

// A block reads its row in tiles of `block_row_vectors` vectors per thread.
constexpr int block_row_vectors(int width) { return width > 4 ? 2 : 4; }

template <class T, int width>
using BlockTile = HeldRow<T, width, block_row_vectors(width) * width, block_row_threads>;

template <class T, int width, class F>
TP_DEVICE void for_tiles(const T* row, int64_t classes, bool aligned, F f) {
  constexpr int64_t tile = block_row_vectors(width) * width * block_row_threads;
  BlockTile<T, width> held;
  held.lane = int(threadIdx.x);
  for (int64_t begin = 0; begin < classes; begin += tile) {
    const int count = int(tp::min(classes - begin, tile));
    held.load(row + begin, count, aligned);
    f(held, begin, count);
  }
}

// Returns, to all threads, the maximum and the sum of exponentials of the block's row.
template <class T, int width>
TP_DEVICE Running<acc_t<T>> softmax_of_row(const T* row, int64_t classes, bool aligned) {
  using A = acc_t<T>;
  using R = Running<A>;
  constexpr int warps = block_row_threads / block::warp_size;
  __shared__ A mosts[warps], sums[warps];
  R mine;
  for_tiles<T, width>(row, classes, aligned, [&](auto& held, int64_t, int) {
    const A most = greater(mine.most, held.own_maximum()), to = R::base(most);
    mine.sum = mine.sum * exponential(mine.most - to) + held.own_exponentials(to);
    mine.most = most;
  });
  const auto merge_lanes = [&](int count) {
    for (int stride = 1; stride < count; stride *= 2) {
      R other;
      other.most = __shfl_down_sync(~0u, mine.most, unsigned(stride));
      other.sum = __shfl_down_sync(~0u, mine.sum, unsigned(stride));
      mine.merge(other);
    }
  };
  merge_lanes(block::warp_size);
  const int lane = int(threadIdx.x) % block::warp_size, warp = int(threadIdx.x) / block::warp_size;
  if (lane == 0) mosts[warp] = mine.most, sums[warp] = mine.sum;
  __syncthreads();
  if (warp == 0) {
    if (lane < warps) mine.most = mosts[lane], mine.sum = sums[lane];
    merge_lanes(warps);
    if (lane == 0) mosts[0] = mine.most, sums[0] = mine.sum;
  }
  __syncthreads();
  mine.most = mosts[0], mine.sum = sums[0];
  mine.sum += mine.most - mine.most;  // NaN if the maximum is infinite
  return mine;
}

template <class T, int width>
__global__ void __launch_bounds__(block_row_threads, sizeof(acc_t<T>) > 4 ? 1 : 2)
    block_row_losses(const SoftmaxArgs<T> a) {
  block::allow_next_launch();
  const T* x = a.x + blockIdx.x * a.classes;
  const Running<acc_t<T>> row = softmax_of_row<T, width>(x, a.classes, a.aligned);
  if (threadIdx.x > 0) return;
  const acc_t<T> loss = loss_of(logit_of(x, a.classes, a.target[blockIdx.x]), row.most, row.sum);
  if (a.reduction == Reduction::none) {
    a.out[blockIdx.x] = T(loss);
  } else {
    store_sum(a, loss);
  }
}

template <class T, int width>
__global__ void __launch_bounds__(block_row_threads, sizeof(acc_t<T>) > 4 ? 1 : 2)
    block_row_gradients(const SoftmaxArgs<T> a) {
  using A = acc_t<T>;
  const T* x = a.x + blockIdx.x * a.classes;
  T* out = a.out + blockIdx.x * a.classes;
  const Running<A> row = softmax_of_row<T, width>(x, a.classes, a.aligned);
  const int64_t label = a.target[blockIdx.x];
  const bool valid = label >= 0 && label < a.classes;
  const A grad = grad_of_row(a, blockIdx.x);
  for_tiles<T, width>(x, a.classes, a.aligned, [&](auto& held, int64_t begin, int count) {
    held.own_exponentials(row.most);
    const int64_t here = label - begin;
    held.store_gradient(out + begin, count, here >= 0 && here < count ? int(here) : -1, valid, row.sum, grad,
                        a.aligned);
  });
}

}  // namespace tp::layers
