// What the families of driver wrappers share. `cuda.h` gives types only; see hooks.h for Call.
#pragma once

#include "interpose/driver_functions.h"
#include "interpose/hooks.h"
#include "interpose/record.h"
#include "interpose/reentrancy.h"

namespace gpumemtrace::interpose::driver {

// Reads what a function wrote through `out` when it succeeded; 0 otherwise: a failed call leaves it alone.
template <typename T>
uint64_t Written(const T* out, Result result) {
  return result == 0 && out != nullptr ? reinterpret_cast<uint64_t>(*out) : 0;
}
inline uint64_t Written(const uint64_t* out, Result result) {
  return result == 0 && out != nullptr ? *out : 0;
}

}  // namespace gpumemtrace::interpose::driver
