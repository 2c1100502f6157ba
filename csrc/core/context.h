// Everything that a rung may ask of its caller: the stream, scratch memory, host threads, a matrix product. A rung
// never asks the system for these, so it runs on torch's stream, with torch's allocator and torch's threads.
#pragma once
#include <functional>

#include "core/dtype.h"

namespace tp {

// C[i] = A[i] B[i] for i in 0..batch, or C += A B for one product on the CPU. Each operand is row-major with its own
// strides, in elements; an operand whose stride is 0 is repeated. Products of half types accumulate in float32; float32
// is computed in float32, never in TF32.
struct Matrix {
  const void* data;
  int64_t row_stride, col_stride, batch_stride;
};

struct Gemm {
  DType dtype;
  int64_t batch, rows, cols, inner;  // A is rows x inner, B is inner x cols, C is rows x cols, packed
  Matrix a, b;
  void* c;
  int64_t c_batch_stride;
  bool accumulates = false;    // CPU with a batch of 1: adds to C; half types are rounded after that
  const void* bias = nullptr;  // CUDA with a batch of 1: [cols], added to each row; half types are rounded after that
};

struct Device {
  bool cuda = false;
  int threads = 1;  // CPU: torch's intra-op threads
};

class Context {
 public:
  Device device;
  void* stream = nullptr;  // cudaStream_t of the caller; every launch goes there

  virtual ~Context() = default;
  // Allocates scratch memory on the device. It is aligned to 64 bytes on the CPU and to 512 on CUDA, not initialized,
  // and valid until the call ends.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void clear(void* data, int64_t bytes) = 0;  // sets all bytes to zero, in stream order
  // Calls f(begin, end) on torch's threads, for disjoint ranges that cover 0..n; all but the last have at least `grain`
  // elements.
  virtual void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& f) = 0;
  virtual void gemm(const Gemm& problem) = 0;

  template <class T>
  T* workspace(int64_t n) {
    return static_cast<T*>(allocate(n * int64_t(sizeof(T))));
  }
};

#ifdef __CUDACC__
// Called after a kernel launch: turns an error of the driver into an error that names the rung.
inline void check_launch(const char* rung) {
  const cudaError_t status = cudaGetLastError();
  require(status == cudaSuccess, rung, ": ", cudaGetErrorString(status));
}
#endif

}  // namespace tp
