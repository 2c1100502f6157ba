// Multiplies by blocks of columns, then sums by bins of entries, so that no access to global memory is random.
// 1. While the entries of a block of columns are multiplied, that block of x is in shared memory. The products go to
// the bins of their rows, an octet at a time.
// 2. Each bin of products is summed in shared memory (sparse/csr/bins.cuh).
#include "sparse/matrix.h"
#ifdef __CUDACC__
#include "sparse/csr/bins.cuh"

namespace tp {
namespace {

using namespace sparse;

constexpr int entries_per_tile = 1 << 16, multiply_threads = 1024;
constexpr int few = 1 << 9;  // if a block has fewer fours of entries in a tile, loading x to shared memory does not pay

// Four adjacent elements of an array that is read only once.
template <class E>
TP_DEVICE block::Vector<E, 4> four_at(const E* p) {
  constexpr int width = sizeof(E) <= 4 ? 4 : 2;
  block::Vector<E, 4> four;
#pragma unroll
  for (int i = 0; i < 4; i += width) {
    const auto part = read_once(reinterpret_cast<const block::Vector<E, width>*>(p + i));
#pragma unroll
    for (int j = 0; j < width; ++j) four.v[i + j] = part.v[j];
  }
  return four;
}

// The last block that begins at or before entry `index`, or 0.
template <class I>
TP_DEVICE int64_t block_of(const I* block_ptrs, int64_t blocks, int64_t index) {
  int64_t before = 0;
  for (int64_t first = 0; first < blocks; first += multiply_threads) {
    const int64_t mine = first + threadIdx.x;
    const int count = __syncthreads_count(mine < blocks && block_ptrs[mine] <= index);
    before += count;
    if (count < multiply_threads) break;
  }
  return tp::max(before - 1, int64_t(0));
}

// The entries of a tile, padding included.
template <class M>
struct TileEntries {
  using T = typename M::T;
  using I = typename M::I;
  using Acc = typename M::Acc;
  const T* values;
  const int16_t* local_col;
  const I* octet_idx;
  I octets;

  TP_DEVICE TileEntries(const BlockedArgs& a, int64_t base)
      : values(static_cast<const T*>(a.values) + base),
        local_col(a.local_col + base),
        octet_idx(static_cast<const I*>(a.octet_idx) + base / octet),
        octets(I(a.entries / octet)) {}

  // Multiplies fours begin to end - 1, of a block of `columns` columns; factor(i) is the element of x at its column i.
  template <int batch, class Factor>
  TP_DEVICE void multiply(int begin, int end, unsigned columns, Factor factor, Acc* products) const {
#pragma unroll 1
    for (int first = begin + int(threadIdx.x); first < end; first += batch * multiply_threads) {
      block::Vector<T, 4> value[batch];
      block::Vector<int16_t, 4> column[batch];
      I to[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int four = first + j * multiply_threads;
        to[j] = I(-1);
        if (four >= end) continue;
        value[j] = four_at(values + 4 * four);
        column[j] = four_at(local_col + 4 * four);
        to[j] = octet_idx[four / 2];
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (to[j] < 0 || to[j] >= octets) continue;
        block::Vector<Acc, 4> product;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned at = unsigned(int(column[j].v[i]));
          product.v[i] = at < columns ? Acc(value[j].v[i]) * Acc(factor(at)) : Acc(0);
        }
        // All fours of a thread are an even number apart, so each is the same half of its octet.
        *reinterpret_cast<block::Vector<Acc, 4>*>(products + octet * int64_t(to[j]) + first % 2 * 4) = product;
      }
    }
  }
};

// near[i] = x[i * step] for i < count.
template <class T>
TP_DEVICE void bring_near(T* near, const T* x, unsigned count, int64_t step) {
  constexpr unsigned width = 16 / sizeof(T);
  unsigned done = 0;
  if (step == 1 && reinterpret_cast<uintptr_t>(x) % 16 == 0) {
    done = count / width * width;
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < count / width; i += multiply_threads) {
      reinterpret_cast<uint4*>(near)[i] = reinterpret_cast<const uint4*>(x)[i];
    }
  }
#pragma unroll 4
  for (unsigned i = done + threadIdx.x; i < count; i += multiply_threads) near[i] = x[i * step];
}

