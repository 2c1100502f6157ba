// Arrays of narrow dtypes in textbook kernels. A kernel that is compiled for every dtype is compiled ten times for each
// operator, on both devices, which is most of the time and of the size of a build. So bool and integers of up to 32
// bits are read and written as int64, and half types as float32: their kernels see values of the wide type, and only
// the access itself looks at the dtype. Kernels that a user gets by default are compiled for each dtype.
#pragma once
#include "core/op.h"
#include "core/simt.h"

namespace tp {

// Stands for the dtypes of an array whose values are read as A.
template <class A>
struct Narrow {};

template <class T>
struct narrow {
  using type = typename std::conditional<
      (sizeof(T) < 4 && is_floating<T>), Narrow<float>,
      typename std::conditional<is_floating<T> || sizeof(T) == 8, T, Narrow<int64_t>>::type>::type;
};
template <class T>
using narrow_t = typename narrow<T>::type;  // T itself if it is wide

template <class A, class... Ts>
constexpr int narrow_types(Types<Ts...>) {
  return (int(std::is_same<narrow_t<Ts>, Narrow<A>>::value) + ... + 0);
}
static_assert(narrow_types<int64_t>(AllTypes{}) <= 5 && narrow_types<float>(AllTypes{}) <= 2,
              "NarrowArray::dispatch has a line for every narrow dtype");

template <class T>
using itself_t = T;

template <class A>
struct accumulator<Narrow<A>> {
  using type = A;
};
template <>
struct summed<Narrow<int64_t>> {
  using type = int64_t;
};

// The type of a value of an array of T.
template <class T>
struct value {
  using type = T;
};
template <class A>
struct value<Narrow<A>> {
  using type = A;
};
template <class T>
using value_t = typename value<T>::type;

template <class A, class Bytes>
class NarrowArray {
 public:
  class Ref {
   public:
    TP_HD Ref(const NarrowArray& array, int64_t i) : array_(array), i_(i) {}
    TP_HD operator A() const&& { return array_.load(i_); }
    TP_HD void operator=(A value) const&& { array_.store(i_, value); }

   private:
    const NarrowArray& array_;
    int64_t i_;
  };

  TP_HD NarrowArray(Bytes bytes, DType dtype) : bytes_(bytes), dtype_(dtype) {}
  TP_HD Ref operator[](int64_t i) const { return {*this, i}; }

 private:
  // Calls f(Type<T>{}) with the T of the dtype.
  template <class F>
  TP_HD void dispatch(F f) const {
    if constexpr (std::is_same<A, float>::value) {
      if (dtype_ == DType::float16) return f(Type<half>{});
      return f(Type<bfloat16>{});
    } else {
      if (dtype_ == DType::int32) return f(Type<int32_t>{});
      if (dtype_ == DType::int16) return f(Type<int16_t>{});
      if (dtype_ == DType::int8) return f(Type<int8_t>{});
      if (dtype_ == DType::uint8) return f(Type<uint8_t>{});
      return f(Type<boolean>{});
    }
  }
  TP_HD A load(int64_t i) const {
    A value;
    dispatch([&](auto type) {
      using T = typename decltype(type)::type;
      const T v = bytes_.template as<const T>()[i];
      value = A(acc_t<T>(v));
    });
    return value;
  }
  // The lowest and the highest integer, as the identities of maxima and minima, become those of the dtype.
  TP_HD void store(int64_t i, A value) const {
    dispatch([&](auto type) {
      using T = typename decltype(type)::type;
      acc_t<T> v(value);
      if constexpr (!is_floating<T>) {
        if (value == detail::lowest<A>()) v = detail::lowest<acc_t<T>>();
        if (value == detail::highest<A>()) v = detail::highest<acc_t<T>>();
      }
      bytes_.template as<T>()[i] = T(v);
    });
  }

  Bytes bytes_;
  DType dtype_;
};

// block.global(name, data, n) of an array with that dtype.
template <class Block, class T>
TP_HD auto global_of(Block& block, const char* name, T* data, int64_t n, DType) {
  return block.global(name, data, n);
}
template <class Block, class A>
TP_HD auto global_of(Block& block, const char* name, Narrow<A>* data, int64_t n, DType dtype) {
  const auto bytes = block.global(name, reinterpret_cast<uint8_t*>(data), n);
  return NarrowArray<A, std::decay_t<decltype(bytes)>>(bytes, dtype);
}
template <class Block, class A>
TP_HD auto global_of(Block& block, const char* name, const Narrow<A>* data, int64_t n, DType dtype) {
  return global_of(block, name, const_cast<Narrow<A>*>(data), n, dtype);
}

}  // namespace tp
