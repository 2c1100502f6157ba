// torch_patterns::lenet5_minibatches: the images of an epoch in their order, distorted.
#include <ATen/ATen.h>

#include "lenet/minibatches/minibatches.h"
#include "torch/operator.h"

namespace tp {
namespace {

constexpr auto op = "lenet5_minibatches";

struct Minibatches {
  static constexpr auto schema =
      "lenet5_minibatches(Tensor images, Tensor target, Tensor seed, Tensor epoch, bool shuffle=True, bool "
      "distort=True) -> (Tensor, Tensor)";
  Tensor images, target, seed, epoch;
  bool shuffle, distort;

  std::tuple<Tensor, Tensor> kernel() const;
};

std::tuple<Tensor, Tensor> Minibatches::kernel() const {
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
  const Tensor out = empty_result(images.sym_sizes(), images.options().dtype(distort ? at::kFloat : at::kByte));
  const Tensor out_target = empty_result(target.sym_sizes(), target.options());
  if (out.is_meta()) return {out, out_target};
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
  with_context(from, [&](TorchContext& context) { lenet::minibatches(args, context); });
  return {out, out_target};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Minibatches>(m); }

}  // namespace
}  // namespace tp
