// The basic parallel merge (§12.5, Fig. 12.9): a thread finds the co-ranks at both ends of its outputs (co_rank is Fig.
// 12.5), and merges the elements between them sequentially (merge_sequential is Fig. 12.2). Neighbouring threads read
// and write far apart, and the searches read global memory, so accesses are not coalesced. No barrier is needed,
// because the threads share nothing.
//
// The figure divides m + n by the number of threads in integers before it rounds up, which loses the last elements.
// Here each thread has eight outputs, and the grid has as many threads as that takes.
#include "merge/elements.h"

namespace tp::merge {
namespace {

constexpr int threads = 128, elements_per_thread = 8, section = threads * elements_per_thread;

template <class Merge>
struct MergeBasicKernel {
  using Word = typename Merge::Word;
  Merge merge;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = merge.bind(block);
    const int64_t m = x.in.m, n = x.in.n, sections = ceil_div(m + n, int64_t(section));
    for (int64_t id = block.index().x; id < merge.in.rows * sections; id += block.grid().x) {
      block.phase("merge", [&](int t) {
        const int64_t row = id / sections, thread = id % sections * threads + t;
        const int64_t k_curr = tp::min(thread * elements_per_thread, m + n);
        const int64_t k_next = tp::min((thread + 1) * elements_per_thread, m + n);
        const int64_t i_curr = x.in.co_rank(row, k_curr), j_curr = k_curr - i_curr;
        const int64_t i_next = x.in.co_rank(row, k_next);
        const int64_t from_a = share_of_a(i_curr, i_next, k_next - k_curr), from_b = k_next - k_curr - from_a;
        merge_sequential(
            from_a, from_b, [&](int64_t i, int64_t j) { return x.in.later(row, i_curr + i, j_curr + j); },
            [&](int64_t i, int64_t k) { x.take_a(row, i_curr + i, k_curr + k, Word(x.in.a[row * m + i_curr + i])); },
            [&](int64_t j, int64_t k) { x.take_b(row, j_curr + j, k_curr + k, Word(x.in.b[row * n + j_curr + j])); });
      });
    }
  }
};

}  // namespace

void basic(const Args& args, Context& context) {
  with_merge(args, [&](const auto& merge) {
    const int64_t blocks = merge.in.rows * ceil_div(merge.total(), int64_t(section));
    simt::launch(context, "basic", {tp::min(blocks, max_grid)}, threads, 0,
                 MergeBasicKernel<std::decay_t<decltype(merge)>>{merge});
  });
}

}  // namespace tp::merge
