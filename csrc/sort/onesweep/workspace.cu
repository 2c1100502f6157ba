#ifdef __CUDACC__
#include "block/warp.cuh"
#include "core/op.h"
#include "sort/onesweep/digits.cuh"
#include "sort/onesweep/launch.cuh"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {
namespace {

constexpr int threads = 1024;

int passes_of(const Args& args) { return tp::max(1, ceil_div(args.end_bit - args.begin_bit, digit_bits)); }

// Numbers the tiles of the listed segments, in one block. Offsets that decrease may make segments overlap; it therefore
// drops segments that do not fit in the workspace.
struct Layout {
  Lists lists;
  int tile_items;
  int64_t most_tiles;
  Segment* segments;
  unsigned long long* counts;   // the numbers of segments and of tiles
  unsigned long long* cleared;  // [passes + 1]: tickets and active
  int passes;
};

__global__ __launch_bounds__(threads) void layout_kernel(const Layout a) {
  __shared__ int64_t warp_tiles[threads / block::warp_size];
  __shared__ unsigned long long fit, tiles_in_all;
  const int thread = int(threadIdx.x), warp = thread / block::warp_size, lane = thread % block::warp_size;
  block::wait_for_launch_before();
  block::allow_next_launch();
  const auto bound = a.lists.offsets.bind(simt::Pointers{});
  const int64_t count = tp::min(int64_t(a.lists.counts[long_class]), a.lists.most[long_class]);
  if (thread == 0) fit = tiles_in_all = 0;
  if (thread <= a.passes) a.cleared[thread] = 0;
  int64_t before = 0, end = 0;
  for (int64_t first = 0; first < count; first += threads) {
    // Read one segment per thread.
    const int64_t i = first + thread;
    Segment s{0, 0, 0, false};
    if (i < count) {
      const int64_t segment = a.lists.longest[i];
      s.begin = bound.begin(segment);
      s.n = bound.end(segment) - s.begin;
    }
    // Scan the segments' numbers of tiles over the block.
    const int64_t tiles = ceil_div(s.n, int64_t(a.tile_items));
    int64_t upto = block::inclusive_scan<Sum<int64_t>>(tiles);
    if (lane == block::warp_size - 1) warp_tiles[warp] = upto;
    __syncthreads();
    int64_t all = 0;
    for (int w = 0; w < threads / block::warp_size; ++w) {
      if (w < warp) upto += warp_tiles[w];
      all += warp_tiles[w];
    }
    s.first_tile = before + upto - tiles;
    // Store the segment, unless its tiles exceed the workspace.
    if (i < count && before + upto <= a.most_tiles) {
      a.segments[i] = s;
      atomicMax(&fit, static_cast<unsigned long long>(i + 1));
      end = before + upto;
    }
    before += all;
    __syncthreads();
  }
  if (end) atomicMax(&tiles_in_all, static_cast<unsigned long long>(end));
  __syncthreads();
  if (thread == 0) a.counts[0] = fit, a.counts[1] = tiles_in_all;
}

// Clears the state of the segments in use, and writes the segment number of every tile.
struct Clear {
  Problems problems;
  State state;
  int passes;
  unsigned* segment_of;
};

__global__ __launch_bounds__(threads) void clear_kernel(const Clear a) {
  block::wait_for_launch_before();
  block::allow_next_launch();
  const int64_t segments = int64_t(a.problems.counts[0]), tiles = int64_t(a.problems.counts[1]);
  const int64_t thread = threadIdx.x, first = int64_t(blockIdx.x) * threads + thread;
  const int64_t step = int64_t(gridDim.x) * threads;
  const auto clear = [&](auto* to, int64_t n) {
    for (int64_t i = first; i < n; i += step) to[i] = 0;
  };
  clear(a.state.starts, segments * a.passes * radix);
  clear(a.state.done, segments);
  clear(static_cast<unsigned*>(a.state.tile_states), tiles * radix * (a.state.wide ? 2 : 1));
  for (int64_t i = blockIdx.x; i < segments; i += gridDim.x) {
    const Segment s = a.problems.list[i];
    const int64_t n = ceil_div(s.n, int64_t(a.problems.tile_items));
    for (int64_t tile = thread; tile < n; tile += threads) a.segment_of[s.first_tile + tile] = unsigned(i);
  }
}

// Appends the buckets of a divided segment to the lists of their classes: one thread per bucket. A bucket of one key is
// in order.
struct ListBuckets {
  Problems problems;
  State state;
  int passes;
  Lists lists;
};

__global__ __launch_bounds__(radix) void list_buckets_kernel(const ListBuckets a) {
  __shared__ unsigned long long lengths[classes];
  const int digit = int(threadIdx.x);
  block::wait_for_launch_before();
  block::allow_next_launch();
  const int64_t segments = int64_t(a.problems.counts[0]);
  for (int64_t i = blockIdx.x; i < segments; i += gridDim.x) {
    const Segment s = a.problems.list[i];
    if (!s.divided) continue;
    if (digit < classes) lengths[digit] = 0;
    __syncthreads();
    const unsigned long long* const starts = a.state.starts + ((i + 1) * a.passes - 1) * radix;
    const int64_t begin = int64_t(starts[digit]), end = digit + 1 < radix ? int64_t(starts[digit + 1]) : s.n;
    const bool listed = end - begin > 1;
    const int c = listed ? class_of(end - begin) : 0, lane = digit % block::warp_size;
    // One lane adds for all lanes with buckets of the same class.
    const unsigned same = __match_any_sync(~0u, listed ? c : -1);
    const int leader = __ffs(int(same)) - 1;
    unsigned long long before = 0;
    if (listed && lane == leader) before = atomicAdd(lengths + c, static_cast<unsigned long long>(__popc(same)));
    int64_t at = int64_t(block::broadcast(before, leader)) + __popc(same & ((1u << lane) - 1));
    __syncthreads();
    if (digit < classes && lengths[digit]) lengths[digit] = atomicAdd(a.lists.counts + digit, lengths[digit]);
    __syncthreads();
    at += int64_t(lengths[c]);
    if (listed && at < a.lists.most[c]) a.lists.ranges[c][at] = Range::of(s.begin + begin, int(end - begin), true);
    __syncthreads();
  }
}

// Allocates the state for that many segments and tiles. The part that has to be cleared is contiguous: tickets, active,
// done, starts, tile states.
State allocate_state(int64_t segments, int64_t tiles, int passes, bool wide, int64_t& bytes, Context& context) {
  const int64_t starts = segments * passes * radix, words = tiles * radix * (wide ? 8 : 4);
  bytes = (passes + 1 + ceil_div(segments, int64_t(2)) + starts) * 8 + words;
  auto* memory = static_cast<unsigned long long*>(context.allocate(bytes));
  State state{};
  state.tickets = memory;
  state.active = reinterpret_cast<unsigned*>(memory + passes);
  state.done = state.active + 2;
  state.starts = memory + passes + 1 + ceil_div(segments, int64_t(2));
  state.tile_states = state.starts + starts;
  if (passes > 1) state.alternate_tile_states = context.allocate(words);
  state.wide = wide;
  return state;
}

}  // namespace

