// torch_patterns::merge, merge_pairs, co_rank and merge_backward: schema, checks, Meta, Autograd.
//
// A merge is a permutation, and its gradient the inverse one: merge_backward takes merged values apart again, by the
// keys alone. Its own derivative is merge_pairs, with the gradients as values, so every order of derivative is one of
// the two.
#include "merge/merge.h"

#include <ATen/ATen.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include <limits>

#include "merge/validate.h"
#include "torch/keys.h"

namespace tp {
namespace {

using c10::SymInt;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Two = std::tuple<Tensor, Tensor>;

constexpr const char *name = "merge", *pairs_name = "merge_pairs", *backward_name = "merge_backward",
                     *rank_name = "co_rank";
Pattern merge_pattern(name, merge::ladder), rank_pattern(rank_name, co_rank_ladder::ladder);

Tensor call_merge(const Tensor& a, const Tensor& b, bool descending, bool validate, Str algorithm) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, bool, bool, Str)>(name);
  return handle.call(a, b, descending, validate, algorithm);
}

Two call_pairs(const Tensor& keys_a, const Tensor& values_a, const Tensor& keys_b, const Tensor& values_b,
               bool descending, bool validate, Str algorithm) {
  static const auto handle =
      op<Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool, bool, Str)>(pairs_name);
  return handle.call(keys_a, values_a, keys_b, values_b, descending, validate, algorithm);
}

Two call_backward(const Tensor& grad, const Tensor& a, const Tensor& b, bool descending, Str algorithm) {
  static const auto handle = op<Two(const Tensor&, const Tensor&, const Tensor&, bool, Str)>(backward_name);
  return handle.call(grad, a, b, descending, algorithm);
}

// ---- checks

// Two tensors of keys, or of values: one dtype, one device.
void check_alike(const char* op, const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  check_same_device(op, {{a_name, &a}, {b_name, &b}});
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), op, ": ", a_name, " is ", a.scalar_type(), ", ", b_name, " is ",
                   b.scalar_type());
}

// The shape of the result: equal leading dimensions, and the sum of the last ones.
std::vector<SymInt> check_keys(const char* op, const char* a_name, const Tensor& a, const char* b_name,
                               const Tensor& b) {
  check_alike(op, a_name, a, b_name, b);
  key_type(op, a);
  TORCH_CHECK(a.dim() > 0 && b.dim() > 0, op, ": ", a_name, " and ", b_name, " need a dimension, got scalars");
  auto shape = a.sym_sizes().vec();
  const auto others = b.sym_sizes();
  const bool fit =
      a.dim() == b.dim() && others.slice(0, shape.size() - 1).equals(a.sym_sizes().slice(0, shape.size() - 1));
  TORCH_CHECK(fit, op, ": all but the last sizes must be equal; ", a_name, " has shape ", a.sym_sizes(), ", ", b_name,
              " has ", b.sym_sizes());
  shape.back() = shape.back() + others.back();
  return shape;
}

void check_values(const char* op, const char* keys_name, const Tensor& keys, const char* values_name,
                  const Tensor& values) {
  check_same_device(op, {{keys_name, &keys}, {values_name, &values}});
  TORCH_CHECK(values.sym_sizes() == keys.sym_sizes(), op, ": ", keys_name, " has shape ", keys.sym_sizes(), ", ",
              values_name, " has ", values.sym_sizes());
  const auto bytes = values.element_size();
  TORCH_CHECK_TYPE(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16, op, ": ", values_name, " of ",
                   values.scalar_type(), " are not supported");
}

std::vector<SymInt> check_pairs(const Tensor& keys_a, const Tensor& values_a, const Tensor& keys_b,
                                const Tensor& values_b) {
  auto shape = check_keys(pairs_name, "keys_a", keys_a, "keys_b", keys_b);
  check_values(pairs_name, "keys_a", keys_a, "values_a", values_a);
  check_values(pairs_name, "keys_b", keys_b, "values_b", values_b);
  check_alike(pairs_name, "values_a", values_a, "values_b", values_b);
  return shape;
}

void check_backward(const Tensor& grad, const Tensor& a, const Tensor& b) {
  const auto shape = check_keys(backward_name, "a", a, "b", b);
  check_same_device(backward_name, {{"a", &a}, {"grad", &grad}});
  TORCH_CHECK(grad.sym_sizes().equals(shape), backward_name, ": the merge has shape ", c10::SymIntArrayRef(shape),
              ", grad has ", grad.sym_sizes());
}

// ---- kernels: CPU and CUDA alike

// Contiguous, and of bool the bytes 0 and 1, whatever byte stood for true.
Tensor raw(const Tensor& x) {
  return x.scalar_type() == at::kBool ? x.contiguous().view(at::kByte).ne(0) : x.contiguous();
}

