// The launches of onesweep: histograms, then a pass a digit. Nothing is read back: passes that would move nothing find
// that out for themselves.
#pragma once
#include "sort/onesweep/histogram.cuh"
#include "sort/onesweep/launch.cuh"
#include "sort/onesweep/onesweep.h"
#include "sort/onesweep/pass.cuh"

namespace tp::sort::device {

template <class W, bool floating>
void run_histogram(const Args& args, const Plan& plan, Context& context) {
  const Histogram<W> a{plan.problems,
                       plan.state,
                       plan.passes,
                       args.order<W>(),
                       args.begin_bit,
                       args.end_bit,
                       static_cast<const W*>(args.keys)};
  const auto run = [&](auto shape, int blocks) {
    using Shape = decltype(shape);
    const int bytes = Shape::table_bytes * (plan.passes + 1);  // one to align them
    const auto kernel = histogram_kernel<Shape, W, floating>;
    launch(kernel, resident(plan.most_tiles, blocks), Shape::threads, bytes, plan.problems.list != nullptr, a, context);
  };
  if (args.size() < 1 << 22) return run(HistogramShape<W, 512, 0>{}, 2);
  run(HistogramShape<W, 1024, sizeof(W) == 8 ? 4 : 5>{}, 1);
}

template <class Shape, class W, bool floating, class Load>
void run_pass(const Pass<W>& pass, const Plan& plan, bool stable, Context& context) {
  const auto run = [&](auto kernel) {
    constexpr int bytes = Shape::template shared_bytes<W, Load>();
    launch(kernel, resident(plan.most_tiles, Shape::blocks), Shape::threads, bytes, true, pass, context);
  };
  if constexpr (std::is_empty<Load>::value && !floating) {
    if (!stable) return run(pass_kernel<Shape, W, floating, Load, false>);
  }
  run(pass_kernel<Shape, W, floating, Load, true>);
}

template <class Shape, class W, bool floating, class Load>
void run_passes(const Args& args, const Plan& plan, Context& context) {
  run_histogram<W, floating>(args, plan, context);
  const int64_t size = args.size();
  Pass<W> pass{plan.problems, plan.state, 0, plan.passes, args.order<W>()};
  pass.keys = static_cast<const W*>(args.keys);
  pass.keys_out = static_cast<W*>(args.keys_out);
  if (plan.passes > 1) pass.far_keys = context.workspace<W>(size);
  if (plan.passes > 2) pass.near_keys = args.keys_out ? pass.keys_out : context.workspace<W>(size);
  if constexpr (!std::is_empty<Load>::value) {
    pass.values = args.values;
    pass.values_out = args.values_out;
    pass.value_bytes = args.values ? args.value_bytes : 0;
    pass.out_bytes = args.value_bytes;
    const bool fits = args.value_bytes == int(sizeof(Load)) || (args.positions() && args.value_bytes == 8);
    if (plan.passes > 1) pass.far_values = context.workspace<Load>(size);
    if (plan.passes > 2) pass.near_values = fits ? args.values_out : context.workspace<Load>(size);
  }
  const bool whole = args.begin_bit == 0 && args.end_bit == args.type.bits;
  for (int p = 0; p < plan.passes; ++p) {
    pass.index = p;
    pass.shift = args.begin_bit + p * digit_bits;
    const int bits = tp::min(digit_bits, args.end_bit - pass.shift);
    pass.mask = (1u << bits) - 1;
    if (bits == 0) pass.shift = 0;                                             // may be the width of the word
    run_pass<Shape, W, floating, Load>(pass, plan, p > 0 || !whole, context);  // keys of equal images are the same
  }
}

// Tiles for rows of many, for a machine that is full of shorter ones, and for one that is not. Where something is moved
// beside the keys, few of them fit in a tile and runs of writes are short: one large tile a multiprocessor makes up for
// the block that would work while it waits.
template <class W, class Load>
struct Shapes {
  static constexpr bool loaded = !std::is_empty<Load>::value;
  static constexpr int bytes = int(sizeof(W) + (loaded ? sizeof(Load) : 0));
  using Medium = PassShape<384, bytes <= 4 ? 24 : bytes <= 8 ? 16 : 10, 2>;
  using Wide = PassShape<640, bytes <= 8 ? 20 : bytes <= 12 ? 16 : 12, 1>;
  using Large = typename std::conditional<loaded, Wide, Medium>::type;
  using Small = PassShape<512, 8, 2>;
};
constexpr int64_t small_sizes = int64_t(1) << 21, large_rows = int64_t(1) << 19;

template <class W, bool floating, class Load>
void sort_with(const Args& args, const Listed* listed, Context& context) {
  const auto run = [&](auto shape) {
    using Shape = decltype(shape);
    constexpr int items = Shape::tile_items;
    const Plan plan = listed ? plan_listed(args, *listed, items, context) : plan_rows(args, items, context);
    run_passes<Shape, W, floating, Load>(args, plan, context);
  };
  using Tiles = Shapes<W, Load>;
  if (!listed && args.size() <= small_sizes) return run(typename Tiles::Small{});
  if (!listed && args.n >= large_rows) return run(typename Tiles::Large{});
  run(typename Tiles::Medium{});
}

template <class W, bool floating>
void sort_long(const Args& args, const Listed* listed, Context& context) {
  if (!args.values_out) {
    sort_with<W, floating, None>(args, listed, context);
  } else if (args.positions() ? args.n <= int64_t(1) << 32 : args.value_bytes <= 4) {
    sort_with<W, floating, uint32_t>(args, listed, context);
  } else {
    sort_with<W, floating, uint64_t>(args, listed, context);
    if (args.value_bytes <= 8) return;
    Args others = args;
    others.keys_out = nullptr;
    others.values = static_cast<const uint64_t*>(args.values) + 1;
    others.values_out = static_cast<uint64_t*>(args.values_out) + 1;
    sort_with<W, floating, uint64_t>(others, listed, context);
  }
}

}  // namespace tp::sort::device
