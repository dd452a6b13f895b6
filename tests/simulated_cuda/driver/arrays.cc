// Arrays and mipmapped arrays; rows are padded as hardware does, so their size is not what the descriptor
// says.
#include <algorithm>

#include "state.h"

using namespace simulated_cuda;

namespace {

size_t FormatBytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 2;
    default:
      return 4;
  }
}

size_t ArrayBytes(size_t width, size_t height, size_t depth, CUarray_format format, unsigned channels) {
  const size_t row = RoundUp(width * FormatBytes(format) * channels, 64);
  return RoundUp(row * std::max<size_t>(height, 1) * std::max<size_t>(depth, 1), 512);
}

CUresult Create(void** out, size_t bytes, uint32_t call) {
  const CUcontext context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!Charge(context->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation allocation;
  allocation.size = allocation.charged = bytes;
  allocation.device = context->device;
  allocation.kind = SIMULATED_CUDA_ARRAY;
  allocation.context = context;
  const uint64_t handle = GetState().next_handle++;
  Register(handle, allocation, call);
  *out = reinterpret_cast<void*>(handle);
  return CUDA_SUCCESS;
}

CUresult Destroy(void* handle) {
  const auto it = GetState().allocations.find(reinterpret_cast<uint64_t>(handle));
  if (it == GetState().allocations.end() || it->second.kind != SIMULATED_CUDA_ARRAY)
    return CUDA_ERROR_INVALID_HANDLE;
  return Release(it->first);
}

}  // namespace

EXPORT CUresult cuArrayCreate(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* d) {
  DRIVER_CALL();
  return Create(reinterpret_cast<void**>(out), ArrayBytes(d->Width, d->Height, 1, d->Format, d->NumChannels),
                call);
}
EXPORT CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d) {
  DRIVER_CALL();
  return Create(reinterpret_cast<void**>(out), ArrayBytes(d->Width, d->Height, 1, d->Format, d->NumChannels),
                call);
}
EXPORT CUresult cuArray3DCreate(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* d) {
  DRIVER_CALL();
  return Create(reinterpret_cast<void**>(out),
                ArrayBytes(d->Width, d->Height, d->Depth, d->Format, d->NumChannels), call);
}
EXPORT CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  DRIVER_CALL();
  return Create(reinterpret_cast<void**>(out),
                ArrayBytes(d->Width, d->Height, d->Depth, d->Format, d->NumChannels), call);
}
EXPORT CUresult cuArrayDestroy(CUarray array) {
  DRIVER_CALL();
  return Destroy(array);
}
EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* d,
                                       unsigned levels) {
  DRIVER_CALL();
  size_t bytes = 0;
  for (unsigned level = 0; level < levels; ++level) {
    bytes += ArrayBytes(std::max<size_t>(d->Width >> level, 1), d->Height >> level, d->Depth >> level,
                        d->Format, d->NumChannels);
  }
  return Create(reinterpret_cast<void**>(out), bytes, call);
}
EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  DRIVER_CALL();
  return Destroy(array);
}
EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray, CUdevice) {
  DRIVER_CALL();
  // Only arrays made for deferred mapping tell their size.
  (void)out;
  return CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR*, CUarray) {
  DRIVER_CALL();
  return CUDA_ERROR_NOT_SUPPORTED;
}
