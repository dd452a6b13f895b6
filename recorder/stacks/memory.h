// Unaligned reads from addresses that were checked otherwise: another program's structures and our own
// thread's stack. Sanitizers must not judge them, hence the attribute on every function that uses Read.
#pragma once

#include <cstdint>
#include <cstring>

// For functions that read memory of the host as it is (its stack frames, its objects).
#define GPUMEMTRACE_READS_HOST_MEMORY __attribute__((no_sanitize("address", "thread", "undefined")))

namespace gpumemtrace::recorder::stacks {

// A load that sanitizers do not see as long as it is inlined into a function with the attribute above; a
// builtin memcpy of a constant size becomes one instruction and no call to an interceptor.
template <typename T>
struct __attribute__((packed, may_alias)) UnalignedValue {
  T value;
};

#define GPUMEMTRACE_READ(type, address) \
  (reinterpret_cast<const ::gpumemtrace::recorder::stacks::UnalignedValue<type>*>(address)->value)

}  // namespace gpumemtrace::recorder::stacks
