// What the warps of a block need to work as a pipeline: copies from global to shared memory that run on their own, and
// barriers in shared memory on which one set of warps waits for another.
#pragma once
#include <type_traits>

#include "block/warp.cuh"

namespace tp::block {

TP_DEVICE inline unsigned shared_address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }

// A barrier of rounds: round r ends when `count` arrivals of it are in. Whoever waits names the parity of the round; it
// must look before the next round ends. What a thread wrote before it arrived is there for whoever waited.
#if __CUDA_ARCH__ >= 900
class Barrier {
 public:
  TP_DEVICE void init(int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
  }
  TP_DEVICE void arrive() {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address()) : "memory");
  }
  // Arrives once all copies that this thread has begun are there.
  TP_DEVICE void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address()) : "memory");
  }
  // The round will not end before so many bytes of bulk copies are there.
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

// A barrier among `warps` warps of a block, all of which call it; `id` from 1 to 15 tells such sets apart.
TP_DEVICE inline void sync_warps(int id, int warps) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(warps * warp_size) : "memory");
}

// A place in a ring of `stages`, and the parity of its round.
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

// Begins to copy `bytes` bytes, 4 or 16, both addresses being multiples of it. Before compute capability 9.0 copies are
// done when they return.
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

// A warp copies the bytes from `begin` up to `end`; `to` lies as `begin` does within its 16 bytes. What fills 16 bytes
// goes by one bulk copy, whose end `barrier` awaits; the few bytes at either end are there on return.
TP_DEVICE inline void copy_bulk(Barrier& barrier, unsigned char* to, const unsigned char* begin,
                                const unsigned char* end, int lane) {
  const int bytes = int(end - begin), head = tp::min(bytes, int((0 - reinterpret_cast<uintptr_t>(begin)) % 16));
  const int bulk = (bytes - head) / 16 * 16, tail = head + bulk;
#if __CUDA_ARCH__ >= 900
  if (bulk > 0 && lane == 0) {
    barrier.expect(bulk);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to + head)),
                 "l"(begin + head), "r"(bulk), "r"(barrier.address())
                 : "memory");
  }
#else
  for (int i = head + lane * 16; i < tail; i += warp_size * 16) copy_async<16>(to + i, begin + i);
#endif
  if (lane < head) to[lane] = begin[lane];
  if (tail + lane < bytes) to[tail + lane] = begin[tail + lane];
}

}  // namespace tp::block
