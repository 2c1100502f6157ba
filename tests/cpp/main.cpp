// A program without Python: runs a TorchScript file that calls the operators, and calls one itself; gradients of both.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/script.h>

#include <iostream>

namespace {

void print(const char* what, const at::Tensor& values) {
  std::cout << what;
  for (int64_t i = 0; i < values.numel(); ++i) std::cout << ' ' << values[i].item<float>();
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const at::Tensor x = torch::arange(1, 5, torch::kFloat).set_requires_grad(true);

  torch::jit::Module model = torch::jit::load(argv[1]);
  const at::Tensor y = model.forward({x}).toTensor();
  print("scripted", y);
  y.sum().backward();
  print("gradient", x.grad());

  const auto scan =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("torch_patterns::scan", "")
          .typed<at::Tensor(const at::Tensor&, int64_t, std::string_view, bool, bool, std::string_view)>();
  x.mutable_grad().reset();
  const at::Tensor z = scan.call(x, 0, "prod", false, true, "auto");
  print("dispatched", z);
  z.sum().backward();
  print("gradient", x.grad());
}
