// torch_patterns::group_reduce, group_expand and group_by: rows grouped by an index per row.
#pragma once
#include "torch/operator.h"

namespace tp {

struct GroupReduce {
  static constexpr auto schema =
      "group_reduce(Tensor values, Tensor index, SymInt num_groups, str op=\"sum\", bool validate=False, str "
      "algorithm=\"auto\") -> Tensor";
  Tensor values, index;
  SymInt num_groups;
  Str op;
  bool validate;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input == 1 || (op != "sum" && op != "mean"); }
  Autocast autocast() const;
};

struct GroupExpand {
  static constexpr auto schema =
      "group_expand(Tensor x, Tensor index, bool validate=False, str algorithm=\"auto\") -> Tensor";
  Tensor x, index;
  bool validate;
  Str algorithm;

  TP_LINEAR(Tensor)
  bool keeps(size_t input) const { return input == 1; }
};

struct GroupBy {
  static constexpr auto schema =
      "group_by(Tensor index, SymInt num_groups, bool validate=False, str algorithm=\"auto\") -> (Tensor perm, Tensor "
      "offsets)";
  Tensor index;
  SymInt num_groups;
  bool validate;
  Str algorithm;

  std::tuple<Tensor, Tensor> kernel() const;
};

// Integers as keys of few bytes, counted from `first`, and the bits by which they differ. An integer that is not in
// `first` to first + count - 1 has the key `count`, which is less than 2^bits.
struct Keys {
  Tensor keys;
  int64_t bits;

  Keys(const char* op, const Tensor& x, int64_t first, int64_t count);
};

// The rows of x at `index`. A bool becomes 1 or 0, whatever byte a view of another dtype stored for it.
inline Tensor select_rows(const Tensor& x, const Tensor& index) { return canonical(x.index_select(0, index)); }

}  // namespace tp
