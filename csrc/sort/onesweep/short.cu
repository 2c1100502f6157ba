// The launches of onesweep for segments that fit on chip.
//
// The build compiles this file once for each word, in parallel (setup.py, CMakeLists.txt).
// TP_PARTS: uint8_t uint16_t uint32_t uint64_t
#ifdef __CUDACC__
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/classes.cuh"
#include "sort/onesweep/launch.cuh"
#include "sort/onesweep/onesweep.h"
#include "sort/onesweep/warp_sort.cuh"

namespace tp::sort::device {

static_assert(block_most == short_most, "a block sorts whatever is sorted on chip");

// Launches network_kernel for segments of up to `items` keys per lane, in the classes first_class and on; class c has
// 2^c lanes per segment.
template <class W, int items, bool indexed>
void run_network(const Network<W>& network, Context& context) {
  constexpr int warps = network_threads / block::warp_size;
  const int groups = warps * (block::warp_size >> network.first_class);
  const Segments& first = network.segments[0];
  const int64_t blocks = resident(ceil_div(first.most(), int64_t(groups)), 16);
  launch(network_kernel<W, items, indexed>, blocks, network_threads, 0, first.early, network, context);
}

template <class W>
Network<W> of_class(const BlockSort<W>& sort, int c) {
  return {sort.moves, {sort.segments, sort.segments, sort.segments}, c, 1};
}

// Launches the kernel that sorts each segment by one warp, with `items` keys per lane.
template <class W, int items>
void run_warps(const BlockSort<W>& sort, Context& context) {
  if constexpr (sizeof(W) <= 4) {
    if (sort.moves.windows_suffice()) return run_network<W, items, false>(of_class(sort, 5), context);
  }
  const int64_t blocks = resident(ceil_div(sort.segments.most(), int64_t(warp_sort_threads / block::warp_size)), 16);
  launch(warp_sort_kernel<W, items>, blocks, warp_sort_threads, 0, sort.segments.early, sort, context);
}

template <class W>
void run_blocks(const BlockSort<W>& sort, int threads, int64_t longest, Context& context) {
  const auto run = [&](auto kernel, int64_t bytes) {
    const int together = int(tp::min((int64_t(227) << 10) / (bytes + 2048), int64_t(1024 / threads)));
    const int64_t blocks = resident(sort.segments.most(), tp::max(1, together));
    launch(kernel, blocks, threads, bytes, sort.segments.early, sort, context);
  };
  if (sort.moves.windows_suffice()) {
    run(block_sort_kernel<W, false>, block_sort_bytes<W, false>(threads, longest));
  } else {
    run(block_sort_kernel<W, true>, block_sort_bytes<W, true>(threads, longest));
  }
}

// Launches the kernel that sorts each segment by a group of lanes.
template <class W>
void run_groups(const Network<W>& network, Context& context) {
  if (network.moves.windows_suffice()) return run_network<W, 8, false>(network, context);
  run_network<W, 8, true>(network, context);
}

template <class W>
void sort_rows_on_chip(const Args& args, Context& context) {
  const BlockSort<W> sort{Moves<W>(args), Segments::of_rows(args)};
  const int64_t n = args.n;
  // With few rows, the latency of one row decides: a large block sorts a row sooner than a small block, and a small
  // block sooner than a warp. With many rows, throughput decides, and smaller groups have more of it.
  const bool few = args.rows < 2 * block::device_attribute<cudaDevAttrMultiProcessorCount>();
  if (n > (few ? 64 : warp_most)) {
    int threads = least_block_threads;
    while (threads < block_threads && threads * (few ? 4 : block_items) < n) threads *= 2;
    return run_blocks(sort, threads, n, context);
  }
  if (n > 512) return run_warps<W, 32>(sort, context);
  if (n > 256) return run_warps<W, 16>(sort, context);
  if (n > group_most) return run_warps<W, 8>(sort, context);
  int c = 0;
  while ((8 << c) < n) ++c;
  run_groups<W>(of_class(sort, c), context);
}

inline Lists make_lists(const Args& args, Context& context) {
  Lists lists{block::Offsets(args.offsets, args.long_offsets, args.rows, args.n), {}, {}, nullptr};
  for (int c = 0; c < classes; ++c) {
    lists.most[c] = tp::min(args.rows, args.n / least_of(c));
    lists.segments[c] = context.workspace<unsigned>(lists.most[c]);
  }
  lists.counts = context.workspace<unsigned long long>(classes);
  context.clear(lists.counts, classes * 8);
  return lists;
}

template <class W>
Lists classify_segments(const Args& args, Ends ends, Context& context) {
  const Moves<W> moves(args);
  const Lists lists = make_lists(args, context);
  const int64_t share = classify_threads * classify_items;
  const int64_t blocks = resident(ceil_div(tp::max(args.rows, int64_t(1)), share), 16);
  constexpr bool wide = sizeof(W) == 8;  // keys of 8 bytes are sorted faster as 4-byte words of a key part and an index
  const auto classify = moves.windows_suffice() ? classify_kernel<W, wide> : classify_kernel<W, true>;
  launch(classify, blocks, classify_threads, 0, false, Classify<W>{moves, lists, ends}, context);
  return lists;
}

// The kernels of these classes do not wait for each other before they begin, but only before they end. Each may start
// when all blocks of the one before have. Before the first one the lists are complete: it is an ordinary launch, or
// follows kernels that waited for the lists, which are those for the longest segments. Segments that take longer come
// first, so that shorter ones fill the multiprocessors at the end.
template <class W>
void sort_classes(const Args& args, const Lists& lists, Context& context) {
  const Moves<W> moves(args);
  const auto segments = [&](int c, int launched_before) {
    return Segments{lists.at(c), 0, 0, lists.most[launched_before] > 0};
  };
  const auto sort = [&](int c) { return BlockSort<W>{moves, segments(c, c + 1)}; };
  for (int c = long_class - 1; c > 5; --c) {
    if (lists.most[c]) run_blocks(sort(c), least_block_threads << (c - 6), warp_most << (c - 5), context);
  }
  if (lists.most[5]) run_warps<W, 32>(sort(5), context);
  if (lists.most[4]) run_warps<W, 16>(sort(4), context);
  if (lists.most[3]) run_warps<W, 8>(sort(3), context);
  if (lists.most[0]) run_groups<W>({moves, {segments(0, 3), segments(1, 3), segments(2, 3)}, 2, 3}, context);
}

template void sort_rows_on_chip<TP_PART>(const Args&, Context&);
template Lists classify_segments<TP_PART>(const Args&, Ends, Context&);
template void sort_classes<TP_PART>(const Args&, const Lists&, Context&);

}  // namespace tp::sort::device
#endif
