// The blocks of a cluster can read and write each other's shared memory and meet at a barrier. On architectures without
// clusters, every block is a cluster of its own.
#pragma once
#include <cstdint>

#include "block/shared_address.cuh"

namespace tp::block {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
TP_DEVICE inline unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

TP_DEVICE inline unsigned cluster_blocks() {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}

// Stores `value` in block `rank` at the address that *mine has in this block.
template <class T>
TP_DEVICE void cluster_store(T* mine, unsigned rank, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  unsigned theirs;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(shared_address(mine)), "r"(rank));
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(theirs), "r"(unsigned(value)) : "memory");
  } else {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(theirs), "l"(uint64_t(value)) : "memory");
  }
}

// Returns the four floats that block `rank` has at the address of *mine, which is a multiple of 16.
TP_DEVICE inline float4 cluster_load(const float* mine, int rank) {
  unsigned theirs;
  float4 value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(theirs)
               : "memory");
  return value;
}

// Barrier of all threads of the cluster that have not ended; afterwards all threads see what any of them wrote before
// it.
TP_DEVICE inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The two halves of such a barrier, but for the order of execution alone: what a thread wrote before it arrived need
// not be visible to the others. So it does not wait for its writes to global memory.
TP_DEVICE inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
TP_DEVICE inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#else
TP_DEVICE inline unsigned cluster_rank() { return 0; }
TP_DEVICE inline unsigned cluster_blocks() { return 1; }
template <class T>
TP_DEVICE void cluster_store(T* mine, unsigned, T value) {
  *mine = value;
}
TP_DEVICE inline float4 cluster_load(const float* mine, int) { return *reinterpret_cast<const float4*>(mine); }
TP_DEVICE inline void cluster_barrier() { __syncthreads(); }
TP_DEVICE inline void cluster_arrive() {}
TP_DEVICE inline void cluster_wait() { __syncthreads(); }
#endif

}  // namespace tp::block
