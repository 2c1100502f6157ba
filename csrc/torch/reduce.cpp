// torch_patterns::reduce: schema, checks, Meta, Autograd, Autocast.
//
// The gradients are compositions of operators, so that every order of derivative exists and costs O(n):
//   sum, mean  the gradient, expanded;
//   prod       grad x[j] = g * (product before j) * (product after j): two exclusive scans, so zeros need no care;
//   max, min   the gradient goes to the first of equal values, which argmax or argmin finds again;
//   logsumexp  grad x = g exp(x - y), and 0 where y is -inf.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include <algorithm>

#include "reduction/reduction.h"
#include "torch/glue.h"

namespace tp {
namespace {

using at::OptionalIntArrayRef;
using c10::SymInt;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Pattern pattern("reduce", reduction::ladder);

Tensor call_reduce(const Tensor& x, OptionalIntArrayRef dim, Str name, bool keepdim, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, OptionalIntArrayRef, Str, bool, Str)>("reduce");
  return handle.call(x, dim, name, keepdim, algorithm);
}

Tensor call_prod_scan(const Tensor& x, bool reverse) {
  static const auto handle = op<Tensor(const Tensor&, int64_t, Str, bool, bool, Str)>("scan");
  return handle.call(x, 1, "prod", /*exclusive=*/true, reverse, "auto");
}

// ---- checks

OpId reduction_of(Str name) {
  if (name == "mean") return OpId::mean;
  if (name == "argmax") return OpId::argmax;
  if (name == "argmin") return OpId::argmin;
  if (name == "logsumexp") return OpId::logsumexp;
  for (const char* known : {"sum", "prod", "max", "min"}) {
    if (name == known) return op_of("reduce", name);
  }
  TORCH_CHECK_VALUE(false, "reduce: unknown op '", std::string(name),
                    "'; choose from: sum, prod, max, min, mean, argmax, argmin, logsumexp");
}

using Mask = std::vector<bool>;  // which dimensions are reduced

// No dimensions, or none named: all of them.
Mask reduced_dims(const Tensor& x, OptionalIntArrayRef dim) {
  const bool all = !dim || dim->empty();
  Mask reduced(size_t(x.dim()), all);
  if (all) return reduced;
  Mask seen(size_t(max(x.dim(), int64_t(1))), false);
  for (const int64_t d : *dim) {
    const auto at = size_t(wrap_dim("reduce", d, x.dim()));
    TORCH_CHECK(!seen[at], "reduce: dim ", at, " appears more than once in the list of dims");
    seen[at] = true;
    if (x.dim() > 0) reduced[at] = true;
  }
  return reduced;
}

struct Problem {
  OpId op;
  Mask reduced;
  at::ScalarType result;
};

Problem check(const Tensor& x, OptionalIntArrayRef dim, Str name) {
  Problem p{reduction_of(name), reduced_dims(x, dim), x.scalar_type()};
  dtype_of_tensor("reduce", x);
  if (p.op == OpId::mean || p.op == OpId::logsumexp) {
    TORCH_CHECK_TYPE(x.is_floating_point(), "reduce: op '", std::string(name), "' needs floating point, got ",
                     x.scalar_type());
  }
  if ((p.op == OpId::sum || p.op == OpId::prod) && at::isIntegralType(x.scalar_type(), /*includeBool=*/true))
    p.result = at::kLong;
  if (p.op == OpId::argmax || p.op == OpId::argmin) {
    p.result = at::kLong;
    TORCH_CHECK_VALUE(!dim || dim->size() < 2, "reduce: op '", std::string(name), "' takes one dim or none, got ",
                      *dim);
    for (int64_t d = 0; d < x.dim(); ++d) {
      const bool empty = p.reduced[size_t(d)] && TORCH_GUARD_OR_FALSE(x.sym_size(d).sym_eq(0));
      TORCH_CHECK_INDEX(!empty, "reduce: op '", std::string(name), "' over dim ", d, ", which has no elements");
    }
  }
  return p;
}

template <class Int, class Sizes>
std::vector<Int> result_sizes(const Sizes& sizes, const Mask& reduced, bool keepdim) {
  std::vector<Int> result;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (!reduced[d]) {
      result.push_back(sizes[d]);
    } else if (keepdim) {
      result.push_back(Int(1));
    }
  }
  return result;
}

