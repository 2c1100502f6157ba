// What every operator of csrc/torch needs: it converts tensors to Args, finds an algorithm by name, translates the
// errors of csrc/core to torch's, and provides a Context that uses torch's stream, allocator, threads and BLAS.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/ladder.h"
#include "core/op.h"

namespace tp {

using at::Tensor;
using Str = std::string_view;

DType dtype_of_tensor(const char* pattern, const Tensor& x);
inline const void* data_or_null(const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
// A contiguous tensor of the same elements; bool gets the bytes 0 and 1, whatever byte stood for true.
Tensor canonical(const Tensor& x);

// `dim` counted from the front; a tensor without dimensions counts as having one.
int64_t wrap_dim(const char* pattern, int64_t dim, int64_t dims);

// Checks that all tensors are on the device of the first; otherwise the error names both devices.
void check_same_device(const char* pattern, std::initializer_list<std::pair<const char*, const Tensor*>> tensors);

// Whether launches on a tensor's stream are being captured into a CUDA graph.
bool is_capturing(const Tensor& x);

// Fails if a tensor's stream is being captured, for operators that read results back to the host (validate=True,
// host_sync rungs).
void refuse_capture(const char* what, const Tensor& x);

// The bytes that are free on a CUDA device, including those that torch's allocator keeps for new tensors.
TP_EXPORT int64_t free_memory(c10::DeviceIndex device);
// Whether so many bytes are free. The driver, which takes longer to answer, is asked only if the allocator keeps less.
bool has_free_memory(c10::DeviceIndex device, int64_t bytes);

// A new result, which on the Meta device may have symbolic sizes. On the CPU, a large result asks the system for huge
// pages, as numpy does: new memory is mapped page by page when it is first touched, and with pages of 4 KiB that takes
// longer than the operator itself.
Tensor empty_result(c10::SymIntArrayRef sizes, const at::TensorOptions& options);

// The ladder of each operator, by its public name. Several operators may share a ladder.
TP_EXPORT std::map<std::string, std::vector<RungInfo>>& patterns();

struct Pattern {
  template <class Ladder>
  Pattern(const char* name, const Ladder& ladder) {
    patterns().emplace(name, std::vector<RungInfo>(std::begin(ladder), std::end(ladder)));
  }
};

// Throws an error of the core as torch's error, which becomes RuntimeError, ValueError, IndexError or TypeError in
// Python.
[[noreturn]] void throw_as_torch_error(const Error& e);

// Calls f and converts the errors of csrc/core to torch's.
template <class F>
void translate_errors(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    throw_as_torch_error(e);
  }
}

// A Context for the device of `x`, with its current stream, the caching allocator, intra-op threads and at::bmm. `x`
// must outlive it. The Context selects the device for its lifetime.
class TorchContext final : public Context {
 public:
  explicit TorchContext(const Tensor& x);
  void* allocate(int64_t bytes) override;
  void clear(void* data, int64_t bytes) override;
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& f) override;
  void gemm(const Gemm& problem) override;

 private:
  const Tensor& tensor_;
  // Small CPU workspaces are taken from here, because allocating them would take longer than the work itself.
  alignas(64) std::byte inline_workspace_[512];
  size_t used_ = 0;
  std::vector<Tensor> workspaces_;
  c10::OptionalDeviceGuard guard_;
};

// Calls f(context) for the device of x.
template <class F>
void with_context(const Tensor& x, const F& f) {
  translate_errors([&] {
    TorchContext context(x);
    f(context);
  });
}

// For CUDA tensors: a rung with host_sync refuses stream capture, and one with float_atomics reports that it is not
// deterministic.
void check_traits(const char* pattern, const RungInfo& rung, const Tensor& x);

// Runs the rung that `algorithm` names, or that `choose` picks for "auto", on the device of `x`. If a part of `args`
// depends on the rung, complete(name of the rung) sets it.
template <class Ladder, class Choose, class Args, class Complete>
void run(const Ladder& ladder, Choose choose, const char* pattern, Str algorithm, const Tensor& x, const Args& args,
         const Complete& complete) {
  with_context(x, [&](TorchContext& context) {
    const bool cuda = context.device.cuda;
    const auto& rung = find(ladder, pattern, algorithm == "auto" ? Str(choose(args, context.device)) : algorithm, cuda);
    check_traits(pattern, rung, x);
    complete(rung.name);
    rung.run(args, context);
  });
}
template <class Ladder, class Choose, class Args>
void run(const Ladder& ladder, Choose choose, const char* pattern, Str algorithm, const Tensor& x, const Args& args) {
  run(ladder, choose, pattern, algorithm, x, args, [](Str) {});
}

// Fails unless the name is on the ladder. For calls that run nothing, in which the device does not matter.
template <class Ladder>
void check_algorithm(const Ladder& ladder, const char* pattern, Str algorithm) {
  if (algorithm == "auto") return;
  for (const auto& rung : ladder) {
    if (algorithm == rung.name) return;
  }
  translate_errors([&] {
    std::string names;
    for (const auto& rung : ladder) names += std::string(", ") + rung.name;
    fail(ErrorKind::value, pattern, ": unknown algorithm '", algorithm, "'; choose from: auto", names);
  });
}

// Whether a call is done once its result is allocated: a Meta tensor has no data, and an empty one needs no work. Then
// only the name of the algorithm is checked.
template <class Ladder>
bool is_done(const Tensor& out, const Ladder& ladder, const char* pattern, Str algorithm) {
  if (!out.is_meta() && out.numel() > 0) return false;
  check_algorithm(ladder, pattern, algorithm);
  return true;
}

}  // namespace tp
