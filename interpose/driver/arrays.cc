// CUDA arrays and mipmapped arrays. Their handles are not addresses and their sizes are estimates.
#include <cuda.h>

#include "interpose/driver/array_size.h"
#include "interpose/driver/wrappers.h"

namespace gpumemtrace::interpose::driver {
namespace {

// Arrays made with either flag get their memory from cuMemCreate + cuMemMapArrayAsync, where it is counted.
constexpr unsigned kWithoutMemory = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

void RecordArray(const DriverScope& scope, uint64_t handle, uint64_t bytes, unsigned flags, Result result) {
  const int device = CurrentDevice();
  const bool has_memory = (flags & kWithoutMemory) == 0;
  Record(scope.proof(),
         {.kind = EventKind::kAllocate,
          .space = Space::kArray,
          .device = device,
          .address = handle,
          .size = has_memory ? bytes : 0,
          .argument = {0, CurrentOwnContext()},
          .flags = has_memory ? recorder::kEstimatedSize : recorder::kNoFlags},
         result);
  SampleDevice(device, true);
}

Result ArrayCreate(Call<Result, void**, const CUDA_ARRAY_DESCRIPTOR*> call, void** array,
                   const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  const DriverScope scope(call.id);
  const Result result = call(array, descriptor);
  if (scope.outermost() && descriptor != nullptr) {
    RecordArray(scope, Written(array, result),
                EstimateArrayBytes(descriptor->Width, descriptor->Height, 0, descriptor->Format,
                                   descriptor->NumChannels),
                0, result);
  }
  return result;
}

Result Array3DCreate(Call<Result, void**, const CUDA_ARRAY3D_DESCRIPTOR*> call, void** array,
                     const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  const DriverScope scope(call.id);
  const Result result = call(array, descriptor);
  if (scope.outermost() && descriptor != nullptr) {
    RecordArray(scope, Written(array, result),
                EstimateArrayBytes(descriptor->Width, descriptor->Height, descriptor->Depth,
                                   descriptor->Format, descriptor->NumChannels),
                descriptor->Flags, result);
  }
  return result;
}

Result MipmappedArrayCreate(Call<Result, void**, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned> call, void** array,
                            const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned levels) {
  const DriverScope scope(call.id);
  const Result result = call(array, descriptor, levels);
  if (scope.outermost() && descriptor != nullptr) {
    const bool layered = (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    RecordArray(scope, Written(array, result),
                EstimateMipmapBytes(descriptor->Width, descriptor->Height, descriptor->Depth,
                                    descriptor->Format, descriptor->NumChannels, levels, layered),
                descriptor->Flags, result);
  }
  return result;
}

Result ArrayDestroy(Call<Result, void*> call, void* array) {
  const DriverScope scope(call.id);
  if (!scope.outermost() || array == nullptr) {
    return call(array);
  }
  const Proof proof = scope.proof();
  const int device = CurrentDevice();
  Ticket ticket(proof);
  const Result result = call(array);
  ticket.Record(proof,
                {.kind = EventKind::kFree,
                 .space = Space::kArray,
                 .device = device,
                 .address = reinterpret_cast<uint64_t>(array)},
                result);
  SampleDevice(device, true);
  return result;
}

}  // namespace
}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_ARRAY_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
