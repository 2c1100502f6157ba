// SELL: consecutive entries of a row are as many elements apart as its section has rows.
#pragma once
#include "sparse/rows.h"

namespace tp::sparse {

// Checks that every section is a rectangle.
template <class I>
void check_sections(const SellArgs& a, const I* p) {
  for (int64_t i = 0; i < a.sections(); ++i) {
    const int64_t height = tp::min(a.section_rows, a.rows - i * a.section_rows);
    if ((int64_t(p[i + 1]) - int64_t(p[i])) % height != 0) {
      fail(ErrorKind::value, a.op, ": section_ptrs[", i + 1, "] is ", int64_t(p[i + 1]),
           ", which leaves no rectangle of this section's rows");
    }
  }
}

struct Sell {
  using Args = SellArgs;
  static constexpr bool padded = true, permuted = true, planned = false, sectioned = true;
  static void check(const Args& a, Context& context) {
    with_pointers(a, a.ptrs, context, [&](const auto* p) {
      check_pointers(a.op, "section_ptrs", p, a.sections() + 1, a.entries, false, context);
      check_sections(a, p);
    });
  }
  template <class B>
  TP_HD static Walk walk(const B& b, int64_t position) {
    const int64_t section = quotient(position, b.a.section_rows), start = section * b.a.section_rows;
    const int64_t height = tp::min(b.a.section_rows, b.a.rows - start), begin = b.pointer(section);
    const int64_t width = tp::max(int64_t(0), b.pointer(section + 1) - begin) / height;
    return {b.length(position, width), begin + position - start, height};
  }
};

}  // namespace tp::sparse
