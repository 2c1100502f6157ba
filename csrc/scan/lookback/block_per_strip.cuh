// Interleaved rows with enough strips to keep the device busy: one block per strip, without look-back. The block walks
// down its strip tile by tile. Each lane loads a run of consecutive lines of its columns into registers and combines
// them; these totals are scanned over the runs of a warp by shuffles, and over the warps through shared memory, after
// the total of all earlier tiles, which every lane carries along. Then each lane scans its run.
#pragma once
#include "scan/lookback/columns.cuh"

namespace tp::scan::lookback {

template <class E>
class StripBlock {
 public:
  static constexpr int threads = 256, blocks = 2;  // per multiprocessor
  static constexpr int warps = threads / block::warp_size, vector = vector_columns<E>, lanes = 8, chunks = 8;
  static constexpr int columns = lanes * vector, tile_lines = threads / lanes * chunks;
  using M = typename E::Monoid;
  using Value = block::Pack<M, vector>;
  using Totals = Value[2][warps][lanes];

  TP_DEVICE StripBlock(const E& e, Totals& totals) : e(e), totals(totals) {}

  // Scans the strip that begins at column `first`. If it can be accessed by vectors, a lane has neighbouring columns;
  // otherwise its columns are `lanes` apart, so that neighbouring lanes access neighbouring elements.
  TP_DEVICE void scan(int64_t outer, int64_t first) {
    const auto neighbours = strip_of<1>(outer, first + mine * vector);
    const auto& [in, a, out] = neighbours;
    if (in.aligned && out.aligned && (!affine || a.aligned) && first + columns <= e.inner) {
      scan_strip(neighbours, outer * e.inner + first + mine * vector);
    } else {
      scan_strip(strip_of<lanes>(outer, first + mine), outer * e.inner + first + mine);
    }
  }

 private:
  static constexpr bool affine = M::id == OpId::affine;
  const E& e;
  Totals& totals;
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  const int mine = lane % lanes, line = int(threadIdx.x) / lanes * chunks;  // the lane's columns, and its run in a tile
  int turn = 0;                                                             // which of the two `totals` a tile uses

  template <int spread>
  struct Strip {
    Columns<const typename E::Input, vector, spread> in, a;
    Columns<typename E::Output, vector, spread> out;
    static constexpr bool by_vectors = spread == 1;
  };
  template <int spread>
  TP_DEVICE Strip<spread> strip_of(int64_t outer, int64_t column) const {
    return {columns_of<vector, spread>(e, e.in, outer, column),
            columns_of<vector, spread>(e, e.factors(), outer, column),
            columns_of<vector, spread>(e, e.out, outer, column)};
  }

  // `row` is the row of the lane's first column.
  template <int spread>
  TP_DEVICE void scan_strip(const Strip<spread>& strip, int64_t row) {
    Value before = Value::identity();
    if constexpr (affine) {
#pragma unroll
      for (int v = 0; v < vector; ++v) {
        if (e.initial && v < strip.in.left) before.v[v] = {0, decltype(E::Acc::a)(e.initial[row + v * spread])};
      }
    }
    for (int64_t first = 0; first < e.n; first += tile_lines) {
      if (strip.by_vectors && first + tile_lines <= e.n) {
        scan_tile<true>(strip, first + line, chunks, before);
      } else {
        scan_tile<false>(strip, first + line, int(tp::min(int64_t(chunks), e.n - first - line)), before);
      }
    }
  }

  // Scans a tile in which `count` lines from line k on belong to the lane; if the tile is `whole`, all of them.
  template <bool whole, int spread>
  TP_DEVICE void scan_tile(const Strip<spread>& strip, int64_t k, int count, Value& before) {
    typename Columns<typename E::Input, vector>::Vec x[chunks], factor[affine ? chunks : 1];
    const auto each_line = [&](auto f) {
#pragma unroll
      for (int j = 0; j < chunks; ++j) {
        if (whole || j < count) f(j);
      }
    };
    each_line([&](int j) { x[j] = strip.in.template load<strip.by_vectors>(k + j); });
    if constexpr (affine) {
      each_line([&](int j) {
        if (j > 0 || k > 0 || !e.previous) factor[j] = strip.a.template load<strip.by_vectors>(k + j);
      });
      if (k == 0 && !e.initial) factor[0] = {};  // nothing precedes the first line
    }
    const auto append = [&](int j, Value& to) {
      return scan_line<E, vector>(e, x[j], factor[affine ? j : 0], false, to.v);
    };
    // Combine the lines of the run, then scan the totals of the runs over the warp and over the block.
    Value sum = Value::identity();
    each_line([&](int j) { append(j, sum); });
    if constexpr (sizeof(typename E::Input) < 4) {  // convert these elements twice, not hold them in both types
      each_line([&](int j) {
        block::forget(x[j]);
        if constexpr (affine) block::forget(factor[j]);
      });
    }
#pragma unroll
    for (int stride = lanes; stride < block::warp_size; stride *= 2) {
      const Value left = block::shuffle_up(sum, stride);
      if (lane >= stride) sum = Value::combine(left, sum);
    }
    if (lane >= block::warp_size - lanes) totals[turn][warp][mine] = sum;
    sum = block::shuffle_up(sum, lanes);
    __syncthreads();
    Value total = Value::identity(), running = Value::identity();
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      if (w == warp) running = total;
      total = Value::combine(total, totals[turn][w][mine]);
    }
    running = Value::combine(before, running);
    if (lane >= lanes) running = Value::combine(running, sum);
    before = Value::combine(before, total);
    turn ^= 1;
    // Scan the lines of the run.
    each_line([&](int j) { strip.out.template store<strip.by_vectors>(k + j, append(j, running)); });
  }
};

template <class E>
__global__ __launch_bounds__(StripBlock<E>::threads, StripBlock<E>::blocks) void strip_kernel(const E e, int64_t across,
                                                                                              int64_t strips) {
  __shared__ typename StripBlock<E>::Totals totals;
  StripBlock<E> block(e, totals);
  for (int64_t strip = blockIdx.x; strip < strips; strip += gridDim.x) {
    block.scan(strip / across, strip % across * StripBlock<E>::columns);
  }
}

// Scans `e` if there are strips for two fifths of the blocks that fit on the device, with one to 128 whole tiles each.
// Otherwise it returns false. A result goes through one rounding per earlier tile, so longer strips are divided. Fewer
// columns than a strip has are contiguous in memory, which tiles make use of.
template <class E>
bool scan_strips_by_block(const E& e, Context& context) {
  using S = StripBlock<E>;
  const int64_t across = ceil_div(e.inner, int64_t(S::columns)), strips = e.rows / e.inner * across;
  const int64_t slots = int64_t(block::device_attribute<cudaDevAttrMultiProcessorCount>()) * S::blocks;
  if (e.inner < S::columns || e.n < S::tile_lines || e.n > 128 * S::tile_lines || strips * 5 < slots * 2) return false;
  strip_kernel<<<unsigned(tp::min(strips, slots)), S::threads, 0, cudaStream_t(context.stream)>>>(e, across, strips);
  check_launch("decoupled_lookback");
  return true;
}

}  // namespace tp::scan::lookback
