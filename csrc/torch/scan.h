// torch_patterns::scan, linear_recurrence and scan_with_indices (PMPP chapter 11).
#pragma once
#include "torch/operator.h"

namespace tp {

struct Scan {
  static constexpr auto schema =
      "scan(Tensor x, int dim=-1, str op=\"sum\", bool exclusive=False, bool reverse=False, str algorithm=\"auto\") -> "
      "Tensor";
  Tensor x;
  int64_t dim;
  Str op;
  bool exclusive, reverse;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t) const { return op != "sum"; }
  bool keeps_output(size_t) const { return op == "max" || op == "min"; }
  Autocast autocast() const { return Autocast::float32; }
};

struct LinearRecurrence {
  static constexpr auto schema =
      "linear_recurrence(Tensor a, Tensor b, int dim=-1, Tensor? initial=None, bool reverse=False, str "
      "algorithm=\"auto\") -> Tensor";
  Tensor a, b;
  int64_t dim;
  OptionalTensor initial;
  bool reverse;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input != 1; }
  bool keeps_output(size_t) const { return true; }
  Autocast autocast() const { return Autocast::float32; }
};

// Describes the lines of the contiguous tensor `x` along `dim`, as [outer, n, inner].
template <class Args>
void set_lines(Args& args, const Tensor& x, int64_t dim) {
  args.outer = args.inner = 1;
  args.n = x.dim() ? x.size(dim) : 1;
  for (int64_t d = 0; d < dim; ++d) args.outer *= x.size(d);
  for (int64_t d = dim + 1; d < x.dim(); ++d) args.inner *= x.size(d);
}

struct ScanWithIndices {
  static constexpr auto schema =
      "scan_with_indices(Tensor x, int dim=-1, str op=\"max\", bool reverse=False, str algorithm=\"auto\") -> (Tensor, "
      "Tensor)";
  Tensor x;
  int64_t dim;
  Str op;
  bool reverse;
  Str algorithm;

  TP_DIFFERENTIABLE(std::tuple<Tensor, Tensor>);
  bool keeps(size_t) const { return false; }
  bool keeps_output(size_t output) const { return output == 1; }
  Autocast autocast() const { return Autocast::float32; }
};

}  // namespace tp
