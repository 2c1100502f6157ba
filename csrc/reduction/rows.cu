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

// Whether results depend on the order of combination. Then the order must not depend on the address of a row, so that
// its bits do not.
template <class E>
constexpr bool rounds = is_floating<typename E::Input> && E::Monoid::id != OpId::max && E::Monoid::id != OpId::argmax;

// ---- short rows: a lane loads `vectors` vectors of each of `rows` rows, with all loads in flight at once

// The rows are the runs, whose sums are stored in `totals`, [rows, parts], if that is not null. `whole` says that they
// are divided into vectors, and `aligned` that these can be loaded as such.
template <class E, int rows, int vectors>
__global__ __launch_bounds__(threads, 1) void short_rows_kernel(const E e, const Runs runs, int lanes, bool whole,
                                                                bool aligned, typename E::Acc* totals) {
  using In = typename E::Input;
  using M = typename E::Monoid;
  using V = block::Vector<In, vector<E>>;
  constexpr int width = vector<E>, items = vectors * width;
  const int lane = int(threadIdx.x) % lanes, step = threads / lanes, n = int(runs.length);
  const int64_t first = (blockIdx.x * int64_t(rows * threads) + threadIdx.x) / lanes, count = e.rows * runs.parts;
  const In filler = Running<E>::filler(e.mirrored);
  const auto index_of = [=](int i) {
    return whole ? (lane + i / width * lanes) * width + i % width : lane + i * lanes;
  };
  if (totals) block::allow_next_launch();
  In x[rows][items];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const int64_t run = first + r * step;
    const In* begin = e.in + run * n;
#pragma unroll
    for (int i = 0; i < items; ++i) x[r][i] = filler;
    if (run >= count) continue;
    if (aligned) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        if (index_of(u * width) >= n) continue;
        const V v = block::load_once(reinterpret_cast<const V*>(begin + index_of(u * width)));
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
    const int64_t run = first + r * step;
    Running<E> running;
    running.add(x[r], e.mirrored, [&](int i) { return int64_t(index_of(i)); });
    const auto sum = reduce_lanes<M>(running.value, lanes);
    if (lane != 0 || run >= count) continue;
    if (totals) {
      const auto [row, part] = runs.at(run);
      totals[row * runs.parts + part] = sum;
    } else {
      e.out[run] = e.result(sum);
    }
  }
}

template <int rows, int vectors, class E>
void reduce_short_rows(const E& e, const Runs& runs, Context& context) {
  int lanes = 1;
  while (lanes * vectors * vector<E> < runs.length) lanes *= 2;
  const int64_t count = e.rows * runs.parts, blocks = ceil_div(count, int64_t(threads / lanes * rows));
  const bool whole = runs.length % vector<E> == 0, aligned = whole && reinterpret_cast<uintptr_t>(e.in) % 16 == 0;
  require(blocks <= max_grid, "single_pass: ", count, " rows are too many for one launch");
  auto* const totals = runs.parts > 1 ? context.workspace<typename E::Acc>(count) : nullptr;
  launch(short_rows_kernel<E, rows, vectors>, blocks, threads, {}, context, e, runs, lanes, rounds<E> ? whole : aligned,
         aligned, totals);
  if (totals) finish(e, totals, runs.parts, context);
}

// ---- long rows

// Bytes in flight per thread: 128, or less if its registers cannot hold that many elements.
template <class E>
constexpr int loads = vector<E> > 4 ? 4 : 8;

// Loads `width` neighbours, `bytes` at a time.
template <int bytes, int width, class In>
TP_DEVICE void load_run(const In* from, In* to) {
  constexpr int together = bytes / int(sizeof(In));
  using V = block::Vector<In, together>;
#pragma unroll
  for (int i = 0; i < width; i += together) {
    const V v = block::load_once(reinterpret_cast<const V*>(from + i));
#pragma unroll
    for (int k = 0; k < together; ++k) to[i + k] = v.v[k];
  }
}

// Combines the vectors of a row with `run`, for thread t of `group`, `batch` vectors at a time, loaded by `bytes` at
// once. `head` elements of the row are before the vectors.
template <int batch, int bytes, class E>
TP_DEVICE void add_vectors(Running<E>& run, bool mirrored, const typename E::Input* row, int64_t head, int64_t vectors,
                           int64_t t, int64_t group) {
  using In = typename E::Input;
  constexpr int width = vector<E>;
  const In filler = Running<E>::filler(mirrored);
  for (int64_t j = t; j < vectors; j += batch * group) {
    In x[batch * width];
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      if (j + u * group < vectors) {
        load_run<bytes, width>(row + head + (j + u * group) * width, x + u * width);
      } else {
#pragma unroll
        for (int i = 0; i < width; ++i) x[u * width + i] = filler;
      }
    }
    run.add(x, mirrored, [&](int i) { return head + (j + i / width * group) * width + i % width; });
  }
}

