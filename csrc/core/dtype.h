// The dtypes of the library, and the only place where a run-time dtype becomes a C++ type.
#pragma once
#include <initializer_list>
#include <type_traits>

#include "core/half.h"

namespace tp {

enum class DType : int8_t { boolean, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 };

template <class T>
struct Type {
  using type = T;
};

template <class... Ts>
struct Types {};

template <class T>
struct dtype_of;

#define TP_DTYPE(T, d)                       \
  template <>                                \
  struct dtype_of<T> {                       \
    static constexpr DType value = DType::d; \
  };
TP_DTYPE(boolean, boolean)
TP_DTYPE(uint8_t, uint8)
TP_DTYPE(int8_t, int8)
TP_DTYPE(int16_t, int16)
TP_DTYPE(int32_t, int32)
TP_DTYPE(int64_t, int64)
TP_DTYPE(half, float16)
TP_DTYPE(bfloat16, bfloat16)
TP_DTYPE(float, float32)
TP_DTYPE(double, float64)
#undef TP_DTYPE

// The dtypes that every rung is instantiated for. TP_FEW_TYPES shortens the lists for builds that only check the code.
#ifdef TP_FEW_TYPES
using FloatTypes = Types<half, float>;
using AllTypes = Types<boolean, int64_t, half, float>;
using BitTypes = Types<int64_t>;
#else
using FloatTypes = Types<half, bfloat16, float, double>;
using AllTypes = Types<boolean, uint8_t, int8_t, int16_t, int32_t, int64_t, half, bfloat16, float, double>;
using BitTypes = Types<uint8_t, int16_t, int32_t, int64_t>;  // one of each size: bits have no sign
#endif

TP_EXPORT const char* name(DType dtype);
[[noreturn]] TP_EXPORT void fail_unsupported(const char* what, DType dtype, std::initializer_list<DType> supported);

// Calls f(Type<T>{}) with the T of the list that `dtype` names. If the list has no such T, the error message begins
// with `what`.
template <class... Ts, class F>
void dispatch(Types<Ts...>, DType dtype, const char* what, F&& f) {
  const bool found = ((dtype == dtype_of<Ts>::value ? (f(Type<Ts>{}), true) : false) || ...);
  if (!found) fail_unsupported(what, dtype, {dtype_of<Ts>::value...});
}

// The type in which values of type T are combined: float for half types.
template <class T>
struct accumulator {
  using type = T;
};
template <>
struct accumulator<half> {
  using type = float;
};
template <>
struct accumulator<bfloat16> {
  using type = float;
};
template <>
struct accumulator<boolean> {
  using type = bool;
};
template <class T>
using acc_t = typename accumulator<T>::type;

// The type of a sum or product of values of type T, as in torch: int64 for every integer.
template <class T>
struct summed {
  using type =
      typename std::conditional<std::is_integral<T>::value || std::is_same<T, boolean>::value, int64_t, T>::type;
};
template <class T>
using sum_t = typename summed<T>::type;

template <class T>
constexpr bool is_floating =
    std::is_floating_point<T>::value || std::is_same<T, half>::value || std::is_same<T, bfloat16>::value;

}  // namespace tp
