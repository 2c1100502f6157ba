// decoupled_lookback over interleaved rows (inner > 1). Here the rows are called columns, because elements with the
// same k are neighbours in memory; line k holds element k of every column. A strip is one cache line wide: `lanes`
// lanes with `vector` columns each. A tile is a range of lines of a strip. The warp_size / lanes lanes that share a
// column divide the lines of a part into runs of `chunks` consecutive lines, so that most of the work stays within a
// lane. `chunks` is odd, so that these runs start in different banks of shared memory.
//
// If all columns fit in one strip that is narrower than a cache line, a tile is a contiguous range of memory. It is
// copied as a whole, and its results are first written to the stage, so that whole cache lines are stored.
#pragma once
#include "block/load_store.cuh"
#include "scan/lookback/block_per_strip.cuh"
#include "scan/lookback/columns.cuh"
#include "scan/lookback/pipeline.cuh"

namespace tp::scan::lookback {

// `affine_chunks`: the lines in a lane's run of a recurrence.
template <class E_, int affine_chunks>
struct Strips {
  using E = E_;
  using M = typename E::Monoid;
  using Acc = typename M::Acc;
  using Input = typename E::Input;
  using Output = typename E::Output;
  static constexpr bool headless = true, affine = M::id == OpId::affine, same_size = sizeof(Input) == sizeof(Output);
  static constexpr int largest = int(tp::max(sizeof(Input), sizeof(Output))), vector = vector_columns<E>;
  static constexpr int parts = 8, sum_warps = 4, look_warps = 2;
  static constexpr int width = vector, max_lanes = tp::min(16, 128 / (vector * largest));
  static constexpr int chunks = affine ? affine_chunks : sizeof(Input) < 4 ? 15 : 11;
  static constexpr int tiles_per_group = 16, groups_per_supergroup = 16;
  using Value = block::Pack<M, width>;
  using Vec = block::Vector<Input, vector>;
  using OutVec = block::Vector<Output, vector>;

  E e;
  int64_t across, strips, tiles;
  int log_lanes, piece;  // bytes per copy, the largest power of two up to 16 that divides all addresses
  bool narrow, out_aligned;

  explicit Strips(const E& e) : e(e), log_lanes(0) {
    while ((1 << log_lanes) < max_lanes && (vector << log_lanes) < e.inner) ++log_lanes;
    narrow = (1 << log_lanes) < max_lanes;
    across = ceil_div(e.inner, int64_t(columns()));
    strips = e.rows / e.inner * across;
    tiles = strips * ceil_div(e.n, int64_t(tile_lines()));
    const uint64_t addresses = reinterpret_cast<uintptr_t>(e.in) | (affine ? reinterpret_cast<uintptr_t>(e.a) : 0) |
                               uint64_t(e.inner) * sizeof(Input) | uint64_t(columns()) * sizeof(Input) | 16;
    piece = int(addresses & (~addresses + 1));
    out_aligned = reinterpret_cast<uintptr_t>(e.out) % alignof(OutVec) == 0 && e.inner % vector == 0;
  }

  TP_HD int lanes() const { return 1 << log_lanes; }
  // Whether results go to memory by way of the stage, which is free once the elements are in registers.
  TP_HD bool through_stage() const { return narrow && same_size; }
  TP_HD int summing_lanes() const { return through_stage() ? block::warp_size : lanes(); }
  TP_HD int columns() const { return vector << log_lanes; }
  TP_HD int part_lines() const { return (block::warp_size >> log_lanes) * chunks; }
  TP_HD int tile_lines() const { return part_lines() * parts; }
  TP_HD int64_t chains() const { return strips; }
  TP_HD int64_t groups() const { return ceil_div(tiles / strips, int64_t(tiles_per_group)); }
  TP_HD bool independent() const { return tiles == strips; }
  // The distance between lines in the stage, in elements.
  TP_HD int pitch() const { return narrow ? int(e.inner) : columns(); }
  TP_HD int array_bytes() const { return (tile_lines() * pitch() * int(sizeof(Input)) / 128 + 2) * 128; }
  TP_HD int stage_bytes() const { return array_bytes() * (affine ? 2 : 1); }

