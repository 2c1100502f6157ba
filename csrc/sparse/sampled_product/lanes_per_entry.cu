// One group of lanes per entry; the lanes divide the columns, so reads of rows of x and gy are coalesced. A block takes
// a tile of entries: it first loads their rows and columns to shared memory, where the search for the row of an entry
// covers only the rows of the tile.
#include "sparse/sampled.h"
#ifdef __CUDACC__
#include "sparse/csr/lanes.cuh"

namespace tp {
namespace {

using namespace sparse;
constexpr int threads = 128, tile_entries = 4 * threads;

// Rows and columns of the entries of a tile; both are -1 if an entry must be skipped.
template <class S>
TP_DEVICE void find_entries(const S& s, int64_t first, int count, int64_t* rows, int64_t* columns) {
  __shared__ int64_t ends[2];
  const bool by_pointers = s.a.row_idx == nullptr && s.a.ptrs != nullptr;
  if (by_pointers && threadIdx.x < 2) ends[threadIdx.x] = s.row(threadIdx.x == 0 ? first : first + count - 1);
  __syncthreads();
  for (int i = int(threadIdx.x); i < count; i += threads) {
    int64_t row;
    if (by_pointers && ends[0] >= 0 && ends[1] >= ends[0]) {
      row = s.last_not_after(first + i, ends[0] + 1, ends[1] + 1);
    } else {
      row = s.row(first + i);
    }
    const int64_t column = s.column(first + i);
    rows[i] = column < 0 ? -1 : row;
    columns[i] = row < 0 ? -1 : column;
  }
  __syncthreads();
}

// Loads `width` neighbouring elements, in one access if they are `aligned` to 16 bytes.
template <bool aligned, class V, class T>
TP_DEVICE V load(const T* elements) {
  if constexpr (aligned) {
    return *reinterpret_cast<const V*>(elements);
  } else {
    V v;
#pragma unroll
    for (int i = 0; i < int(sizeof(V) / sizeof(T)); ++i) v.v[i] = elements[i];
    return v;
  }
}

template <bool aligned, class S, class C>
__global__ __launch_bounds__(threads) void multiply(const S sample, const C split) {
  using T = typename S::T;
  using Acc = acc_t<T>;
  using V = block::Vector<T, C::width>;
  constexpr int batch = 4;
  __shared__ int64_t rows[tile_entries], columns[tile_entries];
  const auto s = sample.bind(simt::Pointers{});
  const int64_t first = int64_t(blockIdx.x) * tile_entries;
  const int count = int(tp::min(int64_t(tile_entries), s.a.entries - first));
  find_entries(s, first, count, rows, columns);

  const int groups = threads / split.lanes, lane = int(threadIdx.x) % split.lanes;
  // All lanes take part in every iteration, because the shuffles need them.
  for (int start = 0; start < count; start += batch * groups) {
    const int mine = start + int(threadIdx.x) / split.lanes;
    Acc sum[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) sum[j] = Acc(0);
    for (int64_t c = lane * C::width; c < s.a.k; c += split.lanes * C::width) {
      V g[batch], x[batch];
      bool is_entry[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        const int i = mine + j * groups;
        is_entry[j] = i < count && rows[i] >= 0;
        if (!is_entry[j]) continue;
        g[j] = load<aligned, V>(s.gy + rows[i] * s.a.k + c);
        x[j] = load<aligned, V>(s.x + columns[i] * s.a.k + c);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
#pragma unroll
        for (int i = 0; i < C::width; ++i) {
          if (is_entry[j]) sum[j] += Acc(g[j].v[i]) * Acc(x[j].v[i]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const Acc dot = sum_lanes(sum[j], split.lanes);
      if (lane == 0 && mine + j * groups < count) s.out[first + mine + j * groups] = T(dot);
    }
  }
}

}  // namespace

// The width, and so the order of a sum, depends on k alone: where the operands lie must not change the bits.
void sampled_product::lanes_per_entry(const Args& args, Context& context) {
  if (args.entries == 0) return;
  with_sample(args, context, [&](const auto& sample) {
    using T = typename std::decay_t<decltype(sample)>::T;
    const unsigned blocks = unsigned(ceil_div(args.entries, int64_t(tile_entries)));
    const cudaStream_t stream = cudaStream_t(context.stream);
    const Columns<int(16 / sizeof(T))> vectors(args.k);
    if (!fills_vectors<T>(args.k)) {
      multiply<false><<<blocks, threads, 0, stream>>>(sample, Columns<1>(args.k));
    } else if (is_aligned(args.gy) && is_aligned(args.x)) {
      multiply<true><<<blocks, threads, 0, stream>>>(sample, vectors);
    } else {
      multiply<false><<<blocks, threads, 0, stream>>>(sample, vectors);
    }
    check_launch("lanes_per_entry");
  });
}

}  // namespace tp
#endif
