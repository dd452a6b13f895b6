// Synchronous device memory, managed memory, pinned and registered host memory.
#include <errno.h>
#include <sys/mman.h>

#include "state.h"

using namespace simulated_cuda;

namespace {

constexpr size_t kUnit = 512;

// `low`: the caller's ABI has 32-bit addresses.
CUresult AllocateDevice(uint64_t* out, size_t size, uint32_t call, bool low = false) {
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Device& device = DeviceAt(context->device);
  // A driver that forgot this would let 2^64 - 1 wrap to a small request.
  if (size > device.total) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.size = size;
  allocation.charged = allocation.span = RoundUp(size, kUnit);
  if (!Charge(context->device, allocation.charged)) return CUDA_ERROR_OUT_OF_MEMORY;
  allocation.device = context->device;
  allocation.context = context;
  allocation.low = low;
  const uint64_t address = (low ? device.low_addresses : device.addresses).Take(allocation.span, kUnit);
  if (address == 0) {
    Uncharge(context->device, allocation.charged);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Register(address, allocation, call);
  *out = address;
  return CUDA_SUCCESS;
}

// Host memory is real: programs write to it.
CUresult AllocateHost(void** out, size_t size, uint32_t call, SimulatedCudaKind kind) {
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const int saved = errno;
  const size_t span = RoundUp(size, 4096);
  void* memory =
      mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  errno = saved;
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.size = size;
  allocation.span = span;
  allocation.kind = kind;
  allocation.context = context;
  allocation.host = memory;
  if (kind == SIMULATED_CUDA_MANAGED) allocation.device = context->device;
  Register(reinterpret_cast<uint64_t>(memory), allocation, call);
  *out = memory;
  return CUDA_SUCCESS;
}

CUresult FreeDevice(uint64_t address) {
  // Freeing nothing is legal, also without a context.
  if (address == 0) return CUDA_SUCCESS;
  const auto& all = GetState().allocations;
  const auto it = all.find(address);
  if (it == all.end()) return CUDA_ERROR_INVALID_VALUE;
  switch (it->second.kind) {
    case SIMULATED_CUDA_PINNED:
    case SIMULATED_CUDA_REGISTERED:
    case SIMULATED_CUDA_PHYSICAL:
    case SIMULATED_CUDA_ARRAY:
      return CUDA_ERROR_INVALID_VALUE;
    default:
      return Release(address);
  }
}

size_t Pitch(size_t width) {
  return RoundUp(width, kUnit);
}

CUresult RegisterHost(void* pointer, size_t size, uint32_t call) {
  if (pointer == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  if (Find(address) != GetState().allocations.end()) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  Allocation allocation;
  allocation.size = size;
  allocation.kind = SIMULATED_CUDA_REGISTERED;
  allocation.context = context;
  Register(address, allocation, call);
  return CUDA_SUCCESS;
}

}  // namespace

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1* out, unsigned size) {
  DRIVER_CALL();
  uint64_t address = 0;
  const CUresult result = AllocateDevice(&address, size, call, true);
  if (result == CUDA_SUCCESS) *out = static_cast<CUdeviceptr_v1>(address);
  return result;
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t size) {
  DRIVER_CALL();
  uint64_t address = 0;
  const CUresult result = AllocateDevice(&address, size, call);
  if (result == CUDA_SUCCESS) *out = address;
  return result;
}
EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1* out, unsigned* pitch, unsigned width, unsigned height,
                                unsigned) {
  DRIVER_CALL();
  uint64_t address = 0;
  const CUresult result = AllocateDevice(&address, Pitch(width) * height, call, true);
  if (result != CUDA_SUCCESS) return result;
  *out = static_cast<CUdeviceptr_v1>(address);
  *pitch = static_cast<unsigned>(Pitch(width));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                                   unsigned element) {
  DRIVER_CALL();
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  const CUresult result = AllocateDevice(&address, Pitch(width) * height, call);
  if (result != CUDA_SUCCESS) return result;
  *out = address;
  *pitch = Pitch(width);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocManaged(CUdeviceptr* out, size_t size, unsigned flags) {
  DRIVER_CALL();
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  void* memory = nullptr;
  const CUresult result = AllocateHost(&memory, size, call, SIMULATED_CUDA_MANAGED);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<uint64_t>(memory);
  return result;
}
EXPORT CUresult cuMemFree(CUdeviceptr_v1 address) {
  DRIVER_CALL();
  return FreeDevice(address);
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  DRIVER_CALL();
  return FreeDevice(address);
}

EXPORT CUresult cuMemAllocHost(void** out, unsigned size) {
  DRIVER_CALL();
  return AllocateHost(out, size, call, SIMULATED_CUDA_PINNED);
}
EXPORT CUresult cuMemAllocHost_v2(void** out, size_t size) {
  DRIVER_CALL();
  return AllocateHost(out, size, call, SIMULATED_CUDA_PINNED);
}
EXPORT CUresult cuMemHostAlloc(void** out, size_t size, unsigned flags) {
  DRIVER_CALL();
  if ((flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  return AllocateHost(out, size, call, SIMULATED_CUDA_PINNED);
}
EXPORT CUresult cuMemFreeHost(void* pointer) {
  DRIVER_CALL();
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& all = GetState().allocations;
  const auto it = all.find(reinterpret_cast<uint64_t>(pointer));
  if (it == all.end() || it->second.kind != SIMULATED_CUDA_PINNED) return CUDA_ERROR_INVALID_VALUE;
  return Release(it->first);
}
EXPORT CUresult cuMemHostRegister(void* pointer, size_t size, unsigned) {
  DRIVER_CALL();
  return RegisterHost(pointer, size, call);
}
EXPORT CUresult cuMemHostRegister_v2(void* pointer, size_t size, unsigned) {
  DRIVER_CALL();
  return RegisterHost(pointer, size, call);
}
EXPORT CUresult cuMemHostUnregister(void* pointer) {
  DRIVER_CALL();
  const auto& all = GetState().allocations;
  const auto it = all.find(reinterpret_cast<uint64_t>(pointer));
  if (it == all.end() || it->second.kind != SIMULATED_CUDA_REGISTERED)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  return Release(it->first);
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  DRIVER_CALL();
  const auto it = Find(address);
  if (it == GetState().allocations.end()) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = it->first;
  if (size != nullptr) *size = it->second.size;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned) {
  DRIVER_CALL();
  if (Find(reinterpret_cast<uint64_t>(pointer)) == GetState().allocations.end())
    return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<uint64_t>(pointer);
  return CUDA_SUCCESS;
}

// Contents are not simulated: device addresses are invented.
EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void*, size_t) {
  DRIVER_CALL();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoH_v2(void*, CUdeviceptr, size_t) {
  DRIVER_CALL();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream) {
  DRIVER_CALL();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t) {
  DRIVER_CALL();
  return CUDA_SUCCESS;
}