std::vector<int64_t> merged_sizes(const Tensor& a, const Tensor& b) {
  auto sizes = a.sizes().vec();
  sizes.back() += b.size(-1);
  return sizes;
}

merge::Sequences sequences(const char* op, const Tensor& a, const Tensor& b, bool descending) {
  const int64_t m = a.size(-1), n = b.size(-1);
  int64_t rows = 1;
  for (int64_t d = 0; d < a.dim() - 1; ++d) rows *= a.size(d);
  return {a.const_data_ptr(), b.const_data_ptr(), rows, m, n, key_type(op, a), descending};
}

// "[1, 3]": the element at a flat place.
std::string index(const Tensor& x, int64_t place) {
  std::string text = "]";
  for (int64_t d = x.dim() - 1; d >= 0; --d) {
    text = (d ? ", " : "[") + std::to_string(place % x.size(d)) + text;
    place /= x.size(d);
  }
  return text;
}

// ValueError for the first key that stands before its predecessor. One synchronisation.
void check_sorted(const char* op, const merge::Sequences& in,
                  std::initializer_list<std::pair<const char*, Tensor>> keys) {
  refuse_capture((std::string(op) + ": validate=True").c_str(), keys.begin()->second);
  if (in.rows * (in.m + in.n) == 0) return;
  constexpr int64_t none = std::numeric_limits<int64_t>::max();
  const Tensor places = at::full({2}, none, keys.begin()->second.options().dtype(at::kLong));
  translate_errors([&] {
    TorchContext context(places);
    merge::find_descents(in, places.mutable_data_ptr<int64_t>(), context);
  });
  const Tensor found = places.cpu();
  const int64_t* place = found.const_data_ptr<int64_t>();
  for (const auto& [argument, x] : keys) {
    const int64_t p = *place++;
    if (p == none) continue;
    const Tensor flat = x.reshape(-1);
    TORCH_CHECK_VALUE(false, op, ": ", argument, " is not sorted ", in.descending ? "descending" : "ascending", ": ",
                      argument, index(x, p), " is ", flat[p].item(), ", after ", flat[p - 1].item());
  }
}

Tensor merge_kernel(const Tensor& a, const Tensor& b, bool descending, bool validate, Str algorithm) {
  check_keys(name, "a", a, "b", b);
  const Tensor x = raw(a), y = raw(b);
  Tensor out = empty_result(merged_sizes(x, y), x.options());
  merge::Args args{};
  args.in = sequences(name, x, y, descending);
  args.keys = out.mutable_data_ptr();
  if (validate) check_sorted(name, args.in, {{"a", x}, {"b", y}});
  if (out.numel() == 0) {
    check_algorithm(merge::ladder, name, algorithm);
  } else {
    run(merge::ladder, merge::choose, name, algorithm, x, args);
  }
  return out;
}

Two pairs_kernel(const Tensor& keys_a, const Tensor& values_a, const Tensor& keys_b, const Tensor& values_b,
                 bool descending, bool validate, Str algorithm) {
  check_pairs(keys_a, values_a, keys_b, values_b);
  const Tensor x = raw(keys_a), y = raw(keys_b), u = raw(values_a), v = raw(values_b);
  const auto sizes = merged_sizes(x, y);
  Tensor keys = empty_result(sizes, x.options()), values = empty_result(sizes, u.options());
  merge::Args args{};
  args.in = sequences(pairs_name, x, y, descending);
  args.keys = keys.mutable_data_ptr();
  args.a_values = u.const_data_ptr();
  args.b_values = v.const_data_ptr();
  args.values = values.mutable_data_ptr();
  args.value_bytes = int(u.element_size());
  if (validate) check_sorted(pairs_name, args.in, {{"keys_a", x}, {"keys_b", y}});
  if (keys.numel() == 0) {
    check_algorithm(merge::ladder, pairs_name, algorithm);
  } else {
    run(merge::ladder, merge::choose, pairs_name, algorithm, x, args);
  }
  return {keys, values};
}

Two backward_kernel(const Tensor& grad, const Tensor& a, const Tensor& b, bool descending, Str algorithm) {
  check_backward(grad, a, b);
  const Tensor g = raw(grad), x = raw(a), y = raw(b);
  Tensor grad_a = empty_result(a.sizes(), g.options()), grad_b = empty_result(b.sizes(), g.options());
  co_rank_ladder::Args args{};
  args.step = co_rank_ladder::Step::unmerge;
  args.in = sequences(backward_name, x, y, descending);
  args.merged = g.const_data_ptr();
  args.a_out = grad_a.mutable_data_ptr();
  args.b_out = grad_b.mutable_data_ptr();
  args.value_bytes = int(g.element_size());
  if (g.numel() == 0) {
    check_algorithm(co_rank_ladder::ladder, backward_name, algorithm);
  } else {
    run(co_rank_ladder::ladder, co_rank_ladder::choose, backward_name, algorithm, g, args);
  }
  return {grad_a, grad_b};
}

