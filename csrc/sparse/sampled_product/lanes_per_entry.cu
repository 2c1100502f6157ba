// One group of lanes per entry; the lanes divide the columns, so reads of rows of x and gy are coalesced. A block takes
// a tile of entries: it first finds their rows and columns, and keeps them in shared memory. If rows are given by
// pointers, a launch of its own finds the row in which each tile begins.
#include "sparse/sampled.h"
#ifdef __CUDACC__
#include "block/segments.cuh"
#include "sparse/csr/lanes.cuh"

namespace tp {
namespace {

using namespace sparse;
constexpr int threads = 128, per_thread = 8, tile_entries = per_thread * threads;

// Finds the rows and columns of the `count` entries from `first` on. An entry of which one is -1 must be skipped.
template <class S, class I>
TP_DEVICE void find_entries(const S& s, const block::Split* splits, int64_t first, int count, I* rows, I* columns) {
  if (splits != nullptr) {
    // Each thread takes neighbouring entries: it searches for the row of the first one, and walks from there.
    const int64_t low = splits[blockIdx.x].segment, high = tp::min(splits[blockIdx.x + 1].segment, s.a.rows - 1);
    const int begin = int(threadIdx.x) * per_thread, end = tp::min(begin + per_thread, count);
    int64_t row = begin < end ? s.last_not_after(first + begin, low + 1, high + 1) : 0;
    for (int i = begin; i < end; ++i) {
      while (row < high && int64_t(s.ptrs[row + 1]) <= first + i) ++row;
      rows[i] = inside(row, s.a.rows) ? I(row) : I(-1);
    }
  } else {
    for (int i = int(threadIdx.x); i < count; i += threads) rows[i] = I(s.row(first + i));
  }
  for (int i = int(threadIdx.x); i < count; i += threads) columns[i] = I(s.column(first + i));
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

// Adds up each of `batch` sums over a group of lanes. While a lane has several sums, it gives half of them to the lane
// at `distance` and takes over the other half, so that few values are exchanged. In the end, sum[0] of a lane is the
// total of sum number lane * batch / lanes; if there are fewer lanes than sums, the next ones follow it.
template <int batch, class Acc>
TP_DEVICE void add_over_lanes(Acc (&sum)[batch], int lanes) {
  int distance = lanes / 2;
#pragma unroll
  for (int half = batch / 2; half > 0; half /= 2) {
    if (distance == 0) return;
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int j = 0; j < half; ++j) {
      const Acc given = upper ? sum[j] : sum[j + half], kept = upper ? sum[j + half] : sum[j];
      sum[j] = kept + block::shuffle_xor(given, distance);
    }
    distance /= 2;
  }
  for (; distance > 0; distance /= 2) sum[0] += block::shuffle_xor(sum[0], distance);
}

template <bool aligned, class S, class C>
__global__ __launch_bounds__(threads, 7) void multiply(const S sample, const C split, const block::Split* splits) {
  using T = typename S::T;
  using I = typename S::I;
  using Acc = acc_t<T>;
  using V = block::Vector<T, C::width>;
  constexpr int batch = 4;  // neighbouring entries that a group of lanes multiplies together
  __shared__ I rows[tile_entries], columns[tile_entries];
  const auto s = sample.bind(simt::Pointers{});
  const int64_t first = int64_t(blockIdx.x) * tile_entries;
  const int count = int(tp::min(int64_t(tile_entries), s.a.entries - first));
  block::wait_for_launch_before();
  find_entries(s, splits, first, count, rows, columns);

  const int lanes = split.lanes, group = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  // All lanes take part in every iteration, because the shuffles need them.
  for (int start = 0; start < count; start += batch * threads / lanes) {
    const int mine = start + group * batch;
    Acc sum[batch];
    I row[batch], column[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      sum[j] = Acc(0);
      row[j] = mine + j < count ? rows[mine + j] : I(-1);
      column[j] = row[j] >= 0 ? columns[mine + j] : I(-1);
    }
    for (int64_t c = lane * C::width; c < s.a.k; c += lanes * C::width) {
      V g[batch], x[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (column[j] < 0) continue;
        x[j] = load<aligned, V>(s.x + int64_t(column[j]) * s.a.k + c);
        g[j] = load<aligned, V>(s.gy + int64_t(row[j]) * s.a.k + c);
      }
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        if (column[j] < 0) continue;
#pragma unroll
        for (int i = 0; i < C::width; ++i) sum[j] += Acc(g[j].v[i]) * Acc(x[j].v[i]);
      }
    }
    add_over_lanes(sum, lanes);
    // `sharers` lanes have the same `totals` totals; the first of these lanes stores them.
    const int sharers = tp::max(1, lanes / batch), totals = tp::max(1, batch / lanes);
    if (lane % sharers != 0) continue;
    const int at = mine + lane / sharers * totals;
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if (j < totals && at + j < count) s.out[first + at + j] = T(sum[j]);
    }
  }
}

// Finds the row in which each tile begins, or returns null if entries do not need pointers to know their rows.
const block::Split* find_rows_of_tiles(const SampledArgs& a, int64_t tiles, Context& context) {
  if (a.row_idx != nullptr || a.ptrs == nullptr) return nullptr;
  const block::Bounds<false> bounds{a.long_index ? static_cast<const int64_t*>(a.ptrs) : nullptr,
                                    static_cast<const int32_t*>(a.ptrs), false, a.rows, a.entries};
  auto* splits = context.workspace<block::Split>(tiles + 1);
  block::find_splits(bounds, block::Path(a.entries, a.rows, tile_entries, 0), splits, nullptr, 0, context.stream);
  return splits;
}

}  // namespace

// The width, and so the order of a sum, depends on k alone: where the operands lie must not change the bits.
void sampled_product::lanes_per_entry(const Args& args, Context& context) {
  if (args.entries == 0) return;
  with_sample(args, context, [&](const auto& sample) {
    using S = std::decay_t<decltype(sample)>;
    using T = typename S::T;
    const int64_t tiles = ceil_div(args.entries, int64_t(tile_entries));
    const block::Split* splits = find_rows_of_tiles(args, tiles, context);
    const auto launch = [&](auto aligned, auto columns) {
      block::launch_early(multiply<decltype(aligned)::value, S, decltype(columns)>, dim3(unsigned(tiles)), threads, 0,
                          context, sample, columns, splits);
    };
    const Columns<int(16 / sizeof(T))> vectors(args.k);
    if (!fills_vectors<T>(args.k)) {
      launch(std::false_type{}, Columns<1>(args.k));
    } else if (is_aligned(args.gy) && is_aligned(args.x)) {
      launch(std::true_type{}, vectors);
    } else {
      launch(std::false_type{}, vectors);
    }
    check_launch("lanes_per_entry");
  });
}

}  // namespace tp
#endif
