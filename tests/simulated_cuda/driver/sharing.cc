// Memory owned elsewhere: IPC handles and external memory. Opening one makes an alias that takes no device
// memory of its own.
#include <string.h>
#include <unistd.h>

#include "state.h"

using namespace simulated_cuda;

struct CUextMemory_st {
  size_t size;
};

namespace {

struct IpcContent {
  uint64_t address;
  uint64_t size;
  int32_t process;
  int32_t device;
};
static_assert(sizeof(IpcContent) <= CU_IPC_HANDLE_SIZE);

CUresult Alias(CUdeviceptr* out, int device, size_t size, uint32_t call) {
  Allocation allocation;
  allocation.size = size;
  allocation.span = RoundUp(size, 512);
  allocation.device = device;
  allocation.kind = SIMULATED_CUDA_ALIAS;
  const uint64_t address = DeviceAt(device).addresses.Take(allocation.span, 512);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Register(address, allocation, call);
  *out = address;
  return CUDA_SUCCESS;
}

CUresult Open(CUdeviceptr* out, const CUipcMemHandle& handle, uint32_t call) {
  IpcContent content;
  memcpy(&content, handle.reserved, sizeof content);
  if (CurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // A process cannot open its own handle.
  if (content.process == getpid() || content.process == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (content.device < 0 || content.device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  return Alias(out, content.device, content.size, call);
}

}  // namespace

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  DRIVER_CALL();
  const auto it = Find(address);
  if (it == GetState().allocations.end() || it->second.kind != SIMULATED_CUDA_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  memset(out, 0, sizeof *out);
  const IpcContent content{it->first, it->second.size, getpid(), it->second.device};
  memcpy(out->reserved, &content, sizeof content);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned) {
  DRIVER_CALL();
  return Open(out, handle, call);
}
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* out, CUipcMemHandle handle, unsigned) {
  DRIVER_CALL();
  return Open(out, handle, call);
}
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  DRIVER_CALL();
  const auto it = GetState().allocations.find(address);
  if (it == GetState().allocations.end() || it->second.kind != SIMULATED_CUDA_ALIAS)
    return CUDA_ERROR_INVALID_VALUE;
  return Release(address);
}
EXPORT CUresult cuImportExternalMemory(CUexternalMemory* out,
                                       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
  DRIVER_CALL();
  if (out == nullptr || description == nullptr || description->size == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = new CUextMemory_st{static_cast<size_t>(description->size)};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* out, CUexternalMemory memory,
                                                const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* description) {
  DRIVER_CALL();
  const CUcontext context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (description->offset + description->size > memory->size) return CUDA_ERROR_INVALID_VALUE;
  return Alias(out, context->device, static_cast<size_t>(description->size), call);
}
EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
  DRIVER_CALL();
  delete memory;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray*, CUexternalMemory,
                                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC*) {
  DRIVER_CALL();
  return CUDA_ERROR_NOT_SUPPORTED;
}
