// Checks a matrix's pointers on the host. Vectorized loops on all threads check them before a rung starts, so that the
// rung can trust them; an error names the first wrong pointer. On the device, pointers are clamped at each use.
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

// Calls f(pointer of the index type) on the host, unless the pointers are null.
template <class F>
void with_pointers(const Args& a, const void* data, const Context& context, F f) {
  if (context.device.cuda || data == nullptr) return;
  a.long_index ? f(static_cast<const int64_t*>(data)) : f(static_cast<const int32_t*>(data));
}

inline void check_columns(const CscArgs& a, Context& context) {
  with_pointers(a, a.ptrs, context,
                [&](const auto* p) { check_pointers(a.op, "col_ptrs", p, a.cols + 1, a.entries, false, context); });
}

}  // namespace tp::sparse
