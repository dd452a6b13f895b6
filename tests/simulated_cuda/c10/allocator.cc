// Dispatch to the allocator of a device or to one of the other back-ends.
#include "allocator.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "device_allocator.h"
#include "newest_cuda_runtime.h"

namespace c10::cuda::allocator {
namespace {

constexpr int kDevices = 16;

DeviceAllocator& For(int device) {
  static DeviceAllocator* all[kDevices];
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: tensors may be freed while the process exits.
    for (int i = 0; i < kDevices; ++i) all[i] = new DeviceAllocator(i);
  });
  return *all[device];
}

// Back-ends without a cache: one CUDA allocation per tensor, nothing reported.
struct Direct {
  std::mutex mutex;
  struct Entry {
    size_t size;
    int device;
    int64_t stream;
  };
  std::unordered_map<void*, Entry> live;
  Statistics statistics[kDevices]{};
};

Direct& GetDirect() {
  static auto* const direct = new Direct;
  return *direct;
}

void* AllocateDirect(int device, size_t size, int64_t stream) {
  void* pointer = nullptr;
  const cudaError_t error = GetSettings().backend == Backend::kAsync
                                ? cudaMallocAsync(&pointer, size, reinterpret_cast<cudaStream_t>(stream))
                                : cudaMalloc(&pointer, size);
  Direct& direct = GetDirect();
  const std::lock_guard lock(direct.mutex);
  Statistics& s = direct.statistics[device];
  if (error != cudaSuccess) {
    cudaGetLastError();
    ++s.out_of_memory;
    throw OutOfMemoryError("CUDA out of memory. Tried to allocate " + std::to_string(size) + " bytes");
  }
  direct.live[pointer] = {size, device, stream};
  s.allocated += size;
  s.allocated_peak = std::max(s.allocated_peak, s.allocated);
  s.reserved = s.allocated;
  s.reserved_peak = s.allocated_peak;
  return pointer;
}

void FreeDirect(void* pointer) {
  Direct& direct = GetDirect();
  Direct::Entry entry;
  {
    const std::lock_guard lock(direct.mutex);
    const auto it = direct.live.find(pointer);
    if (it == direct.live.end()) return;
    entry = it->second;
    direct.live.erase(it);
    direct.statistics[entry.device].allocated -= entry.size;
    direct.statistics[entry.device].reserved -= entry.size;
  }
  if (GetSettings().backend == Backend::kAsync) {
    cudaFreeAsync(pointer, reinterpret_cast<cudaStream_t>(entry.stream));
  } else {
    cudaFree(pointer);
  }
}

bool Native() {
  return GetSettings().backend == Backend::kNative;
}

}  // namespace

void* Allocate(int device, size_t size) {
  if (size == 0) return nullptr;
  int current = 0;
  cudaGetDevice(&current);
  if (current != device) cudaSetDevice(device);
  const int64_t stream = getCurrentCUDAStream(static_cast<int8_t>(device)).stream.id;
  void* const pointer = Native() ? For(device).Allocate(size, stream) : AllocateDirect(device, size, stream);
  if (current != device) cudaSetDevice(current);
  return pointer;
}

void Free(void* pointer) {
  if (pointer == nullptr) return;
  if (!Native()) return FreeDirect(pointer);
  for (int device = 0; device < kDevices; ++device) {
    if (For(device).Free(pointer)) return;
  }
}

void RecordStream(void* pointer, int64_t stream) {
  if (!Native()) return;
  for (int device = 0; device < kDevices; ++device) {
    if (For(device).RecordStream(pointer, stream)) return;
  }
}

void EmptyCache() {
  if (!Native()) return;
  for (int device = 0; device < kDevices; ++device) For(device).EmptyCache();
}

Statistics GetStatistics(int device) {
  if (Native()) return For(device).statistics();
  Direct& direct = GetDirect();
  const std::lock_guard lock(direct.mutex);
  return direct.statistics[device];
}

void ResetPeak(int device) {
  if (Native()) return For(device).ResetPeak();
  Direct& direct = GetDirect();
  const std::lock_guard lock(direct.mutex);
  direct.statistics[device].allocated_peak = direct.statistics[device].allocated;
}

void BeginPrivatePool(int device, uint64_t pool, int64_t stream) {
  For(device).BeginPrivatePool(pool, stream);
}
void EndPrivatePool(int device, uint64_t pool) {
  For(device).EndPrivatePool(pool);
}
void ReleasePrivatePool(int device, uint64_t pool) {
  For(device).ReleasePrivatePool(pool);
}

const char* BackendName() {
  switch (GetSettings().backend) {
    case Backend::kAsync:
      return "cudaMallocAsync";
    case Backend::kNone:
      return "none";
    default:
      return "native";
  }
}

}  // namespace c10::cuda::allocator