// ---- co_rank

// The shape of k as [rows..., queries], and of the result. Beside single sequences k has any shape; beside rows of
// them, the rows' dimensions and one of queries, or no more than the rows' for one query each.
struct Queries {
  std::vector<SymInt> expanded, result;
};

Queries check_ranks(const Tensor& k, const Tensor& a, const Tensor& b) {
  check_keys(rank_name, "a", a, "b", b);
  check_same_device(rank_name, {{"a", &a}, {"k", &k}});
  TORCH_CHECK_TYPE(at::isIntegralType(k.scalar_type(), /*includeBool=*/false), rank_name,
                   ": k must be an integer, got ", k.scalar_type());
  const auto rows = a.sym_sizes().slice(0, size_t(a.dim() - 1)).vec();
  if (rows.empty()) return {{k.sym_numel()}, k.sym_sizes().vec()};
  const bool several = k.dim() == a.dim();
  auto expanded = rows;
  const auto given = k.sym_sizes();
  bool fit = k.dim() <= a.dim();
  for (size_t d = 1; fit && d + several <= given.size(); ++d) {
    const SymInt& size = given[given.size() - several - d];
    fit = size == 1 || size == rows[rows.size() - d];
  }
  TORCH_CHECK(fit, rank_name, ": k of shape ", given, " does not fit to a of shape ", a.sym_sizes());
  if (several) expanded.push_back(given.back());
  return {expanded, expanded};
}

Tensor rank_kernel(const Tensor& k, const Tensor& a, const Tensor& b, bool descending, Str algorithm) {
  const Queries queries = check_ranks(k, a, b);
  const Tensor x = raw(a), y = raw(b);
  const Tensor wide = k.to(at::kLong);
  const Tensor ranks = (a.dim() == 1 ? wide : wide.expand_symint(queries.expanded)).contiguous();
  Tensor out = at::empty_symint(queries.result, ranks.options());
  co_rank_ladder::Args args{};
  args.step = co_rank_ladder::Step::co_rank;
  args.in = sequences(rank_name, x, y, descending);
  args.k = ranks.const_data_ptr<int64_t>();
  args.ranks = out.mutable_data_ptr<int64_t>();
  args.queries = out.numel() / max(args.in.rows, int64_t(1));
  for (int64_t q = 0; k.is_cpu() && q < out.numel(); ++q) {
    TORCH_CHECK_INDEX(0 <= args.k[q] && args.k[q] <= args.in.m + args.in.n, rank_name, ": k", index(ranks, q), " is ",
                      args.k[q], ", expected 0 to ", args.in.m + args.in.n);
  }
  if (out.numel() == 0) {
    check_algorithm(co_rank_ladder::ladder, rank_name, algorithm);
  } else {
    run(co_rank_ladder::ladder, co_rank_ladder::choose, rank_name, algorithm, x, args);
  }
  return out;
}

// ---- Meta

Tensor merge_meta(const Tensor& a, const Tensor& b, bool, bool, Str algorithm) {
  const auto shape = check_keys(name, "a", a, "b", b);
  check_algorithm(merge::ladder, name, algorithm);
  return at::empty_symint(shape, a.options());
}

Two pairs_meta(const Tensor& keys_a, const Tensor& values_a, const Tensor& keys_b, const Tensor& values_b, bool, bool,
               Str algorithm) {
  const auto shape = check_pairs(keys_a, values_a, keys_b, values_b);
  check_algorithm(merge::ladder, pairs_name, algorithm);
  return {at::empty_symint(shape, keys_a.options()), at::empty_symint(shape, values_a.options())};
}

Two backward_meta(const Tensor& grad, const Tensor& a, const Tensor& b, bool, Str algorithm) {
  check_backward(grad, a, b);
  check_algorithm(co_rank_ladder::ladder, backward_name, algorithm);
  return {at::empty_symint(a.sym_sizes(), grad.options()), at::empty_symint(b.sym_sizes(), grad.options())};
}

Tensor rank_meta(const Tensor& k, const Tensor& a, const Tensor& b, bool, Str algorithm) {
  const Queries queries = check_ranks(k, a, b);
  check_algorithm(co_rank_ladder::ladder, rank_name, algorithm);
  return at::empty_symint(queries.result, k.options().dtype(at::kLong));
}

