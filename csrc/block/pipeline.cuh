// What the warps of a block need to work as a pipeline: asynchronous copies from global to shared memory, and barriers
// in shared memory on which some warps wait for others (mbarriers). Before compute capability 9.0, copies are
// synchronous and barriers are counters.
#pragma once
#include <type_traits>

#include "block/shared_address.cuh"
#include "block/warp.cuh"

namespace tp::block {

// A barrier that is used round after round: each round ends after `count` arrivals. A thread waits for a round by its
// parity, and must do so before the next round ends. What a thread wrote before it arrived is visible to all threads
// that waited.
#if __CUDA_ARCH__ >= 900
class Barrier {
 public:
  TP_DEVICE void init(int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
  }
  TP_DEVICE void arrive() {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address()) : "memory");
  }
  // Arrives when all copies that this thread has started are complete, without waiting for them here.
  TP_DEVICE void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address()) : "memory");
  }
  // The current round does not end before that many bytes of bulk copies have arrived.
  TP_DEVICE void expect(int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  TP_DEVICE void wait(unsigned parity) const {
    unsigned over = 0;
    while (!over) {
      asm volatile("{ .reg .pred over; mbarrier.try_wait.parity.shared.b64 over, [%1], %2; selp.u32 %0, 1, 0, over; }"
                   : "=r"(over)
                   : "r"(address()), "r"(parity)
                   : "memory");
    }
  }
  TP_DEVICE unsigned address() const { return shared_address(&state_); }

 private:
  uint64_t state_;
};
#else
class Barrier {
 public:
  TP_DEVICE void init(int count) {
    count_ = unsigned(count);
    arrived_ = 0;
  }
  TP_DEVICE void arrive() {
    __threadfence_block();
    atomicAdd(&arrived_, 1u);
  }
  TP_DEVICE void arrive_after_copies() { arrive(); }
  TP_DEVICE void wait(unsigned parity) const {
    while ((*static_cast<const volatile unsigned*>(&arrived_) / count_ & 1) == parity) {
    }
    __threadfence_block();
  }

 private:
  unsigned count_, arrived_;
};
#endif

// A barrier among `warps` warps of a block, all of which must call it. `id`, from 1 to 15, distinguishes groups of
// warps.
TP_DEVICE inline void sync_warps(int id, int warps) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(warps * warp_size) : "memory");
}
// Arrives at such a barrier without waiting for the other warps.
TP_DEVICE inline void arrive_warps(int id, int warps) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(warps * warp_size) : "memory");
}
// The first, and whether the condition holds in any of their threads.
TP_DEVICE inline bool any_of_warps(int id, int warps, bool condition) {
  int any;
  asm volatile(
      "{ .reg .pred each, any; setp.ne.b32 each, %1, 0; bar.red.or.pred any, %2, %3, each; selp.b32 %0, 1, 0, any; }"
      : "=r"(any)
      : "r"(int(condition)), "r"(id), "r"(warps * warp_size)
      : "memory");
  return __shfl_sync(~0u, any, 0) != 0;  // shows the compiler that it is the same for a whole warp
}

// The current stage in a ring of `stages`, and the parity of its round.
struct Cursor {
  int stages, stage = 0;
  unsigned parity = 0;
  TP_DEVICE explicit Cursor(int stages) : stages(stages) {}
  TP_DEVICE void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Starts to copy 4 or 16 bytes; both addresses must be multiples of `bytes`.
template <int bytes>
TP_DEVICE void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 900
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }
#else
  using Word = typename std::conditional<bytes == 16, uint4, unsigned>::type;
  *static_cast<Word*>(to) = *static_cast<const Word*>(from);
#endif
}

// `threads` threads copy `bytes` bytes together. That and both addresses must be multiples of 16. Thread 0 starts one
// bulk copy, for which `barrier` waits; without bulk copies, each thread has copied its part when the function returns.
TP_DEVICE inline void copy_units(Barrier& barrier, void* to, const void* from, int bytes, int thread, int threads) {
#if __CUDA_ARCH__ >= 900
  if (bytes > 0 && thread == 0) {
    barrier.expect(bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier.address())
                 : "memory");
  }
#else
  for (int i = thread * 16; i < bytes; i += threads * 16) {
    copy_async<16>(static_cast<unsigned char*>(to) + i, static_cast<const unsigned char*>(from) + i);
  }
#endif
}

// A warp copies the bytes from `begin` up to `end`. `to` must have the same offset within 16 bytes as `begin`. The
// aligned units of 16 bytes are moved by one bulk copy, for which `barrier` waits; the bytes before and after them are
// copied when the function returns.
TP_DEVICE inline void copy_bulk(Barrier& barrier, unsigned char* to, const unsigned char* begin,
                                const unsigned char* end, int lane) {
  const int bytes = int(end - begin), head = tp::min(bytes, int((0 - reinterpret_cast<uintptr_t>(begin)) % 16));
  const int bulk = (bytes - head) / 16 * 16, tail = head + bulk;
  copy_units(barrier, to + head, begin + head, bulk, lane, warp_size);
  if (lane < head) to[lane] = begin[lane];
  if (tail + lane < bytes) to[tail + lane] = begin[tail + lane];
}

}  // namespace tp::block
