// An operator of one's own in the kernels of torch_patterns, without torch: the greatest sum of neighbouring elements.
//
//     g++ -std=c++17 -Icsrc examples/cpp/own_operator.cpp csrc/core/*.cpp -o own_operator
//     nvcc -std=c++17 -x cu --expt-relaxed-constexpr -DTP_WITH_CUDA -Icsrc examples/cpp/own_operator.cpp
//          csrc/core/*.cpp -o own_operator                                                      (one line)
//
// Of a range of elements keep four numbers: its sum, the greatest sum of a beginning, of an end, and of any part. Of
// two neighbouring ranges these follow from those of each, so they are a monoid, which does not commute; and a scan
// gives the answer for every prefix at once (Bentley's problem, in O(log n) steps).
#include "scan/own_operator.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

struct GreatestSum {
  struct Ends {
    float begin, end;
  };
  struct Whole {
    float sum, best;
  };
  struct Acc {
    Whole whole;
    Ends ends;  // the greatest sums of a beginning and of an end
  };
  TP_HD static Acc identity() { return {{0, 0}, {0, 0}}; }
  TP_HD static Acc of(float x) {
    const float gain = tp::max(x, 0.0f);
    return {{x, gain}, {gain, gain}};
  }
  TP_HD static Acc combine(Acc earlier, Acc later) {
    const float across = earlier.ends.end + later.ends.begin;
    return {{earlier.whole.sum + later.whole.sum, tp::max(across, tp::max(earlier.whole.best, later.whole.best))},
            {tp::max(earlier.ends.begin, earlier.whole.sum + later.ends.begin),
             tp::max(later.ends.end, later.whole.sum + earlier.ends.end)}};
  }
};

// Where to run, and scratch memory that lives as long as the context.
struct Machine final : tp::Context {
#ifdef __CUDACC__
  std::vector<void*> blocks;
  Machine() { device.cuda = true; }
  ~Machine() override {
    for (void* block : blocks) cudaFree(block);
  }
  void* allocate(int64_t bytes) override {
    blocks.push_back(nullptr);
    cudaMallocManaged(&blocks.back(), size_t(std::max(bytes, int64_t(1))));
    return blocks.back();
  }
  void clear(void* data, int64_t bytes) override { cudaMemset(data, 0, size_t(bytes)); }
  void finish() { cudaDeviceSynchronize(); }
#else
  std::vector<std::unique_ptr<double[]> > blocks;
  void* allocate(int64_t bytes) override {
    blocks.emplace_back(new double[size_t(bytes / 8 + 1)]);
    return blocks.back().get();
  }
  void clear(void* data, int64_t bytes) override { std::memset(data, 0, size_t(bytes)); }
  void finish() {}
#endif
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& f) override { f(0, n); }
  void gemm(const tp::Gemm&) override {}
};

int main() {
  constexpr int n = 5000;
  Machine machine;
  float* x = machine.workspace<float>(n);
  auto* y = machine.workspace<GreatestSum::Acc>(n);
  for (int i = 0; i < n; ++i) x[i] = float((i * 7919) % 13 - 6);

  tp::scan::scan_with<GreatestSum>(x, y, 1, n, machine);
  machine.finish();

  float here = 0, best = 0;  // Kadane's algorithm, one element after another
  for (int i = 0; i < n; ++i) {
    here = std::max(here + x[i], 0.0f);
    best = std::max(best, here);
    if (y[i].whole.best != best) {
      std::printf("wrong at %d: %g, expected %g\n", i, double(y[i].whole.best), double(best));
      return 1;
    }
  }
  std::printf("greatest sum of %d elements: %g\n", n, double(best));
}