  TP_DEVICE TilePosition position(int64_t tile) const {
    const int64_t index = quotient(tile, strips), strip = tile - index * strips, outer = quotient(strip, across);
    return {tile, strip, index, 0, 0, 0, outer, (strip - outer * across) * columns()};
  }
  // The index in memory of line k of a strip's first column.
  TP_DEVICE int64_t at(const TilePosition& position, int64_t k) const {
    return (position.outer * e.n + (e.reverse ? e.n - 1 - k : k)) * e.inner + position.column;
  }
  TP_DEVICE Value origin(const TilePosition& position, int lane) const {
    Value x = Value::identity();
    if constexpr (affine) {
      const int64_t column = position.column + lane * vector, row = position.outer * e.inner + column;
      for (int v = 0; v < vector && e.initial && column + v < e.inner; ++v) {
        x.v[v] = {0, decltype(Acc::a)(e.initial[row + v])};
      }
    }
    return x;
  }

  // ---- from memory to the stage

  TP_DEVICE void load(const TilePosition& position, block::Barrier& full, unsigned char* stage, int warp,
                      int lane) const {
    if (narrow) {
      if (warp == 0) load_piece(e.in, e.in, position, full, stage, lane);
      if (affine && warp == load_warps - 1) load_piece(e.factors(), e.a, position, full, stage + array_bytes(), lane);
      return;
    }
    const auto all = [&](auto bytes) {
      constexpr int size = decltype(bytes)::value;
      const int thread = warp * block::warp_size + lane;
      load_lines<size>(e.in, 0, position, stage, thread);
      if constexpr (affine) load_lines<size>(e.factors(), e.previous ? 1 : 0, position, stage + array_bytes(), thread);
    };
    if (piece == 16) {
      all(std::integral_constant<int, 16>{});
    } else if (piece >= 4) {
      all(std::integral_constant<int, 4>{});
    } else {
      all(std::integral_constant<int, int(sizeof(Input))>{});
    }
  }
  // The address of a narrow tile's first byte. It may lie outside the tile's rows, but nothing outside them is read.
  TP_DEVICE const unsigned char* tile_memory(const Input* data, const TilePosition& position) const {
    const int64_t first = position.index * tile_lines();
    return reinterpret_cast<const unsigned char*>(data + at(position, e.reverse ? first + tile_lines() - 1 : first));
  }
  TP_DEVICE static int shift(const unsigned char* memory) { return int(reinterpret_cast<uintptr_t>(memory) % 16); }
  // `data` is the address of element 0, which for shifted factors may lie outside the array; `real` is where the array
  // begins.
  TP_DEVICE void load_piece(const Input* data, const Input* real, const TilePosition& position, block::Barrier& full,
                            unsigned char* stage, int lane) const {
    const unsigned char* first = tile_memory(data, position);
    const auto* rows = reinterpret_cast<const unsigned char*>(real + position.outer * e.n * e.inner);
    const auto* begin = tp::max(first, rows);
    const auto* end = tp::min(first + tile_lines() * e.inner * sizeof(Input), rows + e.n * e.inner * sizeof(Input));
    block::copy_bulk(full, stage + shift(first) + (begin - first), begin, end, lane);
  }
  // Loads a wide tile by copies of `bytes` bytes: each thread copies the same columns of every step-th line. Lines
  // before `absent` do not exist in the first tile of a strip.
  template <int bytes>
  TP_DEVICE void load_lines(const Input* data, int absent, const TilePosition& position, unsigned char* stage,
                            int thread) const {
    const int line_bytes = columns() * int(sizeof(Input)), pieces = line_bytes / bytes,
              step = load_warps * block::warp_size / pieces;
    const int column = thread % pieces * bytes;
    int line = thread / pieces;
    if (position.index == 0 && line < absent) line += step;
    if (column >= (e.inner - position.column) * int64_t(sizeof(Input))) return;
    const int most = int(tp::min(int64_t(tile_lines()), e.n - position.index * tile_lines()));
    const char* from =
        reinterpret_cast<const char*>(data + at(position, position.index * tile_lines() + line)) + column;
    unsigned char* to = stage + line * line_bytes + column;
    const int64_t pitch = (e.reverse ? -e.inner : e.inner) * int64_t(sizeof(Input)) * step;
#pragma unroll 4
    for (; line < most; line += step, to += step * line_bytes, from += pitch) {
      if constexpr (bytes >= 4) {
        block::copy_async<bytes>(to, from);
      } else {
        *reinterpret_cast<Input*>(to) = *reinterpret_cast<const Input*>(from);
      }
    }
  }

