// The merge with circular buffers (§12.7, Figs. 12.15 to 12.20): the tiled merge, but elements that an iteration has
// loaded and not used stay in shared memory. So each element is loaded once.
//
// Invariant: element i of a tile, counted from the first one that is not merged yet, is at (A_S_start + i) % tile_size.
// A_S_start advances by what was consumed, and only the freed positions are filled again. Co-ranks and offsets count
// from the start of the tile (Fig. 12.17B), and only an access to an element knows that tiles wrap around. So
// co_rank_circular (Fig. 12.19) and merge_sequential_circular (Fig. 12.20) are co_rank and merge_sequential over A_cir
// and B_cir. Barriers are those of `tiled`.
//
// Three errors in the figures are corrected here. Fig. 12.16 fills B as if as many positions were free as in A, and
// fills both with the elements after the consumed ones, although a tile's length of them is already there. Fig. 12.18
// lets a thread's second search start from the end of the first, but counts from the beginning of the tile. Fig. 12.19
// uses i - 1 instead of j - 1 for B.
#include "merge/elements.h"

namespace tp::merge {
namespace {

template <class Merge>
struct MergeCircularBufferKernel {
  using Word = typename Merge::Word;
  static constexpr int threads = 128, items_per_thread = 8, tile_size = threads * items_per_thread;
  static constexpr int section = 4 * tile_size;  // of C, per block
  static constexpr int64_t shared_bytes = 2 * tile_size * int64_t(sizeof(Word)) + 2 * int64_t(sizeof(int64_t));
  Merge merge;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = merge.bind(block);
    const auto co_ranks = block.template shared<int64_t>("co_ranks", 2);
    const auto A_S = block.template shared<Word>("A_S", tile_size);
    const auto B_S = block.template shared<Word>("B_S", tile_size);
    const int64_t total = merge.total(), sections = ceil_div(total, int64_t(section));
    for (int64_t id = block.index().x; id < merge.in.rows * sections; id += block.grid().x) {
      // Part 1 (Fig. 12.11): find the block's sections of C, A and B.
      const int64_t row = id / sections, C_curr = id % sections * section, C_next = tp::min(C_curr + section, total);
      block.phase("block_co_ranks", [&](int t) {
        if (t < 2) co_ranks[t] = x.in.co_rank(row, t == 0 ? C_curr : C_next);
      });
      const int64_t A_curr = block.uniform("A_curr", [&] { return int64_t(co_ranks[0]); });
      const int64_t A_next = block.uniform("A_next", [&] { return int64_t(co_ranks[1]); });
      const int64_t B_curr = C_curr - A_curr, C_length = C_next - C_curr;
      const int64_t A_length = share_of_a(A_curr, A_next, C_length), B_length = C_length - A_length;
      int64_t C_completed = 0, A_consumed = 0, B_consumed = 0, A_S_start = 0, B_S_start = 0;
      int64_t A_S_consumed = tile_size, B_S_consumed = tile_size;  // so that the first iteration fills the whole tiles
      while (C_completed < C_length) {
        // Part 2 (Fig. 12.16): load as many elements as the previous iteration consumed, after those that are still
        // there.
        const int64_t a_length = tp::min(int64_t(tile_size), A_length - A_consumed);
        const int64_t b_length = tp::min(int64_t(tile_size), B_length - B_consumed);
        const int64_t c_length = tp::min(int64_t(tile_size), C_length - C_completed);
        block.phase("load", [&](int t) {
          for (int64_t i = tile_size - A_S_consumed + t; i < a_length; i += threads)
            A_S[(A_S_start + i) % tile_size] = x.in.a[row * x.in.m + A_curr + A_consumed + i];
          for (int64_t i = tile_size - B_S_consumed + t; i < b_length; i += threads)
            B_S[(B_S_start + i) % tile_size] = x.in.b[row * x.in.n + B_curr + B_consumed + i];
        });
        // Part 3 (Fig. 12.18): each thread merges its own outputs.
        const auto A_cir = [&](int64_t i) { return Word(A_S[(A_S_start + i) % tile_size]); };
        const auto B_cir = [&](int64_t j) { return Word(B_S[(B_S_start + j) % tile_size]); };
        const auto later = [&](int64_t i, int64_t j) {
          return x.in.order.image(A_cir(i)) > x.in.order.image(B_cir(j));
        };
        block.phase("merge", [&](int t) {
          const int64_t c_curr = tp::min(int64_t(t) * items_per_thread, c_length);
          const int64_t c_next = tp::min(c_curr + items_per_thread, c_length);
          const int64_t a_curr = co_rank(c_curr, a_length, b_length, later), b_curr = c_curr - a_curr;
          const int64_t a_next = co_rank(c_next, a_length, b_length, later);
          const int64_t from_a = share_of_a(a_curr, a_next, c_next - c_curr), from_b = c_next - c_curr - from_a;
          const int64_t A = A_curr + A_consumed + a_curr, B = B_curr + B_consumed + b_curr;
          const int64_t C = C_curr + C_completed + c_curr;
          merge_sequential(
              from_a, from_b, [&](int64_t i, int64_t j) { return later(a_curr + i, b_curr + j); },
              [&](int64_t i, int64_t k) { x.take_a(row, A + i, C + k, A_cir(a_curr + i)); },
              [&](int64_t j, int64_t k) { x.take_b(row, B + j, C + k, B_cir(b_curr + j)); });
        });
        A_S_consumed = block.uniform("consumed", [&] { return co_rank(c_length, a_length, b_length, later); });
        B_S_consumed = c_length - A_S_consumed;
        A_consumed += A_S_consumed;
        C_completed += c_length;
        B_consumed = C_completed - A_consumed;
        A_S_start = (A_S_start + A_S_consumed) % tile_size;
        B_S_start = (B_S_start + B_S_consumed) % tile_size;
      }
    }
  }
};

}  // namespace

void circular_buffer(const Args& args, Context& context) {
  with_merge(args, [&](const auto& merge) {
    using Kernel = MergeCircularBufferKernel<std::decay_t<decltype(merge)>>;
    const int64_t blocks = merge.in.rows * ceil_div(merge.total(), int64_t(Kernel::section));
    simt::launch(context, "circular_buffer", {tp::min(blocks, max_grid)}, Kernel::threads, Kernel::shared_bytes,
                 Kernel{merge});
  });
}

}  // namespace tp::merge
