// The launches of onesweep for segments that fit on chip.
//
// The build compiles this file once for each word, in parallel (setup.py, CMakeLists.txt).
// TP_PARTS: uint8_t uint16_t uint32_t uint64_t
#ifdef __CUDACC__
#include "sort/onesweep/block_network.cuh"
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/classes.cuh"
#include "sort/onesweep/launch.cuh"
#include "sort/onesweep/onesweep.h"
#include "sort/onesweep/warp_sort.cuh"

namespace tp::sort::device {

static_assert(block_most == short_most, "a block sorts whatever is sorted on chip");

template <class W, int items, int least_lanes, int most_lanes, bool indexed>
void run_network(const Network<W>& network, Context& context) {
  const int groups = network_warps * (block::warp_size >> network.log_lanes);
  const Segments& first = network.segments[0];
  const int64_t blocks = resident(ceil_div(first.most(), int64_t(groups)), network_blocks<items>);
  launch(network_kernel<W, items, least_lanes, most_lanes, indexed>, blocks, network_threads, 0, first.early, network,
         context);
}

// Sorts segments of at most 128 keys by groups of lanes, 8 keys per lane.
template <class W>
void run_groups(const Network<W>& network, Context& context) {
  if (network.moves.windows_suffice()) return run_network<W, 8, 1, 16, false>(network, context);
  run_network<W, 8, 1, 16, true>(network, context);
}

// Whether keys are sorted by networks of words of 4 bytes, whatever the length of the segment.
template <class W>
bool by_network(const Moves<W>& moves) {
  return sizeof(W) <= 4 && moves.windows_suffice();
}

// Then, sorts segments of at most 1024 keys by groups of at least 8 lanes, 32 keys per lane.
template <class W>
void run_wide_groups(const Network<W>& network, Context& context) {
  if constexpr (sizeof(W) <= 4) run_network<W, 32, 8, 32, false>(network, context);
}

// Launches the kernel that sorts each segment by one warp, with `items` keys per lane.
template <class W, int items>
void run_warps(const BlockSort<W>& sort, Context& context) {
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

// And those of at most 8192 keys by blocks, 32 keys per thread.
template <class W>
void run_block_networks(const BlockSort<W>& sort, int64_t longest, Context& context) {
  if constexpr (sizeof(W) <= 4) {
    int threads = 2 * block::warp_size;
    while (threads * block_network_items < longest) threads *= 2;
    const int64_t bytes = network_slot(threads * block_network_items) * int64_t(sizeof(uint32_t)),
                  blocks = resident(sort.segments.most(), 1024 / threads);
    launch(block_network_kernel<W>, blocks, threads, bytes, sort.segments.early, sort, context);
  }
}

template <class W>
void sort_rows_on_chip(const Args& args, Context& context) {
  const BlockSort<W> sort{Moves<W>(args), Segments::of_rows(args)};
  const int64_t n = args.n;
  const auto in_groups = [&](int items) {
    int log_lanes = 0;
    while ((items << log_lanes) < n) ++log_lanes;
    return Network<W>{sort.moves, {sort.segments, sort.segments, sort.segments}, log_lanes, 1};
  };
  // With few rows, the latency of one row decides: a large block sorts a row sooner than a small block, and a small
  // block sooner than a warp. With many rows, throughput decides, and smaller groups have more of it.
  const bool few = args.rows < 2 * block::device_attribute<cudaDevAttrMultiProcessorCount>(),
             by_networks = by_network(sort.moves);
  if (n > (few ? 64 : warp_most)) {
    if (by_networks && !few) return run_block_networks(sort, n, context);
    int threads = least_block_threads;
    while (threads < block_threads && threads * (few ? 4 : block_items) < n) threads *= 2;
    return run_blocks(sort, threads, n, context);
  }
  if (n <= group_most) return run_groups<W>(in_groups(8), context);
  if (by_networks) return run_wide_groups<W>(in_groups(32), context);
  if (n > 512) return run_warps<W, 32>(sort, context);
  if (n > 256) return run_warps<W, 16>(sort, context);
  run_warps<W, 8>(sort, context);
}

// Buckets of divided segments are listed, too. Only those of class 0 may be shorter than the segments of their class.
inline Lists make_lists(const Args& args, bool divides, Context& context) {
  Lists lists{block::Offsets(args.offsets, args.long_offsets, args.rows, args.n), {}, nullptr, {}, nullptr, divides};
  const auto most_of = [&](int c) { return tp::min(args.rows, args.n / least_of(c)); };
  const int64_t buckets = divides ? radix * most_of(long_class) : 0;
  for (int c = 0; c < long_class; ++c) {
    lists.most[c] = c == 0 ? most_of(c) + buckets : tp::min(args.rows + buckets, args.n / least_of(c));
    lists.ranges[c] = context.workspace<Range>(lists.most[c]);
  }
  lists.most[long_class] = most_of(long_class);
  lists.longest = context.workspace<unsigned>(lists.most[long_class]);
  lists.counts = context.workspace<unsigned long long>(classes);
  context.clear(lists.counts, classes * 8);
  return lists;
}

template <class W>
Lists classify_segments(const Args& args, Ends ends, Context& context) {
  const Moves<W> moves(args);
  const Lists lists = make_lists(args, sizeof(W) == 4 && by_network(moves), context);
  const int64_t share = classify_threads * classify_items;
  const int64_t blocks = resident(ceil_div(tp::max(args.rows, int64_t(1)), share), 16);
  constexpr bool wide = sizeof(W) == 8;  // keys of 8 bytes are sorted faster as 4-byte words of a key part and an index
  const auto classify = moves.windows_suffice() ? classify_kernel<W, wide> : classify_kernel<W, true>;
  launch(classify, blocks, classify_threads, 0, false, Classify<W>{moves, lists, ends}, context);
  return lists;
}

// The kernels of these classes do not wait for each other before they begin, but only before they end. Each may start
// when all blocks of the one before have. Before the first one the lists are complete, and buckets are where these say:
// it is an ordinary launch, or follows passes that make no buckets, which waited for the lists; it does not need what
// these do. Segments that take longer come first, so that shorter ones fill the multiprocessors at the end.
template <class W>
void sort_classes(const Args& args, const Lists& lists, Context& context) {
  const Moves<W> moves(args);
  bool early = lists.most[long_class] > 0 && !lists.divides;
  const auto segments = [&](int c) { return Segments::of_class(lists, c, early); };
  const auto sort = [&](int c) { return BlockSort<W>{moves, segments(c)}; };
  const bool by_networks = by_network(moves);
  for (int c = long_class - 1; c > 5; --c) {
    if (lists.most[c] == 0) continue;
    const int64_t longest = warp_most << (c - 5);
    by_networks ? run_block_networks(sort(c), longest, context)
                : run_blocks(sort(c), least_block_threads << (c - 6), longest, context);
    early = true;
  }
  if (by_networks) {
    const Network<W> wide{moves, {segments(3), segments(4), segments(5)}, 3, 3};
    if (lists.most[3]) run_wide_groups(wide, context), early = true;
  } else {
    if (lists.most[5]) run_warps<W, 32>(sort(5), context), early = true;
    if (lists.most[4]) run_warps<W, 16>(sort(4), context), early = true;
    if (lists.most[3]) run_warps<W, 8>(sort(3), context), early = true;
  }
  if (lists.most[0]) run_groups<W>({moves, {segments(0), segments(1), segments(2)}, 2, 3}, context);
}

template void sort_rows_on_chip<TP_PART>(const Args&, Context&);
template Lists classify_segments<TP_PART>(const Args&, Ends, Context&);
template void sort_classes<TP_PART>(const Args&, const Lists&, Context&);

}  // namespace tp::sort::device
#endif
