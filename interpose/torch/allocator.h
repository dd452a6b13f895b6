// PyTorch's CUDA caching allocator, seen through the report that it makes for its profiler.
#pragma once

#include <atomic>
#include <cstdint>

#include "interpose/hooks.h"

namespace gpumemtrace::interpose::torch {

// c10::Device: two int8_t, passed in one register (c10/core/Device.h).
struct Device {
  int8_t type;
  int8_t index;
};
inline constexpr int8_t kCuda = 1;  // c10/core/DeviceType.h; ROCm builds use it too

// Whether the allocator has ever reported a block of device memory in this process.
extern std::atomic<bool> blocks_seen;

void ReportMemoryUsage(Call<void, void*, int64_t, uint64_t, uint64_t, Device> call, void* pointer,
                       int64_t size, uint64_t total_allocated, uint64_t total_reserved, Device device);
void ReportMemoryUsageWithoutTotals(Call<void, void*, int64_t, Device> call, void* pointer, int64_t size,
                                    Device device);
void ReportOutOfMemory(Call<void, int64_t, uint64_t, uint64_t, Device> call, int64_t size,
                       uint64_t total_allocated, uint64_t total_reserved, Device device);

}  // namespace gpumemtrace::interpose::torch
