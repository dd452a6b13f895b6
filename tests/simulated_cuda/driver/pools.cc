// Stream-ordered memory: pools that keep what was freed until a synchronization finds it above the
// release threshold.
#include "state.h"
#include "streams.h"

using namespace simulated_cuda;

namespace {

// Pools grow by this much.
constexpr size_t kPoolUnit = 32 * kMiB;
constexpr size_t kUnit = 512;

void MaybeDelete(CUmemoryPool pool) {
  if (!pool->destroyed || pool->outstanding != 0) return;
  if (pool->device >= 0) Uncharge(pool->device, pool->reserved);
  GetState().pools.erase(pool);
  delete pool;
}

void Shrink(CUmemPoolHandle_st& pool, size_t keep) {
  const size_t floor = RoundUp(pool.used, kPoolUnit);
  const size_t target = keep > floor ? keep : floor;
  if (target >= pool.reserved) return;
  if (pool.device >= 0) Uncharge(pool.device, pool.reserved - target);
  pool.reserved = target;
}

bool ValidPool(CUmemoryPool pool) {
  return GetState().pools.count(pool) != 0 && !pool->destroyed;
}

CUresult AllocateFrom(CUdeviceptr* out, size_t size, CUmemoryPool pool, CUstream stream, uint32_t call) {
  bool valid = false;
  FindStream(stream, &valid);
  if (!valid) return CUDA_ERROR_INVALID_HANDLE;
  const int device = StreamDevice(stream);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  // A capturing stream records a node; nothing is allocated now.
  if (const CUgraph graph = CapturingGraph(stream)) return AddAllocateNode(graph, nullptr, device, size, out);
  if (pool == nullptr) pool = DeviceAt(device).current_pool;
  if (!ValidPool(pool)) return CUDA_ERROR_INVALID_VALUE;
  const int owner = pool->device >= 0 ? pool->device : device;
  if (size > DeviceAt(owner).total || !PoolReserve(*pool, RoundUp(size, kUnit)))
    return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.size = size;
  allocation.span = RoundUp(size, kUnit);
  allocation.device = owner;
  allocation.kind = SIMULATED_CUDA_POOL;
  allocation.pool = pool;
  const uint64_t address = DeviceAt(owner).addresses.Take(allocation.span, kUnit);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  PoolTake(*pool, RoundUp(size, kUnit));
  Register(address, allocation, call);
  *out = address;
  return CUDA_SUCCESS;
}

CUresult FreeOn(CUdeviceptr address, CUstream stream) {
  bool valid = false;
  FindStream(stream, &valid);
  if (!valid) return CUDA_ERROR_INVALID_HANDLE;
  if (address == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUgraph graph = CapturingGraph(stream)) return AddFreeNode(graph, nullptr, address);
  const auto it = GetState().allocations.find(address);
  if (it == GetState().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  // Memory of cuMemAlloc may be freed in stream order too.
  switch (it->second.kind) {
    case SIMULATED_CUDA_POOL:
    case SIMULATED_CUDA_GRAPH:
    case SIMULATED_CUDA_DEVICE:
      return Release(address);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

namespace simulated_cuda {

bool PoolReserve(CUmemPoolHandle_st& pool, size_t size) {
  const size_t wanted = RoundUp(pool.used + size, kPoolUnit);
  if (wanted <= pool.reserved) return true;
  if (pool.device >= 0 && !Charge(pool.device, wanted - pool.reserved)) {
    // What other pools keep unused can be had back.
    PoolsReleaseUnused();
    if (wanted > pool.reserved && !Charge(pool.device, wanted - pool.reserved)) return false;
  }
  pool.reserved = wanted;
  if (pool.reserved > pool.reserved_high) pool.reserved_high = pool.reserved;
  return true;
}

void PoolTake(CUmemPoolHandle_st& pool, size_t size) {
  pool.used += size;
  if (pool.used > pool.used_high) pool.used_high = pool.used;
  ++pool.outstanding;
}

void PoolReturn(CUmemPoolHandle_st& pool, size_t size) {
  pool.used -= RoundUp(size, kUnit);
  --pool.outstanding;
  MaybeDelete(&pool);
}

void PoolsReleaseUnused() {
  for (const CUmemoryPool pool : GetState().pools) Shrink(*pool, pool->threshold);
}

}  // namespace simulated_cuda

#define BOTH_STREAMS(name, parameters, ...) \
  EXPORT CUresult name parameters {         \
    DRIVER_CALL();                          \
    __VA_ARGS__                             \
  }                                         \
  EXPORT CUresult name##_ptsz parameters {  \
    DRIVER_CALL();                          \
    __VA_ARGS__                             \
  }

BOTH_STREAMS(cuMemAllocAsync, (CUdeviceptr * out, size_t size, CUstream stream),
             { return AllocateFrom(out, size, nullptr, stream, call); })
BOTH_STREAMS(cuMemAllocFromPoolAsync, (CUdeviceptr * out, size_t size, CUmemoryPool pool, CUstream stream), {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return AllocateFrom(out, size, pool, stream, call);
})
BOTH_STREAMS(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), { return FreeOn(address, stream); })

EXPORT CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  DRIVER_CALL();
  if (out == nullptr || properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int device = -1;
  if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    device = properties->location.id;
    if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  }
  auto* pool = new CUmemPoolHandle_st{device, false, false, 0, 0, 0, 0, 0, 0};
  GetState().pools.insert(pool);
  *out = pool;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  DRIVER_CALL();
  if (!ValidPool(pool) || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  for (Device& device : GetState().devices) {
    if (device.current_pool == pool) device.current_pool = &device.default_pool;
  }
  pool->destroyed = true;
  MaybeDelete(pool);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  DRIVER_CALL();
  if (!ValidPool(pool)) return CUDA_ERROR_INVALID_VALUE;
  Shrink(*pool, keep);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  DRIVER_CALL();
  if (!ValidPool(pool)) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) pool->threshold = *static_cast<cuuint64_t*>(value);
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool->reserved_high = pool->reserved;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->used_high = pool->used;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  DRIVER_CALL();
  if (!ValidPool(pool)) return CUDA_ERROR_INVALID_VALUE;
  auto* out = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *out = pool->threshold;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *out = pool->reserved;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *out = pool->reserved_high;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *out = pool->used;
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *out = pool->used_high;
      break;
    default:
      *static_cast<int*>(value) = 1;
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc*, size_t) {
  DRIVER_CALL();
  return ValidPool(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *out = &DeviceAt(device).default_pool;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *out = DeviceAt(device).current_pool;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (!ValidPool(pool) || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  DeviceAt(device).current_pool = pool;
  return CUDA_SUCCESS;
}
// Sharing pools needs another process to import them; the stand-in has none.
EXPORT CUresult cuMemPoolExportToShareableHandle(void*, CUmemoryPool, CUmemAllocationHandleType,
                                                 unsigned long long) {
  DRIVER_CALL();
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool*, void*, CUmemAllocationHandleType,
                                                   unsigned long long) {
  DRIVER_CALL();
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData*, CUdeviceptr) {
  DRIVER_CALL();
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr*, CUmemoryPool, CUmemPoolPtrExportData*) {
  DRIVER_CALL();
  return CUDA_ERROR_NOT_SUPPORTED;
}
EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType) {
  DRIVER_CALL();
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (location->id < 0 || location->id >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *out = &DeviceAt(location->id).default_pool;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType) {
  DRIVER_CALL();
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (location->id < 0 || location->id >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *out = DeviceAt(location->id).current_pool;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType, CUmemoryPool pool) {
  DRIVER_CALL();
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if (!ValidPool(pool) || pool->device != location->id) return CUDA_ERROR_INVALID_VALUE;
  DeviceAt(location->id).current_pool = pool;
  return CUDA_SUCCESS;
}
