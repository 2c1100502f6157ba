// The rows of a compaction as words.
#pragma once
#include "block/words.h"
#include "compact/compact.h"
#include "core/simt.h"

namespace tp::compact {

template <class Word_>
struct Rows {
  using Word = Word_;
  const boolean* mask;
  const Word* in;
  Word* out;
  int64_t *count, n, width, packed;  // width: words per row
  Word fill;

  explicit Rows(const Args& x)
      : mask(static_cast<const boolean*>(x.mask)),
        in(static_cast<const Word*>(x.in)),
        out(static_cast<Word*>(x.out)),
        count(x.count),
        n(x.n),
        width(x.row_bytes / int64_t(sizeof(Word))),
        packed(x.packed) {
    const uint64_t fills[] = {x.fill, x.fill};
    memcpy(&fill, fills, sizeof(Word));
  }
};

// Calls f(Rows<Word>) for the widest word. Rows without bytes are not moved, but still counted.
template <class F>
void with_rows(const Args& args, F f) {
  block::with_words(args.in, args.out, args.row_bytes,
                    [&](auto word) { f(Rows<typename decltype(word)::type>(args)); });
}

}  // namespace tp::compact
