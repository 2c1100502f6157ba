// What CUDA refuses, the host refuses: each line of the output is the error of one launch, or "accepted".
#include <iostream>

#include "core/simt.h"

namespace {

struct NoContext final : tp::Context {
  void* allocate(int64_t) override { return nullptr; }
  void clear(void*, int64_t) override {}
  void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
  void gemm(const tp::Gemm&) override {}
};

struct Kernel {
  int floats;
  template <class Block>
  void operator()(Block& block) const {
    auto s = block.template shared<float>("s", floats);
    block.phase("fill", [&](int t) { s[t] = 0.0f; });
  }
};

void attempt(tp::simt::Dim grid, int threads, int64_t shared_bytes, int floats = 1024) {
  try {
    NoContext context;
    tp::simt::launch(context, "kernel", grid, threads, shared_bytes, Kernel{floats});
    std::cout << "accepted\n";
  } catch (const tp::Error& error) {
    std::cout << error.what() << "\n";
  }
}

}  // namespace

int main() {
  attempt({1}, 1024, 49152);
  attempt({1}, 1025, 4096);
  attempt({1}, 32, 49153);
  attempt({1, 65536}, 32, 4096);
  attempt({1, 1, 65536}, 32, 4096);
  attempt({2147483648}, 32, 4096);
  attempt({0}, 32, 4096);  // nothing to do
  tp::simt::Session session;
  tp::simt::session() = &session;
  attempt({1}, 32, 100);  // less than its array takes
}
