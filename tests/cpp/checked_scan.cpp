// Runs the rung that -DALGORITHM names on a row of ones in the checked mode, in every order. The test compiles it with
// rungs that it broke; what the mode says goes to the standard output.
#include <cstring>
#include <iostream>
#include <memory>
#include <vector>

#include "core/simt.h"
#include "scan/scan.h"

namespace {

struct HostContext final : tp::Context {
  std::vector<std::unique_ptr<double[]>> workspaces;
  void* allocate(int64_t bytes) override {
    workspaces.emplace_back(new double[size_t(bytes / 8 + 1)]);
    return workspaces.back().get();
  }
  void clear(void* data, int64_t bytes) override { std::memset(data, 0, size_t(bytes)); }
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& f) override { f(0, n); }
  void gemm(const tp::Gemm&) override {}
};

}  // namespace

int main() {
  constexpr int n = 3000;  // two sections or more of every rung
  const std::vector<float> x(n, 1.0f);
  std::vector<float> y(n);
  tp::scan::Args args{};
  args.in = x.data();
  args.out = y.data();
  args.outer = args.inner = 1;
  args.n = n;
  args.dtype = tp::DType::float32;
  args.op = tp::OpId::sum;
  for (const auto order : {tp::simt::Order::forward, tp::simt::Order::reverse, tp::simt::Order::shuffle}) {
    tp::simt::Session session;
    session.order = order;
    tp::simt::session() = &session;
    try {
      HostContext context;
      tp::scan::ALGORITHM(args, context);
      bool right = true;
      for (int i = 0; i < n; ++i) right = right && y[size_t(i)] == float(i + 1);
      std::cout << (right ? "right\n" : "wrong\n");
    } catch (const tp::Error& error) {
      std::cout << error.what() << "\n";
    }
  }
}
