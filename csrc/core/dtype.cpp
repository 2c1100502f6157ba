#include "core/dtype.h"

namespace tp {

const char* name(DType dtype) {
  static const char* const names[] = {"bool",  "uint8",   "int8",     "int16",   "int32",
                                      "int64", "float16", "bfloat16", "float32", "float64"};
  return names[int(dtype)];
}

void fail_unsupported(const char* what, DType dtype, std::initializer_list<DType> supported) {
  std::string names;
  for (const DType each : supported) names += (names.empty() ? "" : ", ") + std::string(name(each));
  fail(ErrorKind::type, what, ": dtype ", name(dtype), " is not supported; supported: ", names);
}

}  // namespace tp
