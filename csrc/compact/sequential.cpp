// The sequential compaction: one row after another. Every other rung is tested against it, so it is written for clarity
// only.
#include <cstring>

#include "compact/compact.h"

namespace tp::compact {

void sequential(const Args& args, Context&) {
  const auto* mask = static_cast<const boolean*>(args.mask);
  const auto* in = static_cast<const char*>(args.in);
  auto* out = static_cast<char*>(args.out);
  const int64_t bytes = args.row_bytes;
  const bool packs = args.step == Step::pack || args.step == Step::partition;
  int64_t kept = 0;
  for (int64_t i = 0; i < args.n; ++i) {
    const bool keeps = mask[i];
    if (packs && keeps) std::memcpy(out + kept * bytes, in + i * bytes, size_t(bytes));
    if (args.step == Step::unpack) {
      const bool given = keeps && kept < args.packed;
      if (given) std::memcpy(out + i * bytes, in + kept * bytes, size_t(bytes));
      if (!given) std::memset(out + i * bytes, 0, size_t(bytes));
    }
    kept += keeps;
  }
  if (args.count) *args.count = kept;
  if (args.step == Step::partition) {
    int64_t to = kept;
    for (int64_t i = 0; i < args.n; ++i) {
      if (!mask[i]) std::memcpy(out + to++ * bytes, in + i * bytes, size_t(bytes));
    }
  }
  if (args.step != Step::pack) return;
  const int64_t end = args.packed * bytes;
  for (int64_t i = kept * bytes; i < end; i += 8) {
    std::memcpy(out + i, &args.fill, size_t(tp::min(end - i, int64_t(8))));
  }
}

}  // namespace tp::compact
