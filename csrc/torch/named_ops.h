// The operators by which reductions and scans combine elements: their names, and the dtypes of their results.
//
// any and all are the maximum and minimum of truth values. Operators on bits depend only on the size of an integer; for
// bool they work on bytes of 0 and 1.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "torch/glue.h"

namespace tp {

enum class Combines { scan, reduction, groups };  // each knows the operators of those before it
struct NamedOp {
  Str name;
  OpId id;
  Combines known_by = Combines::scan;
};
constexpr NamedOp named_ops[] = {
    {"sum", OpId::sum},
    {"prod", OpId::prod},
    {"max", OpId::max},
    {"min", OpId::min},
    {"mean", OpId::mean, Combines::reduction},
    {"var", OpId::variance, Combines::groups},
    {"std", OpId::deviation, Combines::groups},
    {"argmax", OpId::argmax},
    {"argmin", OpId::argmin},
    {"logsumexp", OpId::logsumexp, Combines::reduction},
    {"any", OpId::max},
    {"all", OpId::min},
    {"bitwise_and", OpId::bitwise_and},
    {"bitwise_or", OpId::bitwise_or},
    {"bitwise_xor", OpId::bitwise_xor},
};

inline bool is_logical(Str op) { return op == "any" || op == "all"; }
inline bool is_bitwise(Str op) { return op == "bitwise_and" || op == "bitwise_or" || op == "bitwise_xor"; }
// Operators of floats only, and those whose results are rounded.
inline bool needs_floats(OpId op) {
  return op == OpId::mean || op == OpId::logsumexp || op == OpId::variance || op == OpId::deviation;
}
inline bool rounds(OpId op) { return op == OpId::sum || op == OpId::prod || needs_floats(op); }
inline bool rounds(Str name) {
  return std::any_of(std::begin(named_ops), std::end(named_ops),
                     [&](const NamedOp& op) { return op.name == name && rounds(op.id); });
}
inline bool finds_index(Str op) { return op == "argmax" || op == "argmin"; }

// The operator of a name, for elements of x.
inline OpId op_of(const char* pattern, Combines how, Str name, const Tensor& x) {
  for (const NamedOp& op : named_ops) {
    if (op.name != name || op.known_by > how) continue;
    TORCH_CHECK_TYPE(!is_bitwise(name) || at::isIntegralType(x.scalar_type(), /*includeBool=*/true), pattern, ": op '",
                     std::string(name), "' needs integers or bool, got ", x.scalar_type());
    return op.id;
  }
  std::string names;
  for (const NamedOp& op : named_ops) {
    if (op.known_by <= how) names += (names.empty() ? "" : ", ") + std::string(op.name);
  }
  TORCH_CHECK_VALUE(false, pattern, ": unknown op '", std::string(name), "'; choose from: ", names);
}

inline OpId scan_of(const char* pattern, Str op, bool exclusive, const Tensor& x) {
  TORCH_CHECK_VALUE(!exclusive || !finds_index(op), pattern, ": op '", std::string(op),
                    "' has no exclusive scan: no elements, no index");
  return op_of(pattern, Combines::scan, op, x);
}

// The dtype of elements of x that are combined: sums and products of integers are int64.
inline at::ScalarType combined_dtype(Str name, OpId op, const Tensor& x) {
  if (is_logical(name)) return at::kBool;
  if (finds_index(name)) return at::kLong;
  const bool widens = op == OpId::sum || op == OpId::prod;
  return widens && at::isIntegralType(x.scalar_type(), /*includeBool=*/true) ? at::kLong : x.scalar_type();
}

// The dtype in which a rung combines elements of x: bitwise operators know one dtype of each size.
inline DType combining_dtype(const char* pattern, Str op, const Tensor& x) {
  const DType dtype = dtype_of_tensor(pattern, x);
  return is_bitwise(op) && (dtype == DType::int8 || dtype == DType::boolean) ? DType::uint8 : dtype;
}

// Whether there is data that no rung combines, so that with_converted computes the result.
inline bool is_converted(Str op, const Tensor& x) {
  return !x.is_meta() && (is_logical(op) || (is_bitwise(op) && x.scalar_type() == at::kBool));
}

// Calls `Op` with another first tensor and another operator: any and all become an extremum, and bitwise operators of
// bool work on bytes, of whose result only the lowest bit counts.
template <class Op>
Tensor with_converted(Op op, Tensor Op::* x) {
  Tensor& values = op.*x;
  if (is_logical(op.op)) {
    op.op = op.op == "any" ? "max" : "min";
    if (values.scalar_type() != at::kBool) values = values.to(at::kBool);
    return op.kernel();
  }
  values = canonical(values).to(at::kByte);
  return at::bitwise_and(op.kernel(), 1).to(at::kBool);
}

}  // namespace tp