  // ---- a lane's elements: `vector` columns of `chunks` consecutive lines

  struct Items {
    Vec x[chunks];
    block::Vector<Input, affine ? vector : 1> a[affine ? chunks : 1];

    TP_DEVICE Acc operator()(int j, int v) const {
      if constexpr (affine) {
        using A = decltype(Acc::a);
        return {A(a[j].v[v]), A(x[j].v[v])};
      } else {
        return Acc(x[j].v[v]);
      }
    }
    TP_DEVICE Value sum() const {
      Value sum = Value::identity();
#pragma unroll
      for (int j = 0; j < chunks; ++j) {
#pragma unroll
        for (int v = 0; v < vector; ++v) sum.v[v] = append<M>(sum.v[v], (*this)(j, v));
      }
      return sum;
    }
  };
  // The first line of a lane in the tile, and its first column in the strip.
  TP_DEVICE int first_line(int part, int lane) const { return part * part_lines() + (lane >> log_lanes) * chunks; }
  TP_DEVICE int lane_column(int lane) const { return (lane & (lanes() - 1)) * vector; }
  // The address of a lane's first element in the stage; stage_step() is the distance from one of its lines to the next.
  TP_DEVICE Input* in_stage(const Input* data, const TilePosition& position, unsigned char* stage, int part,
                            int lane) const {
    const int line = first_line(part, lane), shifted = narrow ? shift(tile_memory(data, position)) : 0;
    return reinterpret_cast<Input*>(stage + shifted) +
           (narrow && e.reverse ? tile_lines() - 1 - line : line) * pitch() + lane_column(lane);
  }
  TP_DEVICE int stage_step() const { return narrow && e.reverse ? -pitch() : pitch(); }

  TP_DEVICE void read_array(const Input* from, Vec (&y)[chunks], int column) const {
    const int step = stage_step();
    if (!narrow || (e.inner % vector == 0 && reinterpret_cast<uintptr_t>(from) % alignof(Vec) == 0)) {
#pragma unroll
      for (int j = 0; j < chunks; ++j) y[j] = *reinterpret_cast<const Vec*>(from + j * step);
    } else {
#pragma unroll
      for (int j = 0; j < chunks; ++j) {
#pragma unroll
        for (int v = 0; v < vector; ++v) y[j].v[v] = column + v < e.inner ? from[j * step + v] : Input(0);
      }
    }
  }
  TP_DEVICE Items read(const TilePosition& position, unsigned char* stage, int part, int lane) const {
    Items y;
    read_array(in_stage(e.in, position, stage, part, lane), y.x, lane_column(lane));
    if constexpr (affine) {
      read_array(in_stage(e.factors(), position, stage + array_bytes(), part, lane), y.a, lane_column(lane));
      if (position.index == 0 && first_line(part, lane) == 0 && !e.initial) {
#pragma unroll
        for (int v = 0; v < vector; ++v) y.a[0].v[v] = Input(0);  // the first factor of a row is not used
      }
    }
    return y;
  }

  // Phase one, by the sum warps: the aggregate of a part.
  TP_DEVICE Value sum(const TilePosition& position, unsigned char* stage, int part, int lane, bool&) const {
    Value sum = read(position, stage, part, lane).sum();
    for (int stride = lanes(); stride < block::warp_size; stride *= 2) {
      sum = Value::combine(sum, block::shuffle_down(sum, stride));
    }
    return sum;
  }

