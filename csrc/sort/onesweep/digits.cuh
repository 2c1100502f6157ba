// Computes digits of a key's image, in the fewest instructions for each kind of key, and finds the lanes with equal
// digits.
#pragma once
#include "block/launch.cuh"
#include "block/shared_address.cuh"
#include "block/warp.cuh"
#include "sort/onesweep/problems.h"
#include "sort/sort.h"

namespace tp::sort::device {

// The image of a key before an exclusive or with flip(), which Entry folds into a constant.
template <class W, bool floating>
struct Images {
  using Wide = typename std::conditional<sizeof(W) == 8, uint64_t, unsigned>::type;  // the bits above W are undefined
  KeyOrder<W> order;

  TP_DEVICE W flip() const {
    if constexpr (!floating) return W(order.flip_positive ^ order.complement);
    return sizeof(W) == 4 ? order.complement : W(0);
  }
  TP_DEVICE Wide operator()(W raw) const {
    if constexpr (!floating) {
      return raw;
    } else if constexpr (sizeof(W) == 4) {
      // Adding +0.0 turns -0.0 into +0.0, and every NaN into the NaN whose bits are all ones except the sign.
      const unsigned x = __float_as_uint(__fadd_rn(__uint_as_float(raw), 0.0f));
      return x ^ (unsigned(int(x) >> 31) | 0x80000000u);
    } else if constexpr (sizeof(W) == 2) {
      const unsigned x = raw, magnitude = x & 0x7fff;
      unsigned image = x ^ (0u - (x >> 15) | 0x8000u);
      if (magnitude > order.infinity) image = 0xffff;
      if (magnitude == 0) image = 0x8000;
      return image ^ order.complement;
    } else {
      return order.image(raw);
    }
  }
};

// Maps the digit of a key to the shared-memory address of the digit's entry, of 1 << log_bytes bytes, in a table. The
// table is aligned to its size, so that exclusive or can form the address without an addition.
template <int log_bytes, class W, bool floating>
class Entry {
  Images<W, floating> image_;
  int shift_;
  unsigned mask_, base_;

 public:
  TP_DEVICE Entry(const KeyOrder<W>& order, int shift, unsigned mask, unsigned table)
      : image_{order}, shift_(shift), mask_(mask << log_bytes) {
    base_ = table ^ ((unsigned(image_.flip() >> shift) << log_bytes) & mask_);
    if (sizeof(W) < 8) shift_ = (shift - log_bytes) & 31;
  }
  TP_DEVICE unsigned operator()(W raw) const {
    const auto x = image_(raw);
    if constexpr (sizeof(W) == 8) {
      return ((unsigned(x >> shift_) << log_bytes) & mask_) ^ base_;
    } else {
      return (__funnelshift_r(x, x, unsigned(shift_)) & mask_) ^ base_;
    }
  }
};

using block::shared_address;

TP_DEVICE inline unsigned add_shared(unsigned address, unsigned n) {  // returns the value before the addition
  unsigned before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(n) : "memory");
  return before;
}
TP_DEVICE inline void count_shared(unsigned address) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address) : "memory");
}
TP_DEVICE inline unsigned load_shared(unsigned address) {
  unsigned n;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(n) : "r"(address) : "memory");
  return n;
}
TP_DEVICE inline int64_t load_shared_long(unsigned address) {
  int64_t n;
  asm volatile("ld.shared.s64 %0, [%1];" : "=l"(n) : "r"(address));  // volatile keeps it in order with the barriers
  return n;
}

// Stores to an address in global memory.
template <class W>
TP_DEVICE void store_global(int64_t address, W x) {
  if constexpr (sizeof(W) == 8) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(address), "l"(x));
  } else if constexpr (sizeof(W) == 4) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(x));
  } else if constexpr (sizeof(W) == 2) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(x));
  } else {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(unsigned(x)));
  }
}

// Returns the mask of lanes whose digit (the low 8 bits) equals that of this lane.
TP_DEVICE inline unsigned match(unsigned digit) {
  unsigned same;
#define TP_VOTE(bit, votes)      \
  "and.b32 set, %1, " #bit       \
  "; setp.ne.u32 p, set, 0;\n"   \
  "vote.sync.ballot.b32 " #votes \
  ", p, 0xffffffff;\n"           \
  "@!p not.b32 " #votes ", " #votes ";\n"
#define TP_ALL "lop3.b32 all, all, a, b, 0x80;\n"
  asm volatile("{ .reg .pred p; .reg .b32 set, all, a, b;\n"  //
               TP_VOTE(1, all) TP_VOTE(2, a) TP_VOTE(4, b) TP_ALL TP_VOTE(8, a) TP_VOTE(16, b) TP_ALL TP_VOTE(32, a)
                   TP_VOTE(64, b) TP_ALL TP_VOTE(128, a) "and.b32 %0, all, a; }"
               : "=r"(same)
               : "r"(digit));
#undef TP_ALL
#undef TP_VOTE
  return same;
}

// Returns the rank of this lane's key among the warp's keys of its digit: the counter of the digit before this call,
// plus the number of lower lanes with the same digit. The highest lane of each digit adds the number of these lanes to
// the counter.
TP_DEVICE inline unsigned rank(int lane, unsigned same, unsigned counter) {
  const unsigned before = __popc(same & ((1u << lane) - 1));
  const int highest = 31 - __clz(int(same));
  unsigned begin = 0;
  if (lane == highest) begin = add_shared(counter, before + 1);
  return __shfl_sync(~0u, begin, highest) + before;
}

// Returns the exclusive prefix sum of `mine` over the first `radix` threads. It contains one barrier of the block.
TP_DEVICE inline unsigned sum_before(unsigned mine, unsigned* warp_sums) {
  const int warp = int(threadIdx.x) / block::warp_size, lane = int(threadIdx.x) % block::warp_size;
  unsigned upto = mine;
#pragma unroll
  for (int stride = 1; stride < block::warp_size; stride *= 2) {
    const unsigned left = __shfl_up_sync(~0u, upto, unsigned(stride));
    if (lane >= stride) upto += left;
  }
  if (lane == block::warp_size - 1 && warp < radix / block::warp_size) warp_sums[warp] = upto;
  __syncthreads();
  unsigned before = upto - mine;
#pragma unroll
  for (int w = 0; w < radix / block::warp_size; ++w) before += w < warp ? warp_sums[w] : 0;
  return before;
}

}  // namespace tp::sort::device
