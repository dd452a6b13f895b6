// The part of c10 that the shim stands in front of: the devices' types and the reporting functions, under
// the names and argument types of three generations of PyTorch. SIMULATED_TORCH selects one:
// 200 (2.0 and later, the default), 113 (1.10–1.13), 109 (1.7–1.9).
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef SIMULATED_TORCH
#define SIMULATED_TORCH 200
#endif

#define C10_API __attribute__((visibility("default"), noinline))

namespace c10 {

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
struct Device {
  DeviceType type;
  int8_t index;
};

#if SIMULATED_TORCH >= 200
using Total = size_t;
#else
using Total = int64_t;
#endif

#if SIMULATED_TORCH >= 110
C10_API void reportMemoryUsageToProfiler(void* pointer, int64_t size, Total allocated, Total reserved,
                                         Device device);
#else
C10_API void reportMemoryUsageToProfiler(void* pointer, int64_t size, Device device);
#endif
#if SIMULATED_TORCH >= 113
C10_API void reportOutOfMemoryToProfiler(int64_t size, Total allocated, Total reserved, Device device);
#endif
C10_API bool memoryProfilingEnabled();

}  // namespace c10

// What reached the original functions, for tests that the shim forwards: calls and the sum of sizes.
extern "C" C10_API void simulatedC10Reports(uint64_t* calls, int64_t* sum, uint64_t* out_of_memory);
