// Checks of a matrix's pointers on the host. They are checked before a rung starts, by threads and vectorized loops, so
// that rungs can trust them; an error names the first wrong one. On the device, pointers are clamped where they are
// used.
#pragma once
#include <atomic>

#include "sparse/sparse.h"

namespace tp::sparse {

// Checks `n` pointers into `entries`: the first is 0, they never decrease, and the last is `entries`, or less if
// `may_end_early`.
template <class I>
void check_pointers(const char* op, const char* name, const I* p, int64_t n, int64_t entries, bool may_end_early,
                    Context& context) {
  const int64_t last = n - 1;
  std::atomic<bool> wrong{p[0] != 0 || p[last] > entries || (p[last] != entries && !may_end_early)};
  context.parallel_for(last, int64_t(1) << 15, [&](int64_t begin, int64_t end) {
    bool decreases = false;
    for (int64_t i = begin; i < end; ++i) decreases |= p[i + 1] < p[i];
    if (decreases) wrong = true;
  });
  if (!wrong) return;
  for (int64_t i = 0; i <= last; ++i) {
    const int64_t value = p[i];
    if (value < 0 || value > entries) {
      fail(ErrorKind::index, op, ": ", name, "[", i, "] is ", value, ", which is out of range: expected 0 to ",
           entries);
    }
    if (i == 0 && value != 0) fail(ErrorKind::value, op, ": ", name, "[0] is ", value, ", must be 0");
    if (i > 0 && value < int64_t(p[i - 1])) {
      fail(ErrorKind::value, op, ": ", name, "[", i, "] is ", value,
           ", less than the one before; they must not decrease");
    }
  }
  fail(ErrorKind::value, op, ": ", name, "[", last, "] is ", int64_t(p[last]), ", the last, must be ", entries);
}

// Checks that no diagonal is longer than the one before it or than the number of rows.
template <class I>
void check_diagonals(const Args& a) {
  const I* const p = static_cast<const I*>(a.ptrs);
  int64_t most = a.rows;
  for (int64_t i = 0; i < a.width; ++i) {
    const int64_t length = int64_t(p[i + 1]) - int64_t(p[i]);
    if (length > most) {
      fail(ErrorKind::value, a.op, ": diag_ptrs[", i + 1, "] is ", int64_t(p[i + 1]),
           ", which makes this diagonal longer than the one before, or than there are rows");
    }
    most = length;
  }
}

// Checks that every section is a rectangle.
template <class I>
void check_sections(const Args& a) {
  const I* const p = static_cast<const I*>(a.ptrs);
  for (int64_t i = 0; i < ceil_div(a.rows, a.section_rows); ++i) {
    const int64_t height = tp::min(a.section_rows, a.rows - i * a.section_rows);
    if ((int64_t(p[i + 1]) - int64_t(p[i])) % height != 0) {
      fail(ErrorKind::value, a.op, ": section_ptrs[", i + 1, "] is ", int64_t(p[i + 1]),
           ", which leaves no rectangle of this section's rows");
    }
  }
}

// Calls f(pointer of the index type) on the host, unless the pointers are null.
template <class F>
void with_pointers(const Args& a, const void* data, const Context& context, F f) {
  if (context.device.cuda || data == nullptr) return;
  a.long_index ? f(static_cast<const int64_t*>(data)) : f(static_cast<const int32_t*>(data));
}

inline void check_columns(const Args& a, Context& context) {
  with_pointers(a, a.ptrs, context,
                [&](const auto* p) { check_pointers(a.op, "col_ptrs", p, a.cols + 1, a.entries, false, context); });
}

// Checks that runs are whole octets.
inline void check_runs(const Args& a, Context& context) {
  const auto check = [&](const char* name, const void* data, int64_t n) {
    with_pointers(a, data, context, [&](const auto* p) {
      check_pointers(a.op, name, p, n, a.entries, false, context);
      for (int64_t i = 0; i < n; ++i) {
        if (p[i] % octet != 0) {
          fail(ErrorKind::value, a.op, ": ", name, "[", i, "] is ", int64_t(p[i]), ", not a multiple of 8");
        }
      }
    });
  };
  check("block_ptrs", a.block_ptrs, a.blocks + 1);
  check("bin_ptrs", a.bin_ptrs, a.bins + 1);
  with_pointers(a, a.ptrs, context, [&](const auto* p) {
    check_pointers(a.op, "row_ptrs", p, a.rows + 1, a.bins * bin_entries, true, context);
  });
}

}  // namespace tp::sparse
