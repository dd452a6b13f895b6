// Kernels: they do nothing, but the first launch of one that needs local memory grows the context, as on a
// real device.
#include <stdio.h>

#include "state.h"

using namespace simulated_cuda;

struct CUfunc_st {
  int local_bytes;
  bool launched;
};

namespace {

// Local memory is laid out for every thread that can be resident.
constexpr size_t kResidentThreads = 132 * 2048;

CUresult Launch(CUfunction function) {
  Device* device = CurrentDevice();
  if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!function->launched && function->local_bytes > 0) {
    const size_t bytes = RoundUp(static_cast<size_t>(function->local_bytes) * kResidentThreads, 2 * kMiB);
    if (bytes > device->local_bytes) {
      if (!Charge(device->primary.device, bytes - device->local_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
      device->local_bytes = bytes;
    }
  }
  function->launched = true;
  return CUDA_SUCCESS;
}

}  // namespace

// The name "local<N>" makes a kernel that uses N bytes of local memory per thread.
EXPORT CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
  DRIVER_CALL();
  if (module == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int local = 0;
  if (sscanf(name, "local%d", &local) != 1) local = 0;
  *out = new CUfunc_st{local, false};
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  DRIVER_CALL();
  *value = attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? function->local_bytes : 0;
  return CUDA_SUCCESS;
}

#define BOTH_STREAMS(name, parameters, ...) \
  EXPORT CUresult name parameters {         \
    DRIVER_CALL();                          \
    __VA_ARGS__                             \
  }                                         \
  EXPORT CUresult name##_ptsz parameters {  \
    DRIVER_CALL();                          \
    __VA_ARGS__                             \
  }

BOTH_STREAMS(cuLaunchKernel,
             (CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
              CUstream, void**, void**),
             { return Launch(function); })
BOTH_STREAMS(cuLaunchKernelEx, (const CUlaunchConfig*, CUfunction function, void**, void**),
             { return Launch(function); })
