// torch_patterns::sort, sort_keys, sort_pairs, argsort and lexsort.
#pragma once
#include "torch/operator.h"

namespace tp {

using OptionalInt = std::optional<int64_t>;
using OptionalDtype = std::optional<at::ScalarType>;  // of indices: int64 if not given

struct Sort {
  static constexpr auto schema =
      "sort(Tensor x, int dim=-1, bool descending=False, ScalarType? index_dtype=None, str algorithm=\"auto\") -> "
      "(Tensor values, Tensor indices)";
  Tensor x;
  int64_t dim;
  bool descending;
  OptionalDtype index_dtype;
  Str algorithm;

  TP_DIFFERENTIABLE(std::tuple<Tensor, Tensor>);
  bool keeps(size_t) const { return false; }
  bool keeps_output(size_t output) const { return output == 1; }
};

struct SortKeys {
  static constexpr auto schema =
      "sort_keys(Tensor x, int dim=-1, bool descending=False, int begin_bit=0, int? end_bit=None, str "
      "algorithm=\"auto\") -> Tensor";
  Tensor x;
  int64_t dim;
  bool descending;
  int64_t begin_bit;
  OptionalInt end_bit;
  Str algorithm;

  Tensor kernel() const;
  Tensor record(Tensor& order) const;
  Tensors vjp(const Backward& b) const;
  Tensors jvp(const Forward& f) const;
  bool keeps(size_t) const { return false; }
};

struct SortPairs {
  static constexpr auto schema =
      "sort_pairs(Tensor keys, Tensor values, int dim=-1, bool descending=False, int begin_bit=0, int? end_bit=None, "
      "str algorithm=\"auto\") -> (Tensor keys, Tensor values)";
  Tensor keys, values;
  int64_t dim;
  bool descending;
  int64_t begin_bit;
  OptionalInt end_bit;
  Str algorithm;

  std::tuple<Tensor, Tensor> kernel() const;
  std::tuple<Tensor, Tensor> record(Tensor& order) const;
  Tensors vjp(const Backward& b) const;
  Tensors jvp(const Forward& f) const;
  bool keeps(size_t) const { return false; }
  bool depends(size_t output, size_t input) const { return output == input; }
};

struct ArgSort {
  static constexpr auto schema =
      "argsort(Tensor x, int dim=-1, bool descending=False, int begin_bit=0, int? end_bit=None, ScalarType? "
      "index_dtype=None, str algorithm=\"auto\") -> Tensor";
  Tensor x;
  int64_t dim;
  bool descending;
  int64_t begin_bit;
  OptionalInt end_bit;
  OptionalDtype index_dtype;
  Str algorithm;

  Tensor kernel() const;
};

struct LexSort {
  static constexpr auto schema =
      "lexsort(Tensor[] keys, int dim=-1, bool descending=False, ScalarType? index_dtype=None, str "
      "algorithm=\"auto\") -> Tensor";
  Tensors keys;
  int64_t dim;
  bool descending;
  OptionalDtype index_dtype;
  Str algorithm;

  Tensor kernel() const;
};

}  // namespace tp
