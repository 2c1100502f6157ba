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

constexpr int loads = 4;  // in flight a thread

// Elements first to last - 1 of the row at x, by thread t of `group`.
template <class E>
TP_DEVICE typename E::Acc reduce_stretch(const E& e, const typename E::Input* x, int64_t first, int64_t last, int t,
                                         int group) {
  using In = typename E::Input;
  constexpr int width = vector<E>;
  using V = block::Vector<In, width>;
  const In filler = Running<E>::filler(e.mirrored);
  const int64_t offset = int64_t(reinterpret_cast<uintptr_t>(x + first) % 16 / sizeof(In));
  const int64_t head = tp::min((width - offset) % width, last - first);  // elements before the first whole vector
  const int64_t body = first + head, vectors = (last - body) / width, tail = body + vectors * width;
  const V* whole = reinterpret_cast<const V*>(x + body);
  Running<E> run;
  const auto single = [&](int64_t k) {
    const In element[1] = {x[k]};
    run.add(element, e.mirrored, [&](int) { return k; });
  };
  if (t < head) single(first + t);
  for (int64_t j = t; j < vectors; j += loads * group) {
    V v[loads];
#pragma unroll
    for (int u = 0; u < loads; ++u) {
      if (j + u * group < vectors) {
        v[u] = whole[j + u * group];
      } else {
#pragma unroll
        for (int i = 0; i < width; ++i) v[u].v[i] = filler;
      }
    }
    const auto place = [&](int u, int i) { return body + (j + u * group) * width + i; };
    if constexpr (E::Monoid::id == OpId::logsumexp) {  // whose exponentials share one maximum
      In all[loads * width];
#pragma unroll
      for (int i = 0; i < loads * width; ++i) all[i] = v[i / width].v[i % width];
      run.add(all, e.mirrored, [&](int i) { return place(i / width, i % width); });
    } else {
#pragma unroll
      for (int u = 0; u < loads; ++u) run.add(v[u].v, e.mirrored, [&](int i) { return place(u, i); });
    }
  }
  if (tail + t < last) single(tail + t);
  return run.value;
}

// Block (row, split), or a row a warp. totals: [rows, splits], or null where the row's total is final.
template <class E>
__global__ __launch_bounds__(threads) void long_rows_kernel(const E e, int64_t share, int splits, bool by_warp,
                                                            typename E::Acc* totals) {
  using M = typename E::Monoid;
  const int group = by_warp ? block::warp_size : threads, t = int(threadIdx.x) % group;
  const int64_t id =
      by_warp ? blockIdx.x * int64_t(threads / block::warp_size) + threadIdx.x / block::warp_size : int64_t(blockIdx.x);
  const int64_t row = id / splits, split = id % splits;
  let_next_start();
  auto sum = M::identity();
  if (row < e.rows) {
    // Splits begin on a vector's alignment, whatever the row's.
    const auto* x = e.in + row * e.n;
    const int64_t offset = int64_t(reinterpret_cast<uintptr_t>(x) % 16 / sizeof(typename E::Input));
    const int64_t first = tp::max(int64_t(0), split * share - offset);
    sum = reduce_stretch(e, x, first, tp::min(e.n, (split + 1) * share - offset), t, group);
  }
  sum = by_warp ? block::reduce<M>(sum) : reduce_block<M>(sum);
  if (t != 0 || row >= e.rows) return;
  if (totals) {
    totals[id] = sum;
  } else {
    e.out[row] = e.result(sum);
  }
}

template <class E>
void reduce_long_rows(const E& e, Context& context) {
  constexpr int64_t tile = threads * loads * vector<E>;
  const bool by_warp = e.n < 2 * tile && e.rows > enough_blocks;
  const int64_t most = ceil_div(e.n + vector<E> - 1, tile);  // splits of at least a tile
  const int splits = by_warp ? 1 : int(tp::max(int64_t(1), tp::min(most, enough_blocks / e.rows)));
  const int64_t share = ceil_div(ceil_div(e.n + vector<E> - 1, int64_t(splits)), int64_t(vector<E>)) * vector<E>;
  const int64_t blocks = by_warp ? ceil_div(e.rows, int64_t(threads / block::warp_size)) : e.rows * splits;
  require(blocks <= 2147483647, "single_pass: ", e.rows, " rows are too many for one launch");
  auto* totals = splits > 1 ? context.workspace<typename E::Acc>(blocks) : nullptr;
  long_rows_kernel<E>
      <<<unsigned(blocks), threads, 0, cudaStream_t(context.stream)>>>(e, share, splits, by_warp, totals);
  check_launch("single_pass");
  if (splits > 1) finish(e, totals, splits, context);
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
