// Products of 16 x 16 by 16 x 8 matrices of half types on the tensor cores, with sums in float, and loads of their
// operands from shared memory. Requires compute capability 8.0.
#pragma once
#include <type_traits>

#include "block/launch.cuh"
#include "block/pipeline.cuh"
#include "core/half.h"

namespace tp::conv {

// Loads four matrices of 8 x 8 elements of 16 bits. Lane l gives the address of row l % 8 of matrix l / 8. It gets in
// words[i] elements 2 * (l % 4) and the next one of row l / 4 of matrix i; with `transposed`, of the transpose of
// matrix i.
template <bool transposed>
TP_DEVICE void load_matrices(unsigned (&words)[4], const void* row) {
#if __CUDA_ARCH__ >= 800
  if (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(block::shared_address(row)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(block::shared_address(row)));
  }
#endif
}

// sum += a b, where a is [16, 16] and b is [16, 8]. Of the sum, lane l holds columns 2 * (l % 4) and the next one,
// first of row l / 4, then of row l / 4 + 8.
template <class T>
TP_DEVICE void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
#define TP_MMA(type)                                                                  \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same<T, half>::value) {
    TP_MMA("f16");
  } else {
    TP_MMA("bf16");
  }
#undef TP_MMA
#endif
}

// Whether a kernel is compiled, for the current device, with these instructions. One answer serves all kernels of a
// signature.
template <class... Parameters>
bool has_tensor_cores(void (*kernel)(Parameters...)) {
  static block::PerDevice values;
  return values.get([&](int) {
    cudaFuncAttributes compiled{};
    cudaFuncGetAttributes(&compiled, kernel);
    return int(compiled.ptxVersion >= 80);
  });
}

}  // namespace tp::conv
