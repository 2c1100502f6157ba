// The production compaction of the CPU: fixed chunks on all threads. Pass 1 counts the kept rows of each chunk, then
// the counts are summed, and pass 2 moves the rows.
//
// Branches on a random mask cannot be predicted. So the kept rows of each part of a chunk are first listed without a
// branch: every row writes its number to the next free slot of the list, and only a kept row advances the slot. Then
// the listed rows are moved.
#include <algorithm>

#include "compact/rows.h"

namespace tp::compact {
namespace {

constexpr int64_t chunk = 1 << 14, list_size = 256;

template <class Rows>
class Threaded {
 public:
  Threaded(const Rows& rows, Step step, Context& context)
      : r_(rows),
        step_(step),
        context_(context),
        chunks_(ceil_div(rows.n, chunk)),
        before_(context.workspace<int64_t>(chunks_ + 1)) {}

  void run() {
    before_[0] = 0;
    each_chunk([&](int64_t c, int64_t begin, int64_t end) {
      int64_t kept = 0;
      for (int64_t i = begin; i < end; ++i) kept += r_.mask[i];
      before_[c + 1] = kept;
    });
    for (int64_t c = 0; c < chunks_; ++c) before_[c + 1] += before_[c];
    if (r_.count) *r_.count = before_[chunks_];
    if (step_ == Step::pack) {
      each_chunk([&](int64_t c, int64_t begin, int64_t end) { pack(begin, end, before_[c]); });
    } else if (step_ == Step::partition) {
      each_chunk([&](int64_t c, int64_t begin, int64_t end) {
        move<true>(begin, end, before_[c]);
        move<false>(begin, end, before_[chunks_] + begin - before_[c]);
      });
    } else if (step_ == Step::unpack) {
      each_chunk([&](int64_t c, int64_t begin, int64_t end) { unpack(begin, end, before_[c]); });
    }
  }

 private:
  void pack(int64_t begin, int64_t end, int64_t position) const {
    // Rows that were dropped before `begin` fill the end of the output.
    if (r_.packed == r_.n) {
      const int64_t last = r_.n - (begin - position), first = last - (end - begin) + kept(begin / chunk);
      std::fill(r_.out + first * r_.width, r_.out + last * r_.width, r_.fill);
    }
    move<true>(begin, end, position);
  }

  // Moves the rows that are kept, or else the dropped ones, to `position` and after it.
  template <bool kept>
  void move(int64_t begin, int64_t end, int64_t position) const {
    each<kept>(begin, end, [&](int64_t i) { copy(r_.in + i * r_.width, r_.out + position++ * r_.width); });
  }

  void unpack(int64_t begin, int64_t end, int64_t position) const {
    std::fill(r_.out + begin * r_.width, r_.out + end * r_.width, typename Rows::Word{});
    each<true>(begin, end, [&](int64_t i) {
      if (position < r_.packed) copy(r_.in + position * r_.width, r_.out + i * r_.width);
      ++position;
    });
  }

  void copy(const typename Rows::Word* from, typename Rows::Word* to) const {
    if (r_.width == 1) {
      *to = *from;
    } else {
      std::copy(from, from + r_.width, to);
    }
  }

  int64_t kept(int64_t c) const { return before_[c + 1] - before_[c]; }

  // Calls f(row) for each row that is kept, or else for each dropped one.
  template <bool kept, class F>
  void each(int64_t begin, int64_t end, F f) const {
    uint8_t list[list_size];
    for (int64_t first = begin; first < end; first += list_size) {
      const int64_t rows = tp::min(list_size, end - first);
      int64_t listed = 0;
      for (int64_t i = 0; i < rows; ++i) {
        list[listed] = uint8_t(i);
        listed += r_.mask[first + i] == kept;
      }
      for (int64_t k = 0; k < listed; ++k) f(first + list[k]);
    }
  }

  // Calls f(chunk, begin, end) for every chunk.
  template <class F>
  void each_chunk(F f) const {
    context_.parallel_for(chunks_, 1, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) f(c, c * chunk, tp::min(r_.n, (c + 1) * chunk));
    });
  }

  const Rows& r_;
  Step step_;
  Context& context_;
  int64_t chunks_, *before_;
};

}  // namespace

void threaded(const Args& args, Context& context) {
  with_rows(args, [&](const auto& rows) { Threaded<std::decay_t<decltype(rows)>>(rows, args.step, context).run(); });
}

}  // namespace tp::compact
