// Converts images between layouts. A kernel may need the channels of a pixel next to each other, or the pixels of a
// channel; if the caller has the other layout, it gets a copy in a workspace, which takes one pass over the memory.
// This is compiled once for all, because a kernel that several files compile must not have other devices in one of them
// (*_sm90a.cu) than in the rest.
#pragma once
#include "conv/gather.h"
#include "core/context.h"

namespace tp::conv {

// A batch with the channels of a pixel next to each other, those of each group padded with zeros to vectors of 16
// bytes. If the batch already has this layout, it is used as it is; otherwise it is copied.
template <class T>
struct ChannelsLast {
  const T* data;
  int64_t image, row, col, group;  // strides
  ChannelsLast(const T* from, const Strides& strides, int64_t n, int64_t groups, int64_t channels, int64_t rows,
               int64_t cols, Context& context);
};

// Returns the same batch map by map, as a copy if needed.
template <class T>
const T* channels_first(const T* from, const Strides& strides, int64_t n, int64_t channels, int64_t pixels,
                        Context& context);

}  // namespace tp::conv
