// atomic_combine<Op>(p, v): *p = Op::combine(*p, v) in one indivisible step; returns the old value. On CUDA it uses the
// hardware's instruction if there is one, else compare-and-swap on the 4 or 8 bytes of the value, or a lock for longer
// values. On the host, lanes run one after another, so nothing is needed.
#pragma once
#include "core/op.h"

namespace tp {

#ifdef __CUDACC__
namespace detail {

template <class T, class Word, class Op>
__device__ T atomic_by_cas(T* p, T v) {
  static_assert(sizeof(T) == sizeof(Word), "an atomic covers 4 or 8 bytes");
  Word* word = reinterpret_cast<Word*>(p);
  Word expected, old = *word;
  do {
    expected = old;
    T current;
    memcpy(&current, &expected, sizeof(T));
    const T next = Op::combine(current, v);
    Word desired;
    memcpy(&desired, &next, sizeof(T));
    old = atomicCAS(word, expected, desired);
  } while (old != expected);
  T value;
  memcpy(&value, &old, sizeof(T));
  return value;
}

// A table of locks, one per group of addresses. All atomics on one value use the same lock.
constexpr unsigned lock_count = 1024;
static __device__ int locks[lock_count];

// Volatile access to values longer than 8 bytes, member by member; padding between members is never read.
template <class A>
__device__ Indexed<A> read_members(const volatile Indexed<A>* p) {
  return {p->value, p->index};
}
template <class A>
__device__ void write_members(volatile Indexed<A>* p, Indexed<A> v) {
  p->value = v.value;
  p->index = v.index;
}
template <class A>
__device__ Exponentials<A> read_members(const volatile Exponentials<A>* p) {
  return {p->max, p->sum};
}
template <class A>
__device__ void write_members(volatile Exponentials<A>* p, Exponentials<A> v) {
  p->max = v.max;
  p->sum = v.sum;
}
template <class A>
__device__ Moments<A> read_members(const volatile Moments<A>* p) {
  return {p->count, p->origin, p->mean, p->squares};
}
template <class A>
__device__ void write_members(volatile Moments<A>* p, Moments<A> v) {
  p->count = v.count;
  p->origin = v.origin;
  p->mean = v.mean;
  p->squares = v.squares;
}

template <class T, class Op>
__device__ T atomic_by_lock(T* p, T v) {
  int* lock = locks + (reinterpret_cast<uintptr_t>(p) / sizeof(T)) % lock_count;
  T before;
  for (bool done = false; !done;) {  // a lane that holds the lock must finish before others of its warp retry
    if (atomicCAS(lock, 0, 1) != 0) continue;
    __threadfence();
    before = read_members(static_cast<const volatile T*>(p));
    write_members(static_cast<volatile T*>(p), Op::combine(before, v));
    __threadfence();
    atomicExch(lock, 0);
    done = true;
  }
  return before;
}

template <class Op, class T>
constexpr bool is_bitwise =
    std::is_integral<T>::value && sizeof(T) >= 4 &&
    (std::is_same<Op, BitAnd<T>>::value || std::is_same<Op, BitOr<T>>::value || std::is_same<Op, BitXor<T>>::value);

}  // namespace detail

template <class Op, class T>
__device__ T atomic_combine(T* p, T v) {
  if constexpr (std::is_same<Op, Sum<T>>::value && (std::is_same<T, int>::value || std::is_floating_point<T>::value)) {
    return atomicAdd(p, v);
  } else if constexpr (std::is_same<Op, Sum<T>>::value && std::is_same<T, int64_t>::value) {
    return T(atomicAdd(reinterpret_cast<unsigned long long*>(p), static_cast<unsigned long long>(v)));
  } else if constexpr (std::is_same<Op, Max<T>>::value && std::is_same<T, int>::value) {
    return atomicMax(p, v);
  } else if constexpr (std::is_same<Op, Max<T>>::value && std::is_same<T, int64_t>::value) {
    return T(atomicMax(reinterpret_cast<long long*>(p), static_cast<long long>(v)));
  } else if constexpr (detail::is_bitwise<Op, T>) {
    using Word = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
    Word* const word = reinterpret_cast<Word*>(p);
    if constexpr (std::is_same<Op, BitAnd<T>>::value) return T(atomicAnd(word, Word(v)));
    if constexpr (std::is_same<Op, BitOr<T>>::value) return T(atomicOr(word, Word(v)));
    if constexpr (std::is_same<Op, BitXor<T>>::value) return T(atomicXor(word, Word(v)));
  } else if constexpr (sizeof(T) == 4) {
    return detail::atomic_by_cas<T, unsigned, Op>(p, v);
  } else if constexpr (sizeof(T) == 8) {
    return detail::atomic_by_cas<T, unsigned long long, Op>(p, v);
  } else {
    return detail::atomic_by_lock<T, Op>(p, v);
  }
}
#endif

}  // namespace tp
