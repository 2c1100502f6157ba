// torch_patterns::lenet5_minibatches: the images of an epoch in their order, distorted.
#include <ATen/ATen.h>

#include "lenet/minibatches/minibatches.h"
#include "torch/operator.h"

namespace tp {
namespace {

constexpr auto minibatches_name = "lenet5_minibatches";

void check_digits(const Tensor& images, const Tensor& target, const Tensor& seed, const Tensor& epoch) {
  const char* op = minibatches_name;
  const bool fits =
      images.dim() == 4 && images.sym_size(1) == 1 && images.sym_size(2) == 32 && images.sym_size(3) == 32;
  TORCH_CHECK_VALUE(fits, op, ": images must be of shape [N, 1, 32, 32]; these are of shape ", images.sym_sizes());
  TORCH_CHECK_TYPE(images.scalar_type() == at::kByte, op, ": images must be uint8, got ", images.scalar_type());
  TORCH_CHECK(target.dim() == 1 && target.sym_size(0) == images.sym_size(0), op, ": target must have shape [",
              images.sym_size(0), "], got ", target.sym_sizes());
  check_same_device(op, {{"images", &images}, {"target", &target}, {"seed", &seed}, {"epoch", &epoch}});
  for (const auto& [which, t] :
       {std::pair<const char*, const Tensor&>{"target", target}, {"seed", seed}, {"epoch", epoch}}) {
    TORCH_CHECK_TYPE(t.scalar_type() == at::kLong, op, ": ", which, " must be int64, got ", t.scalar_type());
  }
  TORCH_CHECK(seed.dim() == 0 && epoch.dim() == 0, op, ": seed and epoch must be 0-D tensors");
}

std::tuple<Tensor, Tensor> minibatches_meta(const Tensor& images, const Tensor& target, const Tensor& seed,
                                            const Tensor& epoch, bool, bool distort) {
  check_digits(images, target, seed, epoch);
  const auto options = distort ? images.options().dtype(at::kFloat) : images.options();
  return {at::empty_symint(images.sym_sizes(), options), at::empty_symint(target.sym_sizes(), target.options())};
}

std::tuple<Tensor, Tensor> minibatches_kernel(const Tensor& images, const Tensor& target, const Tensor& seed,
                                              const Tensor& epoch, bool shuffle, bool distort) {
  const auto [out, out_target] = minibatches_meta(images, target, seed, epoch, shuffle, distort);
  const Tensor from = images.contiguous(), labels = target.contiguous();
  const lenet::MinibatchArgs args{from.size(0),
                                  from.const_data_ptr<uint8_t>(),
                                  labels.const_data_ptr<int64_t>(),
                                  seed.const_data_ptr<int64_t>(),
                                  epoch.const_data_ptr<int64_t>(),
                                  shuffle,
                                  distort,
                                  out.mutable_data_ptr(),
                                  out_target.mutable_data_ptr<int64_t>()};
  translate_errors([&] {
    TorchContext context(from);
    lenet::minibatches(args, context);
  });
  return {out, out_target};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  m.def(
      "lenet5_minibatches(Tensor images, Tensor target, Tensor seed, Tensor epoch, bool shuffle=True, bool "
      "distort=True) -> (Tensor, Tensor)",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { m.impl(minibatches_name, &minibatches_kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { m.impl(minibatches_name, &minibatches_kernel); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) { m.impl(minibatches_name, &minibatches_meta); }
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) { m.impl(minibatches_name, torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace tp
