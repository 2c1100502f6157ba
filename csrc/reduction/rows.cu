// single_pass over contiguous rows. Short rows: a few lanes a row, several rows at once a lane. Long rows: a warp or a
// block a row; where there are fewer rows than the device can hold blocks, each row is split evenly over several.
#include "reduction/rows.h"
#ifdef __CUDACC__
#include "reduction/running.cuh"

namespace tp::reduction {
namespace {

constexpr int threads = 256;

template <class E>
constexpr int vector = 16 / int(sizeof(typename E::Input));

// ---- short rows: at most a vector a lane of a warp

constexpr int rows_at_once = 4;

template <class E>
__global__ __launch_bounds__(threads) void short_rows_kernel(const E e, int lanes, bool aligned) {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using V = block::Vector<In, vector<E>>;
  constexpr int width = vector<E>;
  const int lane = int(threadIdx.x) % lanes, step = threads / lanes, n = int(e.n);
  const int64_t first = (blockIdx.x * int64_t(rows_at_once * threads) + threadIdx.x) / lanes;
  const In filler = Running<E>::filler(e.mirrored);
  V x[rows_at_once];
#pragma unroll
  for (int u = 0; u < rows_at_once; ++u) {
    const int64_t row = first + u * step;
    const In* begin = e.in + row * n;
    if (aligned) {
      if (row < e.rows && lane * width < n) {
        x[u] = *reinterpret_cast<const V*>(begin + lane * width);
      } else {
#pragma unroll
        for (int i = 0; i < width; ++i) x[u].v[i] = filler;
      }
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const int k = lane + i * lanes;
        x[u].v[i] = row < e.rows && k < n ? begin[k] : filler;
      }
    }
  }
#pragma unroll
  for (int u = 0; u < rows_at_once; ++u) {
    const int64_t row = first + u * step;
    Running<E> run;
    run.add(x[u].v, e.mirrored, [&](int i) { return int64_t(aligned ? lane * width + i : lane + i * lanes); });
    const auto sum = reduce_lanes<M>(run.value, lanes);
    if (lane == 0 && row < e.rows) e.out[row] = e.result(sum);
  }
}

template <class E>
void reduce_short_rows(const E& e, Context& context) {
  int lanes = 1;
  while (lanes * vector<E> < e.n) lanes *= 2;
  const int64_t rows_a_block = threads / lanes * rows_at_once, blocks = ceil_div(e.rows, rows_a_block);
  const bool aligned = e.n % vector<E> == 0 && reinterpret_cast<uintptr_t>(e.in) % 16 == 0;
  require(blocks <= 2147483647, "single_pass: ", e.rows, " rows are too many for one launch");
  short_rows_kernel<E><<<unsigned(blocks), threads, 0, cudaStream_t(context.stream)>>>(e, lanes, aligned);
  check_launch("single_pass");
}

// ---- long rows

constexpr int loads = 8;  // in flight a thread

// A row of n elements at x, by thread t of `group`.
template <class E>
TP_DEVICE typename E::Acc reduce_row(const E& e, const typename E::Input* row, int64_t t, int64_t group) {
  using In = typename E::Input;
  constexpr int width = vector<E>;
  using V = block::Vector<In, width>;
  const In filler = Running<E>::filler(e.mirrored);
  const int64_t offset = int64_t(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(In));
  const int64_t head = tp::min((width - offset) % width, e.n);  // elements before the first whole vector
  const int64_t vectors = (e.n - head) / width, tail = head + vectors * width;
  const V* whole = reinterpret_cast<const V*>(row + head);
  Running<E> run;
  const auto single = [&](int64_t k) {
    const In element[1] = {row[k]};
    run.add(element, e.mirrored, [&](int) { return k; });
  };
  if (t < head) single(t);
  for (int64_t j = t; j < vectors; j += loads * group) {
    In x[loads * width];
#pragma unroll
    for (int u = 0; u < loads; ++u) {
      if (j + u * group < vectors) {
        const V v = whole[j + u * group];
#pragma unroll
        for (int i = 0; i < width; ++i) x[u * width + i] = v.v[i];
      } else {
#pragma unroll
        for (int i = 0; i < width; ++i) x[u * width + i] = filler;
      }
    }
    run.add(x, e.mirrored, [&](int i) { return head + (j + i / width * group) * width + i % width; });
  }
  if (tail + t < e.n) single(tail + t);
  return run.value;
}

// A block a row and split, or a warp a row. Where a row is split, its blocks are a cluster, or leave their sums in
// `totals`, [rows, splits], for another launch.
struct Split {
  int splits;
  bool by_warp;
};

template <class E>
__global__ __launch_bounds__(threads) void long_rows_kernel(const E e, const Split s, typename E::Acc* totals) {
  using M = typename E::Monoid;
  constexpr int warps = threads / block::warp_size;
  const int group = s.by_warp ? block::warp_size : threads, t = int(threadIdx.x) % group;
  const int64_t id = s.by_warp ? blockIdx.x * int64_t(warps) + threadIdx.x / block::warp_size : int64_t(blockIdx.x);
  const int64_t row = id / s.splits, split = id % s.splits;
  const bool clustered = s.splits > 1 && !totals;
  if (clustered) start_cluster();
  if (totals) let_next_start();
  auto sum = M::identity();
  if (row < e.rows) sum = reduce_row(e, e.in + row * e.n, split * int64_t(group) + t, s.splits * int64_t(group));
  sum = s.by_warp ? block::reduce<M>(sum) : reduce_block<M>(sum);
  if (clustered) sum = reduce_cluster<M>(sum);
  if (t != 0 || row >= e.rows) return;
  if (totals) {
    totals[id] = sum;
  } else if (!clustered || split == 0) {
    e.out[row] = e.result(sum);
  }
}

template <class E>
void reduce_long_rows(const E& e, Context& context) {
  constexpr int64_t tile = threads * loads * vector<E>;
  Split s{1, e.n < 2 * tile && e.rows > enough_blocks};
  if (!s.by_warp) s.splits = int(tp::max(int64_t(1), tp::min(ceil_div(e.n, tile), enough_blocks / e.rows)));
  const int64_t blocks = s.by_warp ? ceil_div(e.rows, int64_t(threads / block::warp_size)) : e.rows * s.splits;
  require(blocks <= 2147483647, "single_pass: ", e.rows, " rows are too many for one launch");
  const bool clustered = s.splits > 1 && s.splits <= largest_cluster && is_hopper();
  typename E::Acc* totals = s.splits > 1 && !clustered ? context.workspace<typename E::Acc>(blocks) : nullptr;
  launch(long_rows_kernel<E>, blocks, threads, clustered ? cluster_of(s.splits) : cudaLaunchAttribute{}, context, e, s,
         totals);
  if (totals) finish(e, totals, s.splits, context);
}

}  // namespace

void single_pass_rows(const Args& args, Context& context) {
  with_elements<wide_t>(args, [&](const auto& elements) {
    using E = std::decay_t<decltype(elements)>;
    if (elements.n <= block::warp_size * vector<E>) {
      reduce_short_rows(elements, context);
    } else {
      reduce_long_rows(elements, context);
    }
  });
}

}  // namespace tp::reduction
#endif
