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
  launch(network_kernel<W, items>, blocks, network_threads, 0, false, network, context);
}

template <class W>
void run_blocks(const BlockSort<W>& sort, int64_t most_stretches, int64_t longest, Context& context) {
  const int threads = longest <= block_most / 2 ? block_threads / 2 : block_threads;
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
  // A block is done with a row sooner than a warp; but where there are enough rows, warps have more done.
  const bool few = n > 64 && args.rows < 4 * device_attribute(cudaDevAttrMultiProcessorCount);
  if (few || n > network_most<W>) return run_blocks(BlockSort<W>{moves, stretches}, args.rows, n, context);
  const auto run = [&](auto items) {
    constexpr int each = decltype(items)::value;
    int c = 0;
    while ((each << c) < n) ++c;
    run_network<W, each>(Network<W>{moves, {stretches, stretches, stretches, stretches}, c, 1}, args.rows, context);
  };
  if (n <= 32) return run(std::integral_constant<int, 4>{});
  if (n <= 256) return run(std::integral_constant<int, 8>{});
  if (n <= 512) return run(std::integral_constant<int, 16>{});
  if constexpr (network_most<W> > 512) run(std::integral_constant<int, 32>{});
}

inline Lists make_lists(const Args& args, Context& context) {
  Lists lists{};
  for (int c = 0; c < classes; ++c) {
    lists.most[c] = tp::min(args.rows, args.n / least_of(c == block_class ? block_class - 1 : c));
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
  const int64_t blocks = resident(ceil_div(tp::max(args.rows, int64_t(1)), int64_t(classify_threads)), 8);
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
  if constexpr (network_most<W> > 512) run(std::integral_constant<int, 32>{}, 8, 8, 5);
  if (lists.most[block_class]) {
    run_blocks(BlockSort<W>{moves, list(block_class)}, lists.most[block_class], block_most, context);
  }
  return {offsets, lists.segments[long_class], lists.counts + long_class, lists.most[long_class]};
}

}  // namespace tp::sort::device
