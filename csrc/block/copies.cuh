// Asynchronous copies from global to shared memory, which run while the block computes. They form groups that complete
// in order.
#pragma once
#include <cstring>

#include "block/shared_address.cuh"

namespace tp::block {

// Starts to copy `bytes` bytes, or writes zeros if not `exists`. Both addresses must be multiples of `bytes`, and
// `from` must be a valid address in either case. 2 bytes are copied synchronously, because the hardware copies 4, 8 or
// 16.
template <int bytes>
TP_DEVICE void copy_or_zero(void* to, const void* from, bool exists) {
  if constexpr (bytes == 2) {
    *static_cast<unsigned short*>(to) = exists ? *static_cast<const unsigned short*>(from) : 0;
  } else {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(bytes),
                 "r"(exists ? bytes : 0)
                 : "memory");
#else
    unsigned words[bytes / 4] = {};
    if (exists) memcpy(words, from, bytes);
    memcpy(to, words, bytes);
#endif
  }
}

// Ends a group of copies.
TP_DEVICE inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the latest `groups` groups are still running.
template <int groups>
TP_DEVICE void wait_for_groups() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

// Waits for all copies that this thread has started, whether or not they are in groups.
TP_DEVICE inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace tp::block
