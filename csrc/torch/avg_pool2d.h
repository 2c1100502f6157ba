// torch_patterns::avg_pool2d (exercise 16.1).
#pragma once
#include "torch/windows.h"

namespace tp {

struct AvgPool2d {
  static constexpr auto schema =
      "avg_pool2d(Tensor x, SymInt[2] kernel_size, SymInt[2] stride=[], SymInt[2] padding=0, bool ceil_mode=False, "
      "bool count_include_pad=True, str algorithm=\"auto\") -> Tensor";
  Tensor x;
  Sizes kernel_size, stride, padding;
  bool ceil_mode, count_include_pad;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t) const { return false; }
};

}  // namespace tp