  template <class Before>
  TP_DEVICE void scan(const TilePosition& position, unsigned char* stage, int part, int lane,
                      Before wait_before) const {
    // Reduce the lane's own elements, then scan these totals over the lanes of the column.
    const Items x = read(position, stage, part, lane);
    Value sum = x.sum();
    for (int stride = lanes(); stride < block::warp_size; stride *= 2) {
      const Value left = block::shuffle_up(sum, stride);
      if (lane >= stride) sum = Value::combine(left, sum);
    }
    sum = block::shuffle_up(sum, lanes());
    // Wait for the prefix of the part, then scan the lane's elements and store them, one line per step.
    Value running = wait_before();
    if (lane >= lanes()) running = Value::combine(running, sum);

    const int64_t k = position.index * tile_lines() + first_line(part, lane);
    const int64_t left = e.inner - position.column - lane_column(lane);
    const int most = through_stage() ? chunks : int(tp::min(int64_t(chunks), e.n - k));
    Output* to = through_stage() ? reinterpret_cast<Output*>(in_stage(e.in, position, stage, part, lane))
                                 : e.out + at(position, k) + lane_column(lane);
    const int64_t step = through_stage() ? stage_step() : e.reverse ? -e.inner : e.inner;
    const bool vectors =
        through_stage() ? e.inner % vector == 0 && reinterpret_cast<uintptr_t>(to) % alignof(OutVec) == 0 : out_aligned;
    if (left > 0) {
#pragma unroll
      for (int j = 0; j < chunks; ++j, to += step) {
        if (j >= most) break;
        OutVec y;
#pragma unroll
        for (int v = 0; v < vector; ++v) {
          const Acc next = append<M>(running.v[v], x(j, v)), result = e.exclusive ? running.v[v] : next;
          if constexpr (affine) {
            y.v[v] = Output(result.b);
          } else {
            y.v[v] = Output(result);
          }
          running.v[v] = next;
        }
        if (vectors) {
          *reinterpret_cast<OutVec*>(to) = y;
        } else {
#pragma unroll
          for (int v = 0; v < vector; ++v) {
            if (v < left) to[v] = y.v[v];
          }
        }
      }
    }
    if (through_stage()) store_part(position, stage, part, lane);
  }

  // Stores the results of a narrow tile's part from the stage to memory.
  TP_DEVICE void store_part(const TilePosition& position, const unsigned char* stage, int part, int lane) const {
    __syncwarp();
    const int64_t first = position.index * tile_lines() + part * part_lines();
    const int most = int(tp::min(int64_t(part_lines()), e.n - first));
    if (most <= 0) return;
    const int begin = e.reverse ? tile_lines() - part * part_lines() - most : part * part_lines();
    const int bytes = most * pitch() * int(sizeof(Output));
    const unsigned char* from = stage + shift(tile_memory(e.in, position)) + begin * pitch() * int(sizeof(Output));
    auto* to = reinterpret_cast<unsigned char*>(e.out + at(position, e.reverse ? first + most - 1 : first));
    int done = 0;
    if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0) {
      done = bytes / 16 * 16;
#pragma unroll 4
      for (int i = lane * 16; i < done; i += block::warp_size * 16) {
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
      }
    }
    for (int i = done + lane * int(sizeof(Output)); i < bytes; i += block::warp_size * int(sizeof(Output))) {
      *reinterpret_cast<Output*>(to + i) = *reinterpret_cast<const Output*>(from + i);
    }
  }
};

// Rows of at most 64 elements, or of 256 if they are numerous, are scanned by one thread per few rows, and longer ones
// by one block per strip if there are enough strips.
template <class E>
void scan_strips(const E& e, Context& context) {
  const bool numerous = e.rows / vector_columns<E> >= 1 << 17;
  if (e.n <= (numerous ? 256 : 64)) return scan_columns(e, context);
  if (scan_strips_by_block(e, context)) return;
  const Strips<E, 9> strips(e);
  if constexpr (strips.affine) {  // two tiles of nine lines per run need more shared memory than many GPUs have
    if (stages_that_fit(strips) < strips.look_warps) return launch_pipeline(Strips<E, 5>(e), context);
  }
  launch_pipeline(strips, context);
}

}  // namespace tp::scan::lookback
