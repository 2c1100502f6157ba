#include "torch/glue.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <mutex>
#include <optional>

#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef TP_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#endif

TORCH_LIBRARY(torch_patterns, m) {}  // opens the namespace; each pattern adds its operators in a fragment

namespace tp {
namespace {

at::ScalarType scalar_type(DType dtype) {
  static constexpr at::ScalarType types[] = {at::kBool, at::kByte, at::kChar,     at::kShort, at::kInt,
                                             at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
  return types[int(dtype)];
}

// The bytes that torch's allocator keeps for new tensors.
int64_t kept_memory([[maybe_unused]] c10::DeviceIndex device) {
#ifdef TP_WITH_CUDA
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  return stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;  // 0: of all its pools
#else
  TORCH_CHECK(false, "torch_patterns was built without CUDA");
#endif
}

}  // namespace

int64_t free_memory(c10::DeviceIndex device) {
  size_t free = 0;
#ifdef TP_WITH_CUDA
  const c10::DeviceGuard guard(c10::Device(c10::DeviceType::CUDA, device));
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
#endif
  return int64_t(free) + kept_memory(device);
}

bool has_free_memory(c10::DeviceIndex device, int64_t bytes) {
  return bytes <= kept_memory(device) || bytes <= free_memory(device);
}

DType dtype_of_tensor(const char* pattern, const Tensor& x) {
  for (int i = 0; i <= int(DType::float64); ++i) {
    if (scalar_type(DType(i)) == x.scalar_type()) return DType(i);
  }
  TORCH_CHECK_TYPE(false, pattern, ": dtype ", x.scalar_type(), " is not supported");
}

Tensor canonical(const Tensor& x) {
  return x.scalar_type() == at::kBool ? x.contiguous().view(at::kByte).to(at::kBool) : x.contiguous();
}

int64_t wrap_dim(const char* pattern, int64_t dim, int64_t dims) {
  dims = max(dims, int64_t(1));
  TORCH_CHECK_INDEX(-dims <= dim && dim < dims, pattern, ": dim ", dim, " is out of range; expected ", -dims, " to ",
                    dims - 1);
  return dim < 0 ? dim + dims : dim;
}

void check_same_device(const char* pattern, std::initializer_list<std::pair<const char*, const Tensor*>> tensors) {
  const auto& first = *tensors.begin();
  for (const auto& t : tensors) {
    if (!t.second->defined()) continue;
    TORCH_CHECK(t.second->device() == first.second->device(), pattern, ": ", first.first, " is on ",
                first.second->device(), ", ", t.first, " on ", t.second->device());
  }
}

Tensor empty_result(c10::SymIntArrayRef sizes, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::empty_symint(sizes, options);
  Tensor x = at::cpu::empty(C10_AS_INTARRAYREF_SLOW(sizes), options);
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t huge_page = 1 << 21;
  if (x.nbytes() >= 2 * huge_page) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(x.mutable_data_ptr()), end = begin + x.nbytes();
    const uintptr_t first = (begin + huge_page - 1) / huge_page * huge_page;
    madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);  // a hint, which may fail
  }
#endif
  return x;
}

bool is_capturing(const Tensor& x) {
#ifdef TP_WITH_CUDA
  return x.is_cuda() && c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
#else
  (void)x;
  return false;
#endif
}

void refuse_capture(const char* what, const Tensor& x) {
  TORCH_CHECK(!is_capturing(x), what, " reads back to the host and cannot be captured in a CUDA graph");
}

void check_traits(const char* pattern, const RungInfo& rung, const Tensor& x) {
  if (!x.is_cuda() || rung.traits.none()) return;
  const std::string what = std::string(pattern) + ": algorithm '" + rung.name + "'";
  if (rung.traits.has(host_sync)) refuse_capture(what.c_str(), x);
  if (rung.traits.has(float_atomics) && x.is_floating_point()) at::globalContext().alertNotDeterministic(what);
}

std::map<std::string, std::vector<RungInfo>>& patterns() {
  static std::map<std::string, std::vector<RungInfo>> all;
  return all;
}

void throw_as_torch_error(const Error& e) {
  switch (e.kind) {
    case ErrorKind::value:
      TORCH_CHECK_VALUE(false, e.what());
    case ErrorKind::index:
      TORCH_CHECK_INDEX(false, e.what());
    case ErrorKind::type:
      TORCH_CHECK_TYPE(false, e.what());
    case ErrorKind::runtime:
      break;
  }
  TORCH_CHECK(false, e.what());
}

TorchContext::TorchContext(const Tensor& x) : tensor_(x) {
  device.cuda = x.is_cuda();
  if (!device.cuda) {
    device.threads = at::get_num_threads();
    return;
  }
#ifdef TP_WITH_CUDA
  guard_.reset_device(x.device());
  stream = c10::cuda::getCurrentCUDAStream().stream();
#else
  TORCH_CHECK(false, "torch_patterns was built without CUDA");
#endif
}