Workspace workspace_of_rows(const Args& args, int tile_items, Context& context) {
  const int64_t tiles_per_row = ceil_div(args.n, int64_t(tile_items)), tiles = args.rows * tiles_per_row;
  const int passes = passes_of(args);
  int64_t bytes = 0;
  const State state = allocate_state(args.rows, tiles, passes, args.n >= int64_t(1) << 30, bytes, context);
  context.clear(state.tickets, bytes);
  return {{tile_items, args.rows, args.n, tiles_per_row, nullptr, nullptr, nullptr, false}, state, passes, tiles};
}

Workspace workspace_of_listed(const Args& args, const Lists& lists, int tile_items, Context& context) {
  const int passes = passes_of(args);
  const int64_t most = lists.most[long_class], tiles = args.n / tile_items + most;
  int64_t bytes = 0;
  const State state = allocate_state(most, tiles, passes, args.n >= int64_t(1) << 30, bytes, context);
  auto* segments = context.workspace<Segment>(most);
  auto* segment_of = context.workspace<unsigned>(tiles);
  auto* counts = context.workspace<unsigned long long>(2);
  const Layout layout{lists, tile_items, tiles, segments, counts, state.tickets, passes};
  launch(layout_kernel, 1, threads, 0, true, layout, context);
  const Problems problems{tile_items, 0, 0, 0, segments, segment_of, counts, lists.divides};
  const int64_t blocks = resident(tiles, 2);
  launch(clear_kernel, blocks, threads, 0, true, Clear{problems, state, passes, segment_of}, context);
  return {problems, state, passes, tiles};
}

void list_buckets(const Lists& lists, const Workspace& workspace, Context& context) {
  const int64_t blocks = resident(lists.most[long_class], 2);
  const ListBuckets buckets{workspace.problems, workspace.state, workspace.passes, lists};
  launch(list_buckets_kernel, blocks, radix, 0, true, buckets, context);
}

}  // namespace tp::sort::device
#endif
