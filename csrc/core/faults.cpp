#include "core/faults.h"

#include "core/simt.h"

namespace tp::simt {
namespace {

constexpr int threads = 16;

struct HostContext final : Context {
  std::vector<std::unique_ptr<char[]>> workspaces;
  void* allocate(int64_t bytes) override {
    workspaces.push_back(std::make_unique<char[]>(size_t(bytes)));
    return workspaces.back().get();
  }
  void clear(void* data, int64_t bytes) override { memset(data, 0, size_t(bytes)); }
  void parallel_for(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& f) override { f(0, n); }
  void gemm(const Gemm&) override { fail(ErrorKind::runtime, "faults: no matrix product here"); }
};

// Each fault is the body of a kernel over a global array x of `threads` zeros and a shared array s of the same length.
struct Fault {
  const char* name;
  int64_t blocks;
  void (*body)(HostBlock& block, HostArray<float> x, HostArray<int> flags, HostArray<float> s);
  Sharing sharing = Sharing::exclusive;  // of x
};

void fill(HostBlock& block, HostArray<float> s) {
  block.phase("load", [&](int t) { s[t] = float(t); });
}

using X = HostArray<float>;
using Flags = HostArray<int>;

const Fault all_faults[] = {
    // The race of §11.2: a Kogge-Stone step reads its neighbour and overwrites its own element with no barrier in
    // between.
    {"missing_barrier", 1,
     [](HostBlock& block, X, Flags, X s) {
       fill(block, s);
       for (int stride = 1; stride < threads; stride *= 2) {
         block.phase("combine", [&](int t) {
           if (t >= stride) s[t] += s[t - stride];
         });
       }
     }},
    {"plain_add", 1, [](HostBlock& block, X x, Flags, X) { block.phase("count", [&](int) { x[0] += 1.0f; }); }},
    {"plain_add_across_blocks", 2,
     [](HostBlock& block, X x, Flags, X) {
       block.phase("count", [&](int t) {
         if (t == 0) x[0] += 1.0f;
       });
     }},
    {"unwritten_shared", 1,
     [](HostBlock& block, X x, Flags, X s) { block.phase("store", [&](int t) { x[t] = s[t]; }); }},
    {"out_of_bounds", 1,
     [](HostBlock& block, X x, Flags, X s) {
       fill(block, s);
       block.phase("shift", [&](int t) { x[t] = s[t + 1]; });
     }},
    {"outside_phase", 1,
     [](HostBlock& block, X x, Flags, X s) {
       fill(block, s);
       x[0] = s[0];
     }},
    {"divergent_barrier", 1,
     [](HostBlock& block, X x, Flags, X) {
       block.phase("outer", [&](int t) {
         if (t == 0) block.phase("inner", [&](int i) { x[i] = 1.0f; });
       });
     }},
    {"not_uniform", 1,
     [](HostBlock& block, X x, Flags, X) {
       int calls = 0;
       block.uniform("bound", [&] { return calls++; });
       block.phase("store", [&](int t) { x[t] = 0.0f; });
     }},
    {"unset_flag", 2,
     [](HostBlock& block, X, Flags flags, X) {
       block.phase("domino", [&](int t) {
         if (t == 0) block.wait(flags, 1);
       });
     }},
    // An addition is a race even if this time it changes nothing.
    {"idempotent_add", 1, [](HostBlock& block, X x, Flags, X) { block.phase("count", [&](int) { x[0] += 0.0f; }); },
     Sharing::idempotent},
    // The sum is passed on without a flag between writer and reader.
    {"missing_flag", 2,
     [](HostBlock& block, X x, Flags, X) {
       block.phase("domino", [&](int t) {
         if (t == 0 && block.index().x == 0) x[1] = 1.0f;
         if (t == 0 && block.index().x == 1) x[2] = x[1];
       });
     }},
};

struct FaultKernel {
  const Fault* fault;
  float* x;
  int* flags;
  void operator()(HostBlock& block) const {
    const auto global = block.global("x", x, threads, fault->sharing);
    const auto flag = block.global("flags", flags, threads);
    fault->body(block, global, flag, block.shared<float>("s", threads));
  }
};

}  // namespace

std::vector<std::string> faults() {
  std::vector<std::string> names;
  for (const Fault& f : all_faults) names.push_back(f.name);
  return names;
}

void run_fault(const std::string& name) {
  for (const Fault& f : all_faults) {
    if (name != f.name) continue;
    HostContext context;
    float* x = context.workspace<float>(threads);
    int* flags = context.workspace<int>(threads);
    context.clear(x, threads * int64_t(sizeof(float)));
    context.clear(flags, threads * int64_t(sizeof(int)));
    run_on_host(f.name, {f.blocks}, threads, threads * int64_t(sizeof(float)), FaultKernel{&f, x, flags});
    return;
  }
  fail(ErrorKind::value, "simt: no fault is called '", name, "'");
}

}  // namespace tp::simt
