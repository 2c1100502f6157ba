// The launches of onesweep: one for the histograms of all digits, then one per digit. Nothing is read back to the host:
// the device itself skips the passes that would move nothing, and lists the buckets of segments that only the last pass
// has to move.
//
// The build compiles this file once for each kind of key, in parallel (setup.py, CMakeLists.txt).
// TP_PARTS: uint8_t uint16_t uint32_t uint64_t half float double
#ifdef __CUDACC__
#include "sort/onesweep/histogram.cuh"
#include "sort/onesweep/launch.cuh"
#include "sort/onesweep/onesweep.h"
#include "sort/onesweep/pass.cuh"

namespace tp::sort::device {

template <class W, bool floating>
void run_histogram(const Args& args, const Workspace& workspace, Context& context) {
  const Histogram<W> a{workspace.problems,
                       workspace.state,
                       workspace.passes,
                       args.order<W>(),
                       args.begin_bit,
                       args.end_bit,
                       static_cast<const W*>(args.keys)};
  const auto run = [&](auto shape, int blocks) {
    using Shape = decltype(shape);
    const int bytes = Shape::table_bytes * (workspace.passes + 1);  // one extra table for alignment
    const auto kernel = histogram_kernel<Shape, W, floating>;
    launch(kernel, resident(workspace.most_tiles, blocks), Shape::threads, bytes, workspace.problems.list != nullptr, a,
           context);
  };
  if (args.size() < 1 << 22) return run(HistogramShape<W, 512, 0>{}, 2);
  run(HistogramShape<W, 1024, sizeof(W) == 8 ? 4 : 5>{}, 1);
}

template <class Shape, class W, bool floating, class Payload>
void run_pass(const Pass<W>& pass, const Workspace& workspace, bool stable, Context& context) {
  const auto run = [&](auto kernel) {
    constexpr int bytes = Shape::template shared_bytes<W, Payload>();
    launch(kernel, resident(workspace.most_tiles, Shape::blocks), Shape::threads, bytes, true, pass, context);
  };
  if constexpr (std::is_empty<Payload>::value && !floating) {
    if (!stable) return run(pass_kernel<Shape, W, floating, Payload, false>);
  }
  run(pass_kernel<Shape, W, floating, Payload, true>);
}

// Sorts by all digits. Passes write to two buffers in turn; the last one writes to the output.
template <class Shape, class W, bool floating, class Payload>
void run_passes(const Args& args, const Lists* lists, const Workspace& workspace, Context& context) {
  run_histogram<W, floating>(args, workspace, context);
  if (workspace.problems.divides) list_buckets(*lists, workspace, context);
  const int64_t size = args.size();
  Pass<W> pass{workspace.problems, workspace.state, 0, workspace.passes, args.order<W>()};
  pass.keys = static_cast<const W*>(args.keys);
  pass.keys_out = static_cast<W*>(args.keys_out);
  // The last pass reads alternate and writes the output, so the pass before it writes alternate, and so on backwards.
  // The outputs also serve as current if they have room for what the passes store.
  if (workspace.passes > 1) pass.alternate_keys = context.workspace<W>(size);
  if (workspace.passes > 2) pass.current_keys = args.keys_out ? pass.keys_out : context.workspace<W>(size);
  if constexpr (!std::is_empty<Payload>::value) {
    pass.values = args.values;
    pass.values_out = args.values_out;
    pass.value_bytes = args.values ? args.value_bytes : 0;
    pass.out_bytes = args.value_bytes;
    const bool fits = args.value_bytes == int(sizeof(Payload)) || (args.positions() && args.value_bytes == 8);
    if (workspace.passes > 1) pass.alternate_values = context.workspace<Payload>(size);
    if (workspace.passes > 2) pass.current_values = fits ? args.values_out : context.workspace<Payload>(size);
  }
  const bool whole = args.begin_bit == 0 && args.end_bit == args.type.bits;
  // Each pass moves the keys by one digit. The first pass over whole keys need not be stable, because keys with equal
  // images are identical.
  for (int p = 0; p < workspace.passes; ++p) {
    pass.index = p;
    pass.shift = args.begin_bit + p * digit_bits;
    const int bits = tp::min(digit_bits, args.end_bit - pass.shift);
    pass.mask = (1u << bits) - 1;
    if (bits == 0) pass.shift = 0;  // the shift may equal the width of the word
    run_pass<Shape, W, floating, Payload>(pass, workspace, p > 0 || !whole, context);
  }
}

// Tile shapes: threads, keys per thread, and blocks per multiprocessor. Small is for few keys in all, Large for long
// rows, and Medium for many rows of moderate length. With payloads, fewer keys fit in a tile and the runs that are
// written are shorter. So for long rows one large tile per multiprocessor is then faster than two smaller ones, one of
// which works while the other waits.
template <class W, class Payload>
struct Shapes {
  static constexpr bool has_payload = !std::is_empty<Payload>::value;
  static constexpr int bytes = int(sizeof(W) + (has_payload ? sizeof(Payload) : 0));
  using Medium = PassShape<384, bytes <= 4 ? 24 : bytes <= 8 ? 16 : 10, 2>;
  using Wide = PassShape<640, bytes <= 8 ? 20 : bytes <= 12 ? 16 : 12, 1>;
  using Large = typename std::conditional<has_payload, Wide, Medium>::type;
  using Small = PassShape<512, 8, 2>;
};
// Up to small_sizes keys in all, small tiles keep all multiprocessors busy. Rows of large_rows keys or more take the
// large shape.
constexpr int64_t small_sizes = int64_t(1) << 21, large_rows = int64_t(1) << 19;

template <class W, bool floating, class Payload>
void sort_with(const Args& args, const Lists* lists, Context& context) {
  const auto run = [&](auto shape) {
    using Shape = decltype(shape);
    constexpr int items = Shape::tile_items;
    const Workspace workspace =
        lists ? workspace_of_listed(args, *lists, items, context) : workspace_of_rows(args, items, context);
    run_passes<Shape, W, floating, Payload>(args, lists, workspace, context);
  };
  using Tiles = Shapes<W, Payload>;
  if (!lists && args.size() <= small_sizes) return run(typename Tiles::Small{});
  if (!lists && args.n >= large_rows) return run(typename Tiles::Large{});
  run(typename Tiles::Medium{});
}

// The type of the payload decides what the passes move. Original indices take 4 bytes if they fit; values of 16 bytes
// take two sorts, one per half.
template <class W, bool floating>
void sort_long(const Args& args, const Lists* lists, Context& context) {
  if (!args.values_out) {
    sort_with<W, floating, NoPayload>(args, lists, context);
  } else if (args.positions() ? args.n <= int64_t(1) << 32 : args.value_bytes <= 4) {
    sort_with<W, floating, uint32_t>(args, lists, context);
  } else {
    sort_with<W, floating, uint64_t>(args, lists, context);
    if (args.value_bytes <= 8) return;
    Args others = args;
    others.keys_out = nullptr;
    others.values = static_cast<const uint64_t*>(args.values) + 1;
    others.values_out = static_cast<uint64_t*>(args.values_out) + 1;
    sort_with<W, floating, uint64_t>(others, lists, context);
  }
}

template <class Key>
using Word = std::conditional_t<
    sizeof(Key) == 1, uint8_t,
    std::conditional_t<sizeof(Key) == 2, uint16_t, std::conditional_t<sizeof(Key) == 4, uint32_t, uint64_t>>>;
template void sort_long<Word<TP_PART>, is_floating<TP_PART>>(const Args&, const Lists*, Context&);

}  // namespace tp::sort::device
#endif
