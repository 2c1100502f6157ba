// single_pass over contiguous rows. Short rows get a few lanes per row, with one load each. Long rows get a warp or a
// block per row; if there are fewer rows than the device can hold blocks, each row is split evenly over several blocks.
#include "reduction/rows.h"
#ifdef __CUDACC__
#include "reduction/running.cuh"

namespace tp::reduction {
namespace {

constexpr int threads = 256;

template <class E>
constexpr int vector = 16 / int(sizeof(typename E::Input));

// ---- short rows: a lane loads `vectors` vectors of each of `rows` rows, with all loads in flight at once

template <class E, int rows, int vectors>
__global__ __launch_bounds__(threads, 1) void short_rows_kernel(const E e, int lanes, bool aligned) {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using V = block::Vector<In, vector<E>>;
  constexpr int width = vector<E>, items = vectors * width;
  const int lane = int(threadIdx.x) % lanes, step = threads / lanes, n = int(e.n);
  const int64_t first = (blockIdx.x * int64_t(rows * threads) + threadIdx.x) / lanes;
  const In filler = Running<E>::filler(e.mirrored);
  const auto index_of = [=](int i) {
    return aligned ? (lane + i / width * lanes) * width + i % width : lane + i * lanes;
  };
  In x[rows][items];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const int64_t row = first + r * step;
    const In* begin = e.in + row * n;
#pragma unroll
    for (int i = 0; i < items; ++i) x[r][i] = filler;
    if (row >= e.rows) continue;
    if (aligned) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        if (index_of(u * width) >= n) continue;
        const V v = *reinterpret_cast<const V*>(begin + index_of(u * width));
#pragma unroll
        for (int i = 0; i < width; ++i) x[r][u * width + i] = v.v[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < items; ++i) {
        if (index_of(i) < n) x[r][i] = begin[index_of(i)];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const int64_t row = first + r * step;
    Running<E> run;
    run.add(x[r], e.mirrored, [&](int i) { return int64_t(index_of(i)); });
    const auto sum = reduce_lanes<M>(run.value, lanes);
    if (lane == 0 && row < e.rows) e.out[row] = e.result(sum);
  }
}

template <int rows, int vectors, class E>
void reduce_short_rows(const E& e, Context& context) {
  int lanes = 1;
  while (lanes * vectors * vector<E> < e.n) lanes *= 2;
  const int64_t blocks = ceil_div(e.rows, int64_t(threads / lanes * rows));
  const bool aligned = e.n % vector<E> == 0 && reinterpret_cast<uintptr_t>(e.in) % 16 == 0;
  require(blocks <= max_grid, "single_pass: ", e.rows, " rows are too many for one launch");
  launch(short_rows_kernel<E, rows, vectors>, blocks, threads, {}, context, e, lanes, aligned);
}

// ---- long rows

// Bytes in flight per thread: 128, or less if its registers cannot hold that many elements.
template <class E>
constexpr int loads = vector<E> > 4 ? 4 : 8;

// Reduces a row of n elements by the threads of `group`, of which this is thread t, `batch` vectors at a time.
template <int batch, class E>
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
  for (int64_t j = t; j < vectors; j += batch * group) {
    In x[batch * width];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
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

// One warp or block per row and split. The blocks of a split row form a cluster, or store their sums in `totals`,
// [rows, splits], for another launch.
template <class E, bool by_warp>
__global__ __launch_bounds__(threads, 1) void long_rows_kernel(const E e, int splits, typename E::Acc* totals) {
  using M = typename E::Monoid;
  constexpr int group = by_warp ? block::warp_size : threads;
  const int t = int(threadIdx.x) % group;
  const int64_t id = blockIdx.x * int64_t(threads / group) + threadIdx.x / group, row = id / splits,
                split = id % splits;
  const bool clustered = splits > 1 && !totals;
  if (clustered) start_cluster();
  if (totals) block::allow_next_launch();
  auto sum = M::identity();
  if (row < e.rows) {
    sum = reduce_row<by_warp ? 4 : loads<E>>(e, e.in + row * e.n, split * group + t, int64_t(splits) * group);
  }
  sum = by_warp ? block::reduce<M>(sum) : reduce_block<M>(sum);
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
  constexpr int64_t tile = threads * loads<E> * vector<E>, warps = threads / block::warp_size;
  require(e.rows <= max_grid, "single_pass: ", e.rows, " rows are too many for one launch");
  if (e.n < 2 * tile && e.rows > enough_blocks) {
    return launch(long_rows_kernel<E, true>, ceil_div(e.rows, warps), threads, {}, context, e, 1, nullptr);
  }
  const int splits = int(tp::max(int64_t(1), tp::min(ceil_div(e.n, tile), enough_blocks / e.rows)));
  const bool clustered = splits > 1 && splits <= largest_cluster && block::is_for_hopper(long_rows_kernel<E, false>);
  typename E::Acc* totals = splits > 1 && !clustered ? context.workspace<typename E::Acc>(e.rows * splits) : nullptr;
  launch(long_rows_kernel<E, false>, e.rows * splits, threads, clustered ? cluster_of(splits) : cudaLaunchAttribute{},
         context, e, splits, totals);
  if (totals) finish(e, totals, splits, context);
}

}  // namespace

void single_pass_rows(const Args& args, Context& context) {
  with_elements<wide_t>(args, [&](const auto& elements) {
    using E = std::decay_t<decltype(elements)>;
    constexpr int width = vector<E>;
    if (elements.n <= width) {
      reduce_short_rows<4, 1>(elements, context);
    } else if (elements.n <= 2 * width) {
      reduce_short_rows<2, 2>(elements, context);
    } else if (elements.n <= 4 * width * block::warp_size) {
      reduce_short_rows<1, 4>(elements, context);
    } else {
      reduce_long_rows(elements, context);
    }
  });
}

}  // namespace tp::reduction
#endif