// ---- the array as [outer, n, inner]

// The order of the dimensions that makes the reduced ones neighbours: as they are, or, where others stand between them,
// the kept ones first. `skip`: dimensions that do not matter, for their size is 1.
std::vector<int64_t> neighbours(const Mask& reduced, const Mask& skip) {
  std::vector<int64_t> order, last;
  int changes = 0;
  bool previous = false;
  for (size_t d = 0; d < reduced.size(); ++d) {
    (reduced[d] ? last : order).push_back(int64_t(d));
    if (skip[d]) continue;
    changes += reduced[d] && !previous;
    previous = reduced[d];
  }
  order.insert(order.end(), last.begin(), last.end());
  if (changes < 2) std::sort(order.begin(), order.end());
  return order;
}

// x with its dimensions in that order, and the product of the sizes before, among and after the reduced ones.
template <class Int>
struct Lines {
  std::vector<int64_t> order;
  std::vector<Int> sizes;
  Int outer = 1, n = 1, inner = 1;

  template <class Sizes>
  Lines(const Sizes& x, const Mask& reduced, const Mask& skip) : order(neighbours(reduced, skip)) {
    const bool any = std::find(reduced.begin(), reduced.end(), true) != reduced.end();
    bool begun = !any;
    for (const int64_t d : order) {
      sizes.push_back(x[size_t(d)]);
      begun = begun || (reduced[size_t(d)] && !skip[size_t(d)]);
      Int& part = reduced[size_t(d)] ? n : begun ? inner : outer;
      part = part * sizes.back();
    }
  }
};

Tensor reduce_kernel(const Tensor& x, OptionalIntArrayRef dim, Str name, bool keepdim, Str algorithm) {
  const Problem p = check(x, dim, name);
  Mask ones;
  for (const int64_t size : x.sizes()) ones.push_back(size == 1);
  const Lines<int64_t> lines(x.sizes(), p.reduced, ones);
  const Tensor in = x.permute(lines.order).contiguous();
  Tensor out = at::empty(result_sizes<int64_t>(x.sizes(), p.reduced, keepdim), x.options().dtype(p.result));
  const reduction::Args args{in.const_data_ptr(), out.mutable_data_ptr(),       lines.outer, lines.n,
                             lines.inner,         dtype_of_tensor("reduce", x), p.op};
  if (out.numel() == 0) {
    check_algorithm(reduction::ladder, "reduce", algorithm);
  } else {
    run(reduction::ladder, reduction::choose, "reduce", algorithm, in, args);
  }
  return out;
}

Tensor reduce_meta(const Tensor& x, OptionalIntArrayRef dim, Str name, bool keepdim, Str algorithm) {
  const Problem p = check(x, dim, name);
  check_algorithm(reduction::ladder, "reduce", algorithm);
  return at::empty_symint(result_sizes<SymInt>(x.sym_sizes(), p.reduced, keepdim), x.options().dtype(p.result));
}

// ---- Autograd

// The same elements as [outer, n, inner], differentiably, and back.
struct SymLines : Lines<SymInt> {
  using Lines::Lines;

  Tensor to(const Tensor& x, const SymInt& length) const {
    return x.permute(order).reshape_symint({outer, length, inner});
  }
  Tensor from(const Tensor& y) const {
    std::vector<int64_t> inverse(order.size());
    for (size_t i = 0; i < order.size(); ++i) inverse[size_t(order[i])] = int64_t(i);
    return y.reshape_symint(sizes).permute(inverse);
  }
};

