// The programming model of the textbook kernels, which are written once for both devices.
//
// A kernel is a plain struct with a templated operator()(Block&). It is a sequence of *phases*, which every lane of the
// block runs, with a barrier between any two phases:
//
//   template <class Block> TP_HD void operator()(Block& block) const {
//     // Arrays are named, so that errors and traces can name them.
//     auto s = block.template shared<float>("s", 256);
//     auto left = block.template per_lane<float>("left");   // a register that lives from phase to phase
//     block.phase("load", [&](int t) { s[t] = x[block.index().x * 256 + t]; });
//     block.phase("read", [&](int t) { if (t > 0) left[t] = s[t - 1]; });
//     ...
//
// Under nvcc, a phase is its body for threadIdx.x, followed by __syncthreads(). On the host (simt_host.h), it is a loop
// over the lanes, and blocks run one after another. Hence the rules: code between phases must be the same for the whole
// block and must not touch an array (a bound that depends on data comes through block.uniform); no lane may return from
// the kernel; elements must be read into a value (`const float v = s[t];`, never `auto`).
//
// The host's checked mode (simt_check.h) enforces these rules and finds races, in any order of lanes and blocks.
#pragma once
#include "core/atomic.h"
#include "core/context.h"
#include "core/simt_host.h"

#ifdef __CUDACC__
#pragma nv_diag_suppress 20011, 20014  // host-only calls in the host instantiation of a kernel

namespace tp::simt {

template <class T>
class DeviceArray {
 public:
  TP_DEVICE explicit DeviceArray(T* data) : data_(data) {}
  template <class I>
  TP_DEVICE T& operator[](I i) const {
    return data_[i];
  }
  // The same memory as values of another type.
  template <class U>
  TP_DEVICE DeviceArray<U> as() const {
    return DeviceArray<U>(reinterpret_cast<U*>(data_));
  }
  // element = Op::combine(element, v) in one indivisible step; returns the old element.
  template <class Op, class I>
  TP_DEVICE T atomic(I i, T v) const {
    return atomic_combine<Op>(data_ + i, v);
  }

 private:
  T* data_;
};

template <class T>
class DevicePerLane {
 public:
  TP_DEVICE T& operator[](int) { return value_; }

 private:
  T value_;
};

class DeviceBlock {
 public:
  TP_DEVICE Dim index() const { return {int64_t(blockIdx.x), int64_t(blockIdx.y), int64_t(blockIdx.z)}; }
  TP_DEVICE Dim grid() const { return {int64_t(gridDim.x), int64_t(gridDim.y), int64_t(gridDim.z)}; }
  TP_DEVICE int threads() const { return int(blockDim.x); }

  template <class T>
  TP_DEVICE DeviceArray<T> shared(const char*, int n) {
    extern __shared__ __align__(16) unsigned char pool[];
    const int begin = (used_ + int(alignof(T)) - 1) / int(alignof(T)) * int(alignof(T));
    used_ = begin + n * int(sizeof(T));
    return DeviceArray<T>(reinterpret_cast<T*>(pool + begin));
  }
  template <class T>
  TP_DEVICE DeviceArray<T> global(const char*, T* data, int64_t, Sharing = Sharing::exclusive) {
    return DeviceArray<T>(data);
  }
  template <class T>
  TP_DEVICE DevicePerLane<T> per_lane(const char*) {
    return {};
  }

  template <class F>
  TP_DEVICE void phase(const char*, F f) {
    f(int(threadIdx.x));
    __syncthreads();
  }
  // f() reads arrays and gives every lane the same value. There is a barrier before and after it.
  template <class F>
  TP_DEVICE auto uniform(const char*, F f) {
    __syncthreads();
    const auto value = f();
    __syncthreads();
    return value;
  }
  // The index of this block in the order in which blocks start, from a counter that was cleared. A block may wait only
  // for blocks with smaller tickets.
  TP_DEVICE int64_t ticket(DeviceArray<int64_t> counter) {
    auto mine = shared<int64_t>("ticket", 1);
    phase("ticket", [&](int t) {
      if (t == 0) mine[0] = counter.template atomic<Sum<int64_t>>(0, 1);
    });
    return mine[0];
  }

  // Called by one lane in a phase. What other blocks wrote before signal(flags, i) is visible after wait(flags, i).
  TP_DEVICE void wait(DeviceArray<int> flags, int64_t i) {
    int set = 0;
    while (set == 0) asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(set) : "l"(&flags[i]) : "memory");
  }
  TP_DEVICE void signal(DeviceArray<int> flags, int64_t i) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(&flags[i]), "r"(1) : "memory");
  }

 private:
  int used_ = 0;
};

template <class Kernel>
__global__ void kernel_entry(const Kernel kernel) {
  DeviceBlock block;
  kernel(block);
}

}  // namespace tp::simt
#endif

namespace tp::simt {

// Takes the place of a block in code that is not a block algorithm, on host or device: its arrays are plain pointers.
struct Pointers {
  template <class T>
  TP_HD T* global(const char*, T* data, int64_t, Sharing = Sharing::exclusive) const {
    return data;
  }
};

// Runs kernel(block) for every block of the grid on the context's device. `shared_bytes` is the size of the kernel's
// shared arrays, at most 48 KB.
template <class Kernel>
void launch(Context& context, const char* name, Dim grid, int threads, int64_t shared_bytes, const Kernel& kernel) {
  check_limits(name, grid, threads, shared_bytes);
  if (grid.x * grid.y * grid.z == 0) return;
  if (!context.device.cuda) return run_on_host(name, grid, threads, shared_bytes, kernel);
#ifdef __CUDACC__
  const dim3 blocks{unsigned(grid.x), unsigned(grid.y), unsigned(grid.z)};
  kernel_entry<<<blocks, threads, size_t(shared_bytes), cudaStream_t(context.stream)>>>(kernel);
  check_launch(name);
#endif
}

}  // namespace tp::simt