// The same for a row at any address. It is not inlined, because the instructions of a kernel are fetched in their
// order, for which small problems wait.
template <int batch, class E>
__device__ __noinline__ typename E::Acc reduce_vectors_at_any_address(bool mirrored, const typename E::Input* row,
                                                                      int64_t vectors, int64_t t, int64_t group) {
  constexpr int size = int(sizeof(typename E::Input));
  Running<E> run;
  if (size >= 4 || reinterpret_cast<uintptr_t>(row) % 4 == 0) {
    add_vectors<batch, size >= 4 ? size : 4>(run, mirrored, row, 0, vectors, t, group);
  } else {
    add_vectors<batch, size>(run, mirrored, row, 0, vectors, t, group);
  }
  return run.value;
}

// Reduces n contiguous elements by the threads of `group`, of which this is thread t, `batch` vectors at a time.
// Vectors begin at the first aligned address, or with the row if the result rounds; what is loaded at once may then be
// less.
template <int batch, class E>
TP_DEVICE typename E::Acc reduce_row(const E& e, const typename E::Input* row, int64_t n, int64_t t, int64_t group) {
  using In = typename E::Input;
  constexpr int width = vector<E>, size = int(sizeof(In));
  const int offset = int(reinterpret_cast<uintptr_t>(row) % 16);
  const int64_t head = rounds<E> ? 0 : tp::min(int64_t((16 - offset) % 16 / size), n);
  const int64_t vectors = (n - head) / width, tail = head + vectors * width;
  Running<E> run;
  const auto single = [&](int64_t k) {
    const In element[1] = {row[k]};
    run.add(element, e.mirrored, [&](int) { return k; });
  };
  if (!rounds<E> && t < head) single(t);
  if (rounds<E> && offset != 0) {
    run.value = reduce_vectors_at_any_address<batch, E>(e.mirrored, row, vectors, t, group);
  } else {
    add_vectors<batch, 16>(run, e.mirrored, row, head, vectors, t, group);
  }
  if (tail + t < n) single(tail + t);
  return run.value;
}

// One warp or block per split of a part of a row. If there are several for a row, their blocks form a cluster, or store
// their sums in `totals`, [rows, parts, splits], for another launch.
template <class E, bool by_warp>
__global__ __launch_bounds__(threads, 1) void long_rows_kernel(const E e, const Runs runs, int splits,
                                                               typename E::Acc* totals) {
  using M = typename E::Monoid;
  constexpr int group = by_warp ? block::warp_size : threads;
  const int t = int(threadIdx.x % group);
  const unsigned id = blockIdx.x * (threads / group) + threadIdx.x / group, run = id / unsigned(splits),
                 split = id - run * unsigned(splits);
  const bool clustered = splits > 1 && !totals, within = run < e.rows * runs.parts;
  if (clustered) start_cluster();
  if (totals) block::allow_next_launch();
  auto sum = M::identity();
  if (within) {
    sum = reduce_row<loads<E>>(e, e.in + run * runs.length, runs.length, int64_t(split) * group + t,
                               int64_t(splits) * group);
  }
  sum = by_warp ? block::reduce<M>(sum) : reduce_block<M>(sum);
  if (clustered) sum = reduce_cluster<M>(sum);
  if (t != 0 || !within) return;
  if (totals) {
    const auto [row, part] = runs.at(run);
    totals[(row * runs.parts + part) * splits + split] = sum;
  } else if (!clustered || split == 0) {
    e.out[run] = e.result(sum);
  }
}

template <class E>
void reduce_long_rows(const E& e, const Runs& runs, Context& context) {
  using Acc = typename E::Acc;
  constexpr int64_t tile = threads * loads<E> * vector<E>, warps = threads / block::warp_size;
  const int64_t count = e.rows * runs.parts;
  require(count <= max_grid, "single_pass: ", count, " rows are too many for one launch");
  if (runs.length < 2 * tile && count > enough_blocks) {
    Acc* const totals = runs.parts > 1 ? context.workspace<Acc>(count) : nullptr;
    launch(long_rows_kernel<E, true>, ceil_div(count, warps), threads, {}, context, e, runs, 1, totals);
    if (totals) finish(e, totals, runs.parts, context);
    return;
  }
  const int splits = int(tp::max(int64_t(1), tp::min(ceil_div(runs.length, tile), enough_blocks / count)));
  const bool clustered =
      runs.parts == 1 && splits > 1 && splits <= largest_cluster && block::is_for_hopper(long_rows_kernel<E, false>);
  Acc* const totals = runs.parts * splits > 1 && !clustered ? context.workspace<Acc>(count * splits) : nullptr;
  launch(long_rows_kernel<E, false>, count * splits, threads, clustered ? cluster_of(splits) : cudaLaunchAttribute{},
         context, e, runs, splits, totals);
  if (totals) finish(e, totals, runs.parts * splits, context);
}

}  // namespace

void single_pass_rows(const Args& args, Context& context) {
  with_elements<wide_t>(args, [&](const auto& elements) {
    using E = std::decay_t<decltype(elements)>;
    constexpr int width = vector<E>;
    const Runs runs(elements, args);
    if (runs.length <= width) {
      reduce_short_rows<4, 1>(elements, runs, context);
    } else if (runs.length <= 2 * width) {
      reduce_short_rows<2, 2>(elements, runs, context);
    } else if (runs.length <= 4 * width * block::warp_size) {
      reduce_short_rows<1, 4>(elements, runs, context);
    } else {
      reduce_long_rows(elements, runs, context);
    }
  });
}

}  // namespace tp::reduction
#endif
