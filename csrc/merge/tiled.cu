// The tiled merge (§12.6, Figs. 12.10 to 12.14): neighbouring threads load neighbouring elements into shared memory,
// and all searches except two per block are there.
//
// A block merges a section of C, tile by tile. The next tile_size elements of A and of B are enough for tile_size
// outputs, even if all come from one side. So at most half of what an iteration loads is used; the rest is loaded
// again. Invariant: before an iteration, the first A_consumed and B_consumed elements of the block's sections of A and
// B are merged into the first C_completed elements of its section of C. There is a barrier between the load and the
// searches, which read what other threads loaded, and between the merge and the next load, which overwrites it.
//
// Fig. 12.11 stores the block's co-ranks in A_S, where keys of one byte could not hold them; here they have an array of
// their own. Its divisions lose the last elements before rounding up; here a section has a fixed size. Fig. 12.13
// assumes full tiles when it counts what was consumed, even in the last iteration; here the search is told how many
// elements there are.
#include "merge/elements.h"

namespace tp::merge {
namespace {

template <class Merge>
struct MergeTiledKernel {
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
    const auto later = [&](int64_t i, int64_t j) {  // A_S[i] > B_S[j]
      return x.in.order.image(A_S[i]) > x.in.order.image(B_S[j]);
    };
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
      int64_t C_completed = 0, A_consumed = 0, B_consumed = 0;
      while (C_completed < C_length) {
        // Part 2 (Fig. 12.12): load the next tiles of A and B.
        const int64_t a_length = tp::min(int64_t(tile_size), A_length - A_consumed);
        const int64_t b_length = tp::min(int64_t(tile_size), B_length - B_consumed);
        const int64_t c_length = tp::min(int64_t(tile_size), C_length - C_completed);
        block.phase("load", [&](int t) {
          for (int i = t; i < a_length; i += threads) A_S[i] = x.in.a[row * x.in.m + A_curr + A_consumed + i];
          for (int i = t; i < b_length; i += threads) B_S[i] = x.in.b[row * x.in.n + B_curr + B_consumed + i];
        });
        // Part 3 (Fig. 12.13): each thread merges its own outputs.
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
              [&](int64_t i, int64_t k) { x.take_a(row, A + i, C + k, Word(A_S[a_curr + i])); },
              [&](int64_t j, int64_t k) { x.take_b(row, B + j, C + k, Word(B_S[b_curr + j])); });
        });
        A_consumed += block.uniform("consumed", [&] { return co_rank(c_length, a_length, b_length, later); });
        C_completed += c_length;
        B_consumed = C_completed - A_consumed;
      }
    }
  }
};

}  // namespace

void tiled(const Args& args, Context& context) {
  with_merge(args, [&](const auto& merge) {
    using Kernel = MergeTiledKernel<std::decay_t<decltype(merge)>>;
    const int64_t blocks = merge.in.rows * ceil_div(merge.total(), int64_t(Kernel::section));
    simt::launch(context, "tiled", {tp::min(blocks, max_grid)}, Kernel::threads, Kernel::shared_bytes, Kernel{merge});
  });
}

}  // namespace tp::merge