void* TorchContext::allocate(int64_t bytes) {
  bytes = max(bytes, int64_t(1));
  if (!device.cuda && bytes <= int64_t(sizeof(inline_workspace_) - used_)) {
    void* const found = inline_workspace_ + used_;
    used_ += size_t(ceil_div(bytes, int64_t(64)) * 64);
    return found;
  }
  workspaces_.push_back(empty_result({bytes}, tensor_.options().dtype(at::kByte)));
  return workspaces_.back().data_ptr();
}

void TorchContext::clear(void* data, int64_t bytes) {
#ifdef TP_WITH_CUDA
  if (device.cuda) {
    C10_CUDA_CHECK(cudaMemsetAsync(data, 0, size_t(bytes), cudaStream_t(stream)));
    return;
  }
#endif
  std::memset(data, 0, size_t(bytes));
}

void TorchContext::parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& f) {
  at::parallel_for(0, n, grain, f);
}

namespace {

// While an object exists, cuBLAS adds up products of half types in float32 and rounds them once. By default, torch
// allows it to round partial sums, too. The setting is torch's and global, so one thread at a time changes it.
class ExactSums {
 public:
  ExactSums()
      : lock_(mutex()),
        half_(torch().allowFP16ReductionCuBLAS()),
        bfloat16_(torch().allowBF16ReductionCuBLAS()),
        in_half_(torch().allowFP16AccumulationCuBLAS()) {
    torch().setAllowFP16ReductionCuBLAS(false);
    torch().setAllowBF16ReductionCuBLAS(false);
    torch().setAllowFP16AccumulationCuBLAS(false);
  }
  ~ExactSums() {
    using Option = at::CuBLASReductionOption;
    const auto rounds = [](Option o) { return o == Option::AllowReducedPrecisionWithSplitK; };
    const auto splits = [](Option o) { return o != Option::DisallowReducedPrecisionDisallowSplitK; };
    torch().setAllowFP16ReductionCuBLAS(rounds(half_), splits(half_));
    torch().setAllowBF16ReductionCuBLAS(rounds(bfloat16_), splits(bfloat16_));
    torch().setAllowFP16AccumulationCuBLAS(in_half_);
  }

 private:
  static at::Context& torch() { return at::globalContext(); }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  const std::lock_guard<std::mutex> lock_;
  const at::CuBLASReductionOption half_, bfloat16_;
  const bool in_half_;
};

}  // namespace

void TorchContext::gemm(const Gemm& p) {
  TORCH_INTERNAL_ASSERT(!p.accumulates || (p.batch == 1 && !device.cuda));
  TORCH_INTERNAL_ASSERT(!p.bias || (p.batch == 1 && device.cuda));
  // Below autograd, and in full float32: the operator that calls this decides about precision.
  at::AutoDispatchBelowADInplaceOrView below;
  at::NoTF32Guard no_tf32;
  const auto options = tensor_.options().dtype(scalar_type(p.dtype));
  // The device is passed explicitly, because an empty matrix has no address that implies it.
  const auto wrap = [&](const void* data, at::IntArrayRef sizes, at::IntArrayRef strides) {
    return at::for_blob(const_cast<void*>(data), sizes)
        .strides(strides)
        .options(options)
        .target_device(tensor_.device())
        .make_tensor();
  };
  std::optional<ExactSums> exact;
  if (device.cuda && (p.dtype == DType::float16 || p.dtype == DType::bfloat16)) exact.emplace();
  if (p.batch == 1 && (p.bias || !device.cuda)) {  // MKL's product of one matrix is faster than that of a batch
    const Tensor a = wrap(p.a.data, {p.rows, p.inner}, {p.a.row_stride, p.a.col_stride});
    const Tensor b = wrap(p.b.data, {p.inner, p.cols}, {p.b.row_stride, p.b.col_stride});
    Tensor c = wrap(p.c, {p.rows, p.cols}, {p.cols, 1});
    if (p.bias) {
      at::addmm_out(c, wrap(p.bias, {p.cols}, {1}), a, b);
    } else if (p.accumulates) {
      at::addmm_out(c, c, a, b);
    } else {
      at::mm_out(c, a, b);
    }
    return;
  }
  const auto view = [&](const Matrix& m, int64_t rows, int64_t cols) {
    return wrap(m.data, {p.batch, rows, cols}, {m.batch_stride, m.row_stride, m.col_stride});
  };
  Tensor c = wrap(p.c, {p.batch, p.rows, p.cols}, {p.c_batch_stride, p.cols, 1});
  at::bmm_out(c, view(p.a, p.rows, p.inner), view(p.b, p.inner, p.cols));
}

}  // namespace tp
