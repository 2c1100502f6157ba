// The matrix product of a Hopper multiprocessor (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions"). A warpgroup, which is four warps that begin at a multiple of four, multiplies tiles in shared memory,
// asynchronously. The factors are half types; the sums are float, in registers. The instructions exist only for sm_90a;
// code compiled for other devices does nothing, and has_wgmma() tells.
//
// A tile in shared memory has one row of 64 elements, 128 bytes, per pixel, map or row. Its vectors of 16 bytes are
// swizzled: vector v of row r is stored at position v ^ (r % 8), counted from a multiple of 1,024 bytes, as the tensor
// maps of tensor_map.cuh write it. A factor is read along its rows (`along`: the 64 elements of a row are the inner
// dimension of the product) or across them (the rows are the inner dimension).
#pragma once
#include <type_traits>

#include "block/launch.cuh"
#include "block/pipeline.cuh"
#include "core/half.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TP_WGMMA 1
#else
#define TP_WGMMA 0
#endif

namespace tp::block {

constexpr int row_elements = 64, row_bytes = 128, warpgroup = 128;

// The matrix descriptor of a factor. Groups of eight rows are `group_bytes` apart. If the factor is read across the
// rows, each further block of 64 elements is `block_bytes` further on. Then rows can also have 32 or 16 elements, of
// which vector v is stored at position v ^ (address / 128 % 4) or v ^ (address / 128 % 2).
template <int elements = row_elements>
TP_DEVICE uint64_t factor_at(unsigned address, int block_bytes = 16, int group_bytes = 1024) {
  constexpr uint64_t swizzled = uint64_t(elements == 64 ? 1 : elements == 32 ? 2 : 3) << 62;
  return swizzled | uint64_t(group_bytes / 16) << 32 | uint64_t(block_bytes / 16) << 16 | (address & 0x3ffff) / 16;
}

// Must be called before the first product, and whenever other instructions have written its sums.
TP_DEVICE inline void begin_products() {
#if TP_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Ends a group of products.
TP_DEVICE inline void commit_products() {
#if TP_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most the latest `groups` groups are still running. The tiles that the earlier ones read are then free.
template <int groups>
TP_DEVICE void wait_for_products() {
#if TP_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
#endif
}

// Starts sum += a b, or sum = a b if not `adds`, where a has 64 rows, b has 2 * `count` columns, and the inner
// dimension is 16. `a_along` and `b_along` tell how each factor is read. Thread t of the warpgroup holds pairs of sums
// in row t / 32 * 16 + t % 32 / 4 and, in every other pair, in the row eight below. Pairs 2 j and 2 j + 1 are columns
// 8 j + 2 * (t % 4) and the next one.
template <class T, bool a_along, bool b_along, int count>
TP_DEVICE void multiply_tiles(float (&sum)[count], uint64_t a, uint64_t b, bool adds) {
#if TP_WGMMA
#define TP_SUMS_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define TP_SUMS_8(i) TP_SUMS_4(i), TP_SUMS_4(i + 4)
#define TP_SUMS_32(i) TP_SUMS_8(i), TP_SUMS_8(i + 8), TP_SUMS_8(i + 16), TP_SUMS_8(i + 24)
#define TP_SUMS_24 TP_SUMS_8(0), TP_SUMS_8(8), TP_SUMS_8(16)
#define TP_SUMS_40 TP_SUMS_32(0), TP_SUMS_8(32)
#define TP_SUMS_48 TP_SUMS_40, TP_SUMS_8(40)
#define TP_SUMS_64 TP_SUMS_32(0), TP_SUMS_32(32)
#define TP_SUMS_96 TP_SUMS_64, TP_SUMS_32(64)
#define TP_SUMS_104 TP_SUMS_96, TP_SUMS_8(96)
#define TP_SUMS_128 TP_SUMS_96, TP_SUMS_32(96)
#define TP_NAMES_24 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23"
#define TP_NAMES_32                                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define TP_NAMES_40 TP_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TP_NAMES_48 TP_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TP_NAMES_64                                                                                             \
  TP_NAMES_32                                                                                                   \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TP_NAMES_96                                                                                             \
  TP_NAMES_64                                                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TP_NAMES_104 TP_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TP_NAMES_128                                                                                               \
  TP_NAMES_104                                                                                                     \
  ", %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
  "%122, %123, %124, %125, %126, %127"
#define TP_MULTIPLY(columns, type, names, a_name, b_name, a_across, b_across, adds_name, ...)                       \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " adds_name ", 0; wgmma.mma_async.sync.aligned.m64n" columns   \
               "k16.f32." type "." type " {" names "}, " a_name ", " b_name ", adds, 1, 1, " a_across ", " b_across \
               "; }"                                                                                                \
               : __VA_ARGS__                                                                                        \
               : "l"(a), "l"(b), "n"(a_along ? 0 : 1), "n"(b_along ? 0 : 1), "r"(int(adds)))
#define TP_MULTIPLY_TYPE(type)                                                                   \
  if constexpr (count == 24) {                                                                   \
    TP_MULTIPLY("48", type, TP_NAMES_24, "%24", "%25", "%26", "%27", "%28", TP_SUMS_24);         \
  } else if constexpr (count == 40) {                                                            \
    TP_MULTIPLY("80", type, TP_NAMES_40, "%40", "%41", "%42", "%43", "%44", TP_SUMS_40);         \
  } else if constexpr (count == 48) {                                                            \
    TP_MULTIPLY("96", type, TP_NAMES_48, "%48", "%49", "%50", "%51", "%52", TP_SUMS_48);         \
  } else if constexpr (count == 32) {                                                            \
    TP_MULTIPLY("64", type, TP_NAMES_32, "%32", "%33", "%34", "%35", "%36", TP_SUMS_32(0));      \
  } else if constexpr (count == 64) {                                                            \
    TP_MULTIPLY("128", type, TP_NAMES_64, "%64", "%65", "%66", "%67", "%68", TP_SUMS_64);        \
  } else if constexpr (count == 96) {                                                            \
    TP_MULTIPLY("192", type, TP_NAMES_96, "%96", "%97", "%98", "%99", "%100", TP_SUMS_96);       \
  } else if constexpr (count == 104) {                                                           \
    TP_MULTIPLY("208", type, TP_NAMES_104, "%104", "%105", "%106", "%107", "%108", TP_SUMS_104); \
  } else if constexpr (count == 128) {                                                           \
    TP_MULTIPLY("256", type, TP_NAMES_128, "%128", "%129", "%130", "%131", "%132", TP_SUMS_128); \
  } else {                                                                                       \
    static_assert(count == 0, "no instruction for this number of columns");                      \
  }
  if constexpr (std::is_same<T, half>::value) {
    TP_MULTIPLY_TYPE("f16")
  } else {
    TP_MULTIPLY_TYPE("bf16")
  }
#undef TP_MULTIPLY_TYPE
#undef TP_MULTIPLY
#undef TP_NAMES_128
#undef TP_NAMES_104
#undef TP_NAMES_96
#undef TP_NAMES_64
#undef TP_NAMES_48
#undef TP_NAMES_40
#undef TP_NAMES_32
#undef TP_NAMES_24
#undef TP_SUMS_128
#undef TP_SUMS_104
#undef TP_SUMS_96
#undef TP_SUMS_64
#undef TP_SUMS_48
#undef TP_SUMS_40
#undef TP_SUMS_32
#undef TP_SUMS_24
#undef TP_SUMS_8
#undef TP_SUMS_4
#endif
}

// Rounds two sums to T and packs them, the first one into the lower half.
template <class T>
TP_DEVICE unsigned half_pair(float first, float second) {
  unsigned pair = 0;
#if TP_WGMMA
  if constexpr (std::is_same<T, half>::value) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
#endif
  return pair;
}

// Stores four matrices of 8 x 8 elements of half types, transposed, to shared memory. Lane i holds two neighbouring
// elements of row i / 4 of each, and gives the address at which column i % 8 of matrix i / 8 is stored, as 16 bytes.
TP_DEVICE inline void store_transposed(unsigned address, unsigned first, unsigned second, unsigned third,
                                       unsigned fourth) {
#if TP_WGMMA
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(first),
               "r"(second), "r"(third), "r"(fourth)
               : "memory");
#endif
}

// Gives a warpgroup more registers, or fewer, than the kernel was launched with. All its warps must call it.
template <int registers>
TP_DEVICE void take_registers() {
#if TP_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
TP_DEVICE void leave_registers() {
#if TP_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

// Whether the current device can run a kernel, and runs code compiled for sm_90a: only that has static shared memory.
// One answer serves all kernels of a signature.
template <class... Parameters>
bool has_wgmma(void (*kernel)(Parameters...)) {
  static PerDevice values;
  return values.get([&](int) {
    cudaFuncAttributes compiled{};
    const bool loads = cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess;
    if (!loads) cudaGetLastError();
    return int(loads && compiled.sharedSizeBytes > 0);
  });
}

}  // namespace tp::block
