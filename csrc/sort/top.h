// The first k keys of each segment in the order of a stable sort, on the host. The production path of segment_topk for
// small k: most keys are only compared with the last of the k, where a sort moves all of them.
#pragma once
#include "core/context.h"
#include "core/key.h"

namespace tp::sort {

constexpr int64_t most_selected = 64;  // with a greater k, a sort is as fast

struct Top {
  const void* keys;  // [n]
  KeyType type;
  bool descending;
  const void* offsets;  // [segments + 1], int64 or int32; valid
  bool long_offsets;
  int64_t n, segments, k;  // k is 1 to most_selected
  void* keys_out;          // [segments, k]
  int64_t* rows;           // [segments, k]: where each was in `keys`
  uint64_t absent;         // the raw word of a key that a segment lacks; its row is -1
};
void select_top(const Top&, Context&);

}  // namespace tp::sort