// First stage: multiplies the entries of one tile, one block of columns after another.
template <class M>
__global__ __launch_bounds__(multiply_threads) void multiply_blocks(const M matrix, typename M::Acc* products,
                                                                    int64_t c) {
  using T = typename M::T;
  constexpr int batch = sizeof(T) <= 4 ? 4 : 2;
  extern __shared__ uint4 memory[];
  block::allow_next_launch();
  auto* const near = reinterpret_cast<T*>(memory);
  const BlockedArgs& a = matrix.a;
  const auto* const block_ptrs = static_cast<const typename M::I*>(a.block_ptrs);
  const int64_t base = int64_t(blockIdx.x) * entries_per_tile, last = tp::min(base + entries_per_tile, a.entries);
  const int64_t first_block = block_of(block_ptrs, a.blocks, base);
  if (c > 0) block::wait_for_launch_before();  // the previous launch still reads the products of the previous column
  const TileEntries<M> tile_entries(a, base);
  const auto index_of = [&](int64_t block) {
    return int(tp::max(base, tp::min(last, int64_t(block_ptrs[block]))) - base);
  };
  for (int64_t block = first_block; block < a.blocks; ++block) {
    const int first = index_of(block) / 4, past = index_of(block + 1) / 4;
    if (first < past) {
      const auto* const x = static_cast<const T*>(a.x) + block * block_columns * a.k + c;
      const auto columns = unsigned(tp::min(a.cols - block * block_columns, int64_t(block_columns)));
      // The thread block reads x from global memory if the block of columns has few entries in this tile, and otherwise
      // from shared memory.
      if (past - first < few) {
        tile_entries.template multiply<1>(first, past, columns, [&](unsigned i) { return x[i * a.k]; }, products);
      } else {
        __syncthreads();
        bring_near(near, x, columns, a.k);
        __syncthreads();
        tile_entries.template multiply<batch>(first, past, columns, [&](unsigned i) { return near[i]; }, products);
      }
    }
    if (base + index_of(block + 1) >= last) break;
  }
  if (c == 0)
    block::wait_for_launch_before();  // a launch that waits for this one must also have waited for the previous one
}

// Second stage, loading: reads the products of a bin, which are contiguous.
template <class I, class Acc>
struct CollectBin {
  const I* bin_ptrs;
  const int16_t* entry_idx;
  const Acc* products;
  int64_t slots, bins, entries;

  TP_DEVICE void operator()(int64_t bin, Acc* items) const {
    using Shape = BinShape<Acc>;
    constexpr int batch = 2;
    if (bin >= bins) return;
    const int64_t begin = tp::max(int64_t(0), int64_t(bin_ptrs[bin])) / 4;
    const int64_t end = tp::min(slots, int64_t(bin_ptrs[bin + 1])) / 4;
    const int fours = int(tp::max(int64_t(0), tp::min(end - begin, int64_t(1) << 30)));
    const auto* const from = products + 4 * begin;
    const auto* const to = reinterpret_cast<const uint2*>(entry_idx) + begin;
#pragma unroll 1
    for (int first = int(threadIdx.x); first < fours; first += batch * Shape::threads) {
      block::Vector<Acc, 4> product[batch];
      uint2 entry[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int four = first + j * Shape::threads;
        entry[j] = uint2{~0u, ~0u};
        if (four >= fours) continue;
        product[j] = four_at(from + 4 * four);
        entry[j] = __ldcs(to + four);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        put_item(items, entry[j].x & 0xffff, product[j].v[0]);
        put_item(items, entry[j].x >> 16, product[j].v[1]);
        put_item(items, entry[j].y & 0xffff, product[j].v[2]);
        put_item(items, entry[j].y >> 16, product[j].v[3]);
      }
    }
  }
};

// Returns the array itself, or a copy that is aligned to 16 bytes.
template <class E>
const E* aligned(const E* data, int64_t n, Context& context) {
  if (reinterpret_cast<uintptr_t>(data) % 16 == 0) return data;
  E* const copy = context.workspace<E>(n);
  cudaMemcpyAsync(copy, data, size_t(n) * sizeof(E), cudaMemcpyDeviceToDevice, cudaStream_t(context.stream));
  return copy;
}

template <class M>
void multiply(M matrix, Context& context) {
  using T = typename M::T;
  using Acc = typename M::Acc;
  using I = typename M::I;
  BlockedArgs& a = matrix.a;
  constexpr int near = block_columns * int(sizeof(T));
  const int needed = tp::max(near, BinShape<Acc>::bytes) + (8 << 10);
  const int there = block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
  require(needed <= there, a.op, ": takes ", needed, " bytes of shared memory, this device has ", there,
          "; use another format, 'csr' say");
  a.values = aligned(static_cast<const T*>(a.values), a.entries, context);
  a.local_col = aligned(a.local_col, a.entries, context);
  a.entry_idx = aligned(a.entry_idx, a.entries, context);
  auto* const products = context.workspace<Acc>(a.entries);
  const auto kernel = multiply_blocks<M>;
  block::allow_shared_memory(kernel, near);
  const dim3 tiles(unsigned(ceil_div(a.entries, int64_t(entries_per_tile))));
  const auto first_stage = [&](int64_t c) {
    if (a.entries == 0) return;
    block::launch_early(kernel, tiles, multiply_threads, near, context, matrix, products, c);
  };
  const int64_t entries = a.bins * bin_entries;
  const CollectBin<I, Acc> collect{
      static_cast<const I*>(a.bin_ptrs), a.entry_idx, products, a.entries, a.bins, entries};
  multiply_by_bins(matrix, entries, context, first_stage, collect);
  check_launch("two_stages");
}

}  // namespace

void spmv_blocked::two_stages(const Args& args, Context& context) {
  if (args.rows == 0 || args.k == 0) return;
  with_matrix(args, [&](const auto& matrix) { multiply(matrix, context); });
}

}  // namespace tp
#endif