// ---- Autograd

struct MergeFunction : torch::autograd::Function<MergeFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b, bool descending, bool validate,
                        std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({a, b});
    ctx->saved_data["descending"] = descending;
    return call_merge(a, b, descending, validate, algorithm);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const auto keys = ctx->get_saved_variables();
    std::tie(result[0], result[1]) =
        call_backward(grads[0], keys[0], keys[1], ctx->saved_data.at("descending").toBool(), "auto");
    return result;
  }
};

struct PairsFunction : torch::autograd::Function<PairsFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& keys_a, const Tensor& values_a, const Tensor& keys_b,
                               const Tensor& values_b, bool descending, bool validate, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({keys_a, keys_b});
    ctx->saved_data["descending"] = descending;
    const auto [keys, values] = call_pairs(keys_a, values_a, keys_b, values_b, descending, validate, algorithm);
    variable_list fixed;
    if (!keys_a.requires_grad() && !keys_b.requires_grad()) fixed.push_back(keys);
    if (!values_a.requires_grad() && !values_b.requires_grad()) fixed.push_back(values);
    ctx->mark_non_differentiable(fixed);
    return {keys, values};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto keys = ctx->get_saved_variables();
    variable_list result(7);
    for (size_t i = 0; i < 2; ++i) {  // of the keys, of the values
      if (!grads[i].defined() || !(ctx->needs_input_grad(i) || ctx->needs_input_grad(i + 2))) continue;
      std::tie(result[i], result[i + 2]) =
          call_backward(grads[i], keys[0], keys[1], ctx->saved_data.at("descending").toBool(), "auto");
    }
    return result;
  }
};

struct BackwardFunction : torch::autograd::Function<BackwardFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& grad, const Tensor& a, const Tensor& b,
                               bool descending, std::string algorithm) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({a, b});
    ctx->saved_data["descending"] = descending;
    const auto [grad_a, grad_b] = call_backward(grad, a, b, descending, algorithm);
    return {grad_a, grad_b};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    variable_list result(5);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const auto keys = ctx->get_saved_variables();
    const auto& options = (grads[0].defined() ? grads[0] : grads[1]).options();
    for (size_t i = 0; i < 2; ++i) {
      if (!grads[i].defined()) grads[i] = at::zeros_symint(keys[i].sym_sizes(), options);
    }
    const bool descending = ctx->saved_data.at("descending").toBool();
    result[0] = std::get<1>(call_pairs(keys[0], grads[0], keys[1], grads[1], descending, false, "auto"));
    return result;
  }
};

Tensor merge_autograd(const Tensor& a, const Tensor& b, bool descending, bool validate, Str algorithm) {
  return MergeFunction::apply(a, b, descending, validate, std::string(algorithm));
}

Two pairs_autograd(const Tensor& keys_a, const Tensor& values_a, const Tensor& keys_b, const Tensor& values_b,
                   bool descending, bool validate, Str algorithm) {
  const auto result =
      PairsFunction::apply(keys_a, values_a, keys_b, values_b, descending, validate, std::string(algorithm));
  return {result[0], result[1]};
}

Two backward_autograd(const Tensor& grad, const Tensor& a, const Tensor& b, bool descending, Str algorithm) {
  const auto result = BackwardFunction::apply(grad, a, b, descending, std::string(algorithm));
  return {result[0], result[1]};
}

void register_kernels(torch::Library& m) {
  m.impl(name, &merge_kernel);
  m.impl(pairs_name, &pairs_kernel);
  m.impl(backward_name, &backward_kernel);
  m.impl(rank_name, &rank_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("merge(Tensor a, Tensor b, bool descending=False, bool validate=False, str algorithm=\"auto\") -> Tensor",
        tags);
  m.def(
      "merge_pairs(Tensor keys_a, Tensor values_a, Tensor keys_b, Tensor values_b, bool descending=False, bool "
      "validate=False, str algorithm=\"auto\") -> (Tensor, Tensor)",
      tags);
  m.def(
      "merge_backward(Tensor grad, Tensor a, Tensor b, bool descending=False, str algorithm=\"auto\") -> (Tensor, "
      "Tensor)",
      tags);
  m.def("co_rank(Tensor k, Tensor a, Tensor b, bool descending=False, str algorithm=\"auto\") -> Tensor", tags);
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl(name, &merge_meta);
  m.impl(pairs_name, &pairs_meta);
  m.impl(backward_name, &backward_meta);
  m.impl(rank_name, &rank_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl(name, &merge_autograd);
  m.impl(pairs_name, &pairs_autograd);
  m.impl(backward_name, &backward_autograd);
}

}  // namespace
}  // namespace tp
