// The launches of onesweep for stretches that fit on chip.
#pragma once
#include "sort/onesweep/block_sort.cuh"
#include "sort/onesweep/classes.cuh"
#include "sort/onesweep/launch.cuh"
#include "sort/onesweep/onesweep.h"

namespace tp::sort::device {

static_assert(block_most == short_most, "what a block holds is short");

// Stretches of up to `items` keys a lane, of classes lanes << first_class and on.
template <class W, int items>
void run_network(const Network<W>& network, int64_t most_stretches, Context& context) {
  constexpr int warps = network_threads / block::warp_size;
  const int groups = warps * (block::warp_size >> network.first_class);
  const int64_t blocks = resident(ceil_div(most_stretches, int64_t(groups)), 16);
  const bool placed = !network.moves.windows_suffice();
  const auto kernel = placed ? network_kernel<W, items, true> : network_kernel<W, items, false>;
  launch(kernel, blocks, network_threads, 0, false, network, context);
}

template <class W>
void run_blocks(const BlockSort<W>& sort, int threads, int64_t most_stretches, int64_t longest, Context& context) {
  const auto run = [&](auto kernel, int64_t bytes) {
    const int together = int(tp::min((int64_t(227) << 10) / (bytes + 2048), int64_t(1024 / threads)));
    launch(kernel, resident(most_stretches, tp::max(1, together)), threads, bytes, false, sort, context);
  };
  if (sort.moves.windows_suffice()) {
    run(block_sort_kernel<W, false>, block_sort_bytes<W, false>(threads, longest));
  } else {
    run(block_sort_kernel<W, true>, block_sort_bytes<W, true>(threads, longest));
  }
}

template <class W>
void sort_rows_on_chip(const Args& args, Context& context) {
  const Moves<W> moves(args);
  const auto stretches = Stretches::of_rows(args);
  const int64_t n = args.n;
  // Where there are few rows, a large block is done with one sooner than a small one, and that sooner than a warp; but
  // where there are enough, the small have more done.
  const bool few = args.rows < 2 * device_attribute(cudaDevAttrMultiProcessorCount);
  if (n > (few ? 64 : network_most)) {
    int threads = least_block_threads;
    while (threads < block_threads && threads * (few ? 4 : block_items) < n) threads *= 2;
    return run_blocks(BlockSort<W>{moves, stretches}, threads, args.rows, n, context);
  }
  const auto run = [&](auto items) {
    constexpr int each = decltype(items)::value;
    int c = 0;
    while ((each << c) < n) ++c;
    run_network<W, each>(Network<W>{moves, {stretches, stretches, stretches, stretches}, c, 1}, args.rows, context);
  };
  if (n <= 32) return run(std::integral_constant<int, 4>{});
  if (n <= 256) return run(std::integral_constant<int, 8>{});
  run(std::integral_constant<int, 16>{});
}

inline Lists make_lists(const Args& args, Context& context) {
  Lists lists{};
  for (int c = 0; c < classes; ++c) {
    lists.most[c] = tp::min(args.rows, args.n / least_of(c));
    lists.segments[c] = context.workspace<unsigned>(lists.most[c]);
  }
  lists.counts = context.workspace<unsigned long long>(classes);
  context.clear(lists.counts, classes * 8);
  return lists;
}

template <class W>
Listed sort_segments_on_chip(const Args& args, Context& context) {
  const block::Offsets offsets(args.offsets, args.long_offsets, args.rows, args.n);
  const Moves<W> moves(args);
  const Lists lists = make_lists(args, context);
  const auto list = [&](int c) { return Stretches{offsets, 0, 0, lists.segments[c], lists.counts + c, lists.most[c]}; };
  const int64_t share = classify_threads * classify_items;
  const int64_t blocks = resident(ceil_div(tp::max(args.rows, int64_t(1)), share), 8);
  launch(classify_kernel<W>, blocks, classify_threads, 0, false, Classify<W>{moves, offsets, lists}, context);

  const auto run = [&](auto items, int first, int last, int first_class) {
    if (lists.most[first] == 0) return;
    const int n = last - first + 1;
    Network<W> network{moves, {list(first), list(first), list(first), list(first)}, first_class, n};
    for (int c = 0; c < n; ++c) network.stretches[c] = list(first + c);
    run_network<W, decltype(items)::value>(network, lists.most[first], context);
  };
  run(std::integral_constant<int, 4>{}, 0, 3, 0);
  run(std::integral_constant<int, 8>{}, 4, 6, 3);
  run(std::integral_constant<int, 16>{}, 7, 7, 5);
  const auto run_class = [&](int c, int threads, int64_t most) {
    if (lists.most[c] > 0) run_blocks(BlockSort<W>{moves, list(c)}, threads, lists.most[c], most, context);
  };
  run_class(small_block_class, least_block_threads, small_block_most);
  run_class(block_class, block_threads, block_most);
  return {offsets, lists.segments[long_class], lists.counts + long_class, lists.most[long_class]};
}

}  // namespace tp::sort::device