// g: the gradient of y, both with the reduced dimensions kept.
Tensor gradient(const Tensor& g, const Tensor& x, const Tensor& y, const Mask& reduced, Str name, Str algorithm) {
  if (x.sym_numel() == 0) return at::zeros_like(x);
  const SymLines lines(x.sym_sizes(), reduced, Mask(reduced.size(), false));
  if (name == "max" || name == "min") {
    const Tensor values = lines.to(x, lines.n);
    const Tensor first = call_reduce(values.detach(), at::IntArrayRef{1}, name == "max" ? "argmax" : "argmin",
                                     /*keepdim=*/true, algorithm);
    return lines.from(at::zeros_like(values).scatter(1, first, lines.to(g, 1)));
  }
  const auto acc = at::toOpMathType(x.scalar_type());
  const Tensor wide = x.to(acc);
  if (name == "prod") {
    const Tensor factors = lines.to(wide, lines.n);
    return (lines.from(call_prod_scan(factors, false) * call_prod_scan(factors, true)) * g.to(acc)).to(x.scalar_type());
  }
  const Tensor most = y.to(acc);
  const double lowest = -std::numeric_limits<double>::infinity();
  return (g.to(acc) * (wide - most.masked_fill(most == lowest, 0)).exp()).to(x.scalar_type());
}

struct ReduceFunction : torch::autograd::Function<ReduceFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, OptionalIntArrayRef dim, std::string name, bool keepdim,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor y = call_reduce(x, dim, name, keepdim, algorithm);
    if (!y.is_floating_point()) ctx->mark_non_differentiable({y});
    std::vector<int64_t> reduced;
    const Mask mask = reduced_dims(x, dim);
    for (size_t d = 0; d < mask.size(); ++d) {
      if (mask[d]) reduced.push_back(int64_t(d));
    }
    ctx->saved_data["reduced"] = reduced;
    ctx->saved_data["sizes"] = x.sym_sizes();
    ctx->saved_data["op"] = name;
    ctx->saved_data["keepdim"] = keepdim;
    ctx->saved_data["algorithm"] = algorithm;
    if (name != "sum" && name != "mean") ctx->save_for_backward({x, name == "logsumexp" ? y : Tensor()});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& saved = ctx->saved_data;
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const auto sizes = saved.at("sizes").toSymIntVector();
    const std::string name = saved.at("op").toStringRef(), algorithm = saved.at("algorithm").toStringRef();
    Mask mask(sizes.size(), false);
    SymInt count = 1;
    const auto reduced = saved.at("reduced").toIntVector();
    for (const int64_t d : reduced) {
      mask[size_t(d)] = true;
      count = count * sizes[size_t(d)];
    }
    const auto kept = [&](Tensor t) {
      if (saved.at("keepdim").toBool()) return t;
      for (const int64_t d : reduced) t = t.unsqueeze(d);
      return t;
    };
    const Tensor g = kept(grads[0]);
    if (name == "sum") {
      result[0] = g.expand_symint(sizes);
    } else if (name == "mean") {
      result[0] = (g / at::Scalar(count)).expand_symint(sizes);
    } else {
      const auto tensors = ctx->get_saved_variables();
      const Tensor y = tensors[1].defined() ? kept(tensors[1]) : Tensor();
      result[0] = gradient(g, tensors[0], y, mask, name, algorithm);
    }
    return result;
  }
};

Tensor reduce_autograd(const Tensor& x, OptionalIntArrayRef dim, Str name, bool keepdim, Str algorithm) {
  return ReduceFunction::apply(x, dim, std::string(name), keepdim, std::string(algorithm));
}

// ---- Autocast: what adds or multiplies runs in and returns float32

template <c10::DeviceType device, c10::DispatchKey key>
Tensor reduce_autocast(const Tensor& x, OptionalIntArrayRef dim, Str name, bool keepdim, Str algorithm) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const OpId op = reduction_of(name);
  const bool widens = op == OpId::sum || op == OpId::prod || op == OpId::mean || op == OpId::logsumexp;
  return call_reduce(widens ? at::autocast::cached_cast(at::kFloat, x, device) : x, dim, name, keepdim, algorithm);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  m.def("reduce(Tensor x, int[1]? dim=None, str op=\"sum\", bool keepdim=False, str algorithm=\"auto\") -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { m.impl("reduce", &reduce_kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { m.impl("reduce", &reduce_kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) { m.impl("reduce", &reduce_meta); }
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) { m.impl("reduce", &reduce_autograd); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) {
  m.impl("reduce", &reduce_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) {
  m.impl("reduce", &reduce_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace tp
