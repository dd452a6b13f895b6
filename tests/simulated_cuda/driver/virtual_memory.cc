// Virtual memory management: reserved ranges, physical memory with true reference counts, mappings.
// Physical memory goes back to the device when its last reference and its last mapping are gone.
#include <string.h>

#include <algorithm>

#include "state.h"

using namespace simulated_cuda;

namespace {

constexpr size_t kGranularity = 2 * kMiB;
constexpr int kFabricHandles = 0x8;  // CU_MEM_HANDLE_TYPE_FABRIC (cuda.h 12.3)

struct Physical {
  size_t size;
  int device;
  CUmemAllocationProp properties;
  int references;
  int mappings;
};

struct Mapping {
  size_t size;
  size_t offset;
  uint64_t handle;
};

struct Virtual {
  std::map<uint64_t, size_t> ranges;
  std::map<uint64_t, Physical> physical;
  std::map<uint64_t, Mapping> mappings;
};

Virtual& Get() {
  static auto* const state = new Virtual;
  return *state;
}

void MaybeFree(uint64_t handle) {
  const auto it = Get().physical.find(handle);
  if (it->second.references != 0 || it->second.mappings != 0) return;
  Get().physical.erase(it);
  Release(handle);
}

bool InsideReservation(uint64_t address, size_t size) {
  const auto& ranges = Get().ranges;
  auto it = ranges.upper_bound(address);
  if (it == ranges.begin()) return false;
  --it;
  return address >= it->first && address + size <= it->first + it->second;
}

std::map<uint64_t, Mapping>::iterator MappingAt(uint64_t address) {
  auto& mappings = Get().mappings;
  auto it = mappings.upper_bound(address);
  if (it == mappings.begin()) return mappings.end();
  --it;
  return address < it->first + it->second.size ? it : mappings.end();
}

}  // namespace

EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                              CUmemAllocationGranularity_flags) {
  DRIVER_CALL();
  if (granularity == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t alignment, CUdeviceptr,
                                    unsigned long long flags) {
  DRIVER_CALL();
  if (out == nullptr || size == 0 || size % kGranularity != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t unit = std::max(alignment, kGranularity);
  const uint64_t address = DeviceAt(0).addresses.Take(size, unit);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Get().ranges[address] = size;
  *out = address;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  DRIVER_CALL();
  const auto it = Get().ranges.find(address);
  if (it == Get().ranges.end() || it->second != size) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = Get().mappings.lower_bound(address);
  if (mapping != Get().mappings.end() && mapping->first < address + size) return CUDA_ERROR_INVALID_VALUE;
  Get().ranges.erase(it);
  DeviceAt(0).addresses.GiveBack(address, size, kGranularity);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t size,
                            const CUmemAllocationProp* properties, unsigned long long flags) {
  DRIVER_CALL();
  if (out == nullptr || properties == nullptr || size == 0 || size % kGranularity != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Machines without a fabric refuse such handles; frameworks try them first and go on.
  if (properties->requestedHandleTypes & kFabricHandles) return CUDA_ERROR_NOT_PERMITTED;
  const bool on_device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const int device = on_device ? properties->location.id : -1;
  if (on_device && (device < 0 || device >= GetState().device_count)) return CUDA_ERROR_INVALID_DEVICE;
  if (on_device && !Charge(device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t handle = GetState().next_handle++;
  Get().physical[handle] = {size, device, *properties, 1, 0};
  Allocation allocation;
  allocation.size = size;
  allocation.charged = on_device ? size : 0;
  allocation.device = device;
  allocation.kind = SIMULATED_CUDA_PHYSICAL;
  Register(handle, allocation, call);
  *out = handle;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  DRIVER_CALL();
  const auto it = Get().physical.find(handle);
  if (it == Get().physical.end() || it->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
  --it->second.references;
  MaybeFree(handle);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  DRIVER_CALL();
  const auto it = MappingAt(reinterpret_cast<uint64_t>(address));
  if (it == Get().mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  ++Get().physical.at(it->second.handle).references;
  *out = it->second.handle;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  DRIVER_CALL();
  const auto physical = Get().physical.find(handle);
  // A handle without a reference can no longer be mapped, although its mappings live on.
  if (physical == Get().physical.end() || physical->second.references == 0 || flags != 0 || size == 0 ||
      size % kGranularity != 0 || offset + size > physical->second.size ||
      !InsideReservation(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto next = Get().mappings.lower_bound(address);
  if (MappingAt(address) != Get().mappings.end() ||
      (next != Get().mappings.end() && next->first < address + size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Get().mappings[address] = {size, offset, handle};
  ++physical->second.mappings;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
  DRIVER_CALL();
  auto& mappings = Get().mappings;
  // The range must consist of whole mappings.
  uint64_t end = address;
  auto it = mappings.find(address);
  const auto first = it;
  while (it != mappings.end() && it->first == end && end < address + size) {
    end += it->second.size;
    ++it;
  }
  if (end != address + size || size == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> handles;
  for (auto m = first; m != it; ++m) handles.push_back(m->second.handle);
  mappings.erase(first, it);
  for (const uint64_t handle : handles) {
    --Get().physical.at(handle).mappings;
    MaybeFree(handle);
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                               size_t count) {
  DRIVER_CALL();
  if (access == nullptr || count == 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
  return MappingAt(address) != Get().mappings.end() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* out,
                                                       CUmemGenericAllocationHandle handle) {
  DRIVER_CALL();
  const auto it = Get().physical.find(handle);
  if (it == Get().physical.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = it->second.properties;
  return CUDA_SUCCESS;
}
// A shared handle is the number itself: it can be imported in the process that exported it.
EXPORT CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, unsigned long long) {
  DRIVER_CALL();
  if (Get().physical.count(handle) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const int number = static_cast<int>(handle);
  memcpy(out, &number, sizeof number);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* shared,
                                               CUmemAllocationHandleType type) {
  DRIVER_CALL();
  const auto handle = reinterpret_cast<uint64_t>(shared);
  const auto it = Get().physical.find(handle);
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || it == Get().physical.end())
    return CUDA_ERROR_INVALID_VALUE;
  ++it->second.references;
  *out = handle;
  return CUDA_SUCCESS;
}

// A multicast object names other memory; it has none of its own.
EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle* out,
                                  const CUmulticastObjectProp* properties) {
  DRIVER_CALL();
  if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = GetState().next_handle++;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) {
  DRIVER_CALL();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle memory,
                                   size_t, size_t, unsigned long long) {
  DRIVER_CALL();
  return Get().physical.count(memory) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t,
                                    unsigned long long) {
  DRIVER_CALL();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t) {
  DRIVER_CALL();
  return CUDA_SUCCESS;
}
