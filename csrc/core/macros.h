// Macros for every file of csrc: execution-space markers and requirements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

#ifdef __CUDACC__
#define TP_HD __host__ __device__
#define TP_DEVICE __device__
#else
#define TP_HD
#define TP_DEVICE
#endif

// The build hides symbols (-fvisibility=hidden): the names of template instances would be a tenth of the library. This
// marks what the Python module and C++ programs link to.
#define TP_EXPORT __attribute__((visibility("default")))

namespace tp {

// The kinds of error a caller can tell apart; csrc/torch turns each into the matching Python exception.
enum class ErrorKind { runtime, value, index, type };

struct TP_EXPORT Error : std::runtime_error {
  ErrorKind kind;
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind(kind) {}
};

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(kind, message.str());
}

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) fail(ErrorKind::runtime, parts...);
}

template <class T>
TP_HD constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <class T>
TP_HD constexpr T min(T a, T b) {
  return b < a ? b : a;
}

template <class T>
TP_HD constexpr T max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace tp
