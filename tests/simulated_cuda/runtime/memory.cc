// Device, host, array and IPC memory of the simulated runtime.
#include "driver_table.h"

using namespace simulated_cudart;

namespace {

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}
CUdeviceptr* Out(void** pointer) {
  return reinterpret_cast<CUdeviceptr*>(pointer);
}

CUarray_format Format(const cudaChannelFormatDesc& d) {
  return d.x == 8 ? CU_AD_FORMAT_UNSIGNED_INT8 : d.x == 16 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT;
}
unsigned Channels(const cudaChannelFormatDesc& d) {
  return static_cast<unsigned>((d.x != 0) + (d.y != 0) + (d.z != 0) + (d.w != 0));
}
CUDA_ARRAY3D_DESCRIPTOR Describe(const cudaChannelFormatDesc& d, const cudaExtent& extent, unsigned flags) {
  return {extent.width, extent.height, extent.depth, Format(d), Channels(d), flags};
}

}  // namespace

EXPORT cudaError_t cudaMalloc(void** pointer, size_t size) {
  RUNTIME_CALL();
  // The runtime takes a request for nothing; the driver does not.
  if (size == 0) {
    *pointer = nullptr;
    return cudaSuccess;
  }
  return Result(driver.cuMemAlloc(Out(pointer), size));
}
EXPORT cudaError_t cudaFree(void* pointer) {
  RUNTIME_CALL();
  return Result(driver.cuMemFree(Address(pointer)));
}
EXPORT cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  RUNTIME_CALL();
  return Result(driver.cuMemAllocPitch(Out(pointer), pitch, width, height, 4));
}
EXPORT cudaError_t cudaMalloc3D(cudaPitchedPtr* out, cudaExtent extent) {
  RUNTIME_CALL();
  CUdeviceptr address = 0;
  size_t pitch = 0;
  const CUresult result =
      driver.cuMemAllocPitch(&address, &pitch, extent.width, extent.height * extent.depth, 4);
  if (result == CUDA_SUCCESS) *out = {reinterpret_cast<void*>(address), pitch, extent.width, extent.height};
  return Result(result);
}
EXPORT cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned flags) {
  RUNTIME_CALL();
  return Result(driver.cuMemAllocManaged(Out(pointer), size, flags));
}
EXPORT cudaError_t cudaMallocHost(void** pointer, size_t size) {
  RUNTIME_CALL();
  return Result(driver.cuMemHostAlloc(pointer, size, 0));
}
EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned flags) {
  RUNTIME_CALL();
  return Result(driver.cuMemHostAlloc(pointer, size, flags));
}
EXPORT cudaError_t cudaFreeHost(void* pointer) {
  RUNTIME_CALL();
  return pointer != nullptr ? Result(driver.cuMemFreeHost(pointer)) : cudaSuccess;
}
EXPORT cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned flags) {
  RUNTIME_CALL();
  return Result(driver.cuMemHostRegister(pointer, size, flags));
}
EXPORT cudaError_t cudaHostUnregister(void* pointer) {
  RUNTIME_CALL();
  return Result(driver.cuMemHostUnregister(pointer));
}
EXPORT cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  RUNTIME_CALL();
  return Result(driver.cuMemGetInfo(free_bytes, total));
}

// Device addresses are invented, so nothing is copied.
EXPORT cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) {
  RUNTIME_CALL();
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  RUNTIME_CALL();
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemset(void*, int, size_t) {
  RUNTIME_CALL();
  return cudaSuccess;
}

EXPORT cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* d, size_t width,
                                   size_t height, unsigned flags) {
  RUNTIME_CALL();
  const CUDA_ARRAY3D_DESCRIPTOR description = Describe(*d, {width, height, 0}, flags);
  return Result(driver.cuArray3DCreate(reinterpret_cast<CUarray*>(array), &description));
}
EXPORT cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* d, cudaExtent extent,
                                     unsigned flags) {
  RUNTIME_CALL();
  const CUDA_ARRAY3D_DESCRIPTOR description = Describe(*d, extent, flags);
  return Result(driver.cuArray3DCreate(reinterpret_cast<CUarray*>(array), &description));
}
EXPORT cudaError_t cudaFreeArray(cudaArray_t array) {
  RUNTIME_CALL();
  return array != nullptr ? Result(driver.cuArrayDestroy(reinterpret_cast<CUarray>(array))) : cudaSuccess;
}
EXPORT cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* array, const cudaChannelFormatDesc* d,
                                            cudaExtent extent, unsigned levels, unsigned flags) {
  RUNTIME_CALL();
  const CUDA_ARRAY3D_DESCRIPTOR description = Describe(*d, extent, flags);
  return Result(
      driver.cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(array), &description, levels));
}
EXPORT cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
  RUNTIME_CALL();
  return Result(driver.cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(array)));
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  RUNTIME_CALL();
  return Result(driver.cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), Address(pointer)));
}
EXPORT cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  RUNTIME_CALL();
  CUipcMemHandle driver_handle;
  static_assert(sizeof driver_handle == sizeof handle);
  __builtin_memcpy(&driver_handle, &handle, sizeof handle);
  return Result(driver.cuIpcOpenMemHandle(Out(pointer), driver_handle, flags));
}
EXPORT cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  RUNTIME_CALL();
  return Result(driver.cuIpcCloseMemHandle(Address(pointer)));
}

EXPORT cudaError_t cudaImportExternalMemory(cudaExternalMemory_t* out,
                                            const cudaExternalMemoryHandleDesc* description) {
  RUNTIME_CALL();
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC d{};
  d.type = static_cast<CUexternalMemoryHandleType>(description->type);
  d.handle.fd = description->handle.fd;
  d.size = description->size;
  d.flags = description->flags;
  return Result(driver.cuImportExternalMemory(reinterpret_cast<CUexternalMemory*>(out), &d));
}
EXPORT cudaError_t cudaExternalMemoryGetMappedBuffer(void** pointer, cudaExternalMemory_t memory,
                                                     const cudaExternalMemoryBufferDesc* description) {
  RUNTIME_CALL();
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC d{};
  d.offset = description->offset;
  d.size = description->size;
  return Result(
      driver.cuExternalMemoryGetMappedBuffer(Out(pointer), reinterpret_cast<CUexternalMemory>(memory), &d));
}
EXPORT cudaError_t cudaDestroyExternalMemory(cudaExternalMemory_t memory) {
  RUNTIME_CALL();
  return Result(driver.cuDestroyExternalMemory(reinterpret_cast<CUexternalMemory>(memory)));
}
