// The driver functions that the simulated runtime calls, fetched as the real one fetches them: dlopen of
// libcuda.so.1, one dlsym for cuGetProcAddress_v2, and that for everything else.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include "newest_cuda.h"
#undef __CUDA_API_VERSION_INTERNAL
#include "newest_cuda_runtime.h"

namespace simulated_cudart {

// clang-format cannot settle on a layout of these lists.
// clang-format off
// name, CUDA version asked for
#define DRIVER_FUNCTIONS(X)                                                                                  \
  X(cuInit, cuInit, 2000)                                                                                    \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020)                                                            \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000)                                                                \
  X(cuDeviceGet, cuDeviceGet, 2000) X(cuCtxSetCurrent, cuCtxSetCurrent, 4000) X(                             \
      cuCtxGetCurrent, cuCtxGetCurrent, 4000) X(cuCtxSynchronize, cuCtxSynchronize, 2000)                    \
      X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000) X(                                         \
          cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000) X(cuMemGetInfo, cuMemGetInfo_v2, 3020) \
          X(cuMemAlloc, cuMemAlloc_v2, 3020) X(cuMemAllocPitch, cuMemAllocPitch_v2, 3020) X(                 \
              cuMemAllocManaged, cuMemAllocManaged, 6000) X(cuMemFree, cuMemFree_v2,                         \
                                                            3020) X(cuMemHostAlloc, cuMemHostAlloc, 2020)    \
              X(cuMemFreeHost, cuMemFreeHost, 2000) X(cuMemHostRegister, cuMemHostRegister_v2, 6050) X(      \
                  cuMemHostUnregister, cuMemHostUnregister, 4000) X(cuMemPoolCreate, cuMemPoolCreate, 11020) \
                  X(cuMemPoolDestroy, cuMemPoolDestroy, 11020) X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020) X( \
                      cuMemPoolSetAttribute, cuMemPoolSetAttribute,                                          \
                      11020) X(cuMemPoolGetAttribute, cuMemPoolGetAttribute,                                 \
                               11020) X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020)         \
                      X(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020) X(                                    \
                          cuDeviceSetMemPool, cuDeviceSetMemPool,                                            \
                          11020) X(cuArrayCreate, cuArrayCreate_v2,                                          \
                                   3020) X(cuArray3DCreate, cuArray3DCreate_v2,                              \
                                           3020) X(cuArrayDestroy, cuArrayDestroy, 2000)                     \
                          X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000) X(                         \
                              cuMipmappedArrayDestroy, cuMipmappedArrayDestroy,                              \
                              5000) X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010)                            \
                              X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2,                                   \
                                11000) X(cuIpcCloseMemHandle, cuIpcCloseMemHandle,                           \
                                         4010) X(cuGraphCreate, cuGraphCreate,                               \
                                                 10000) X(cuGraphDestroy, cuGraphDestroy, 10000)             \
                                  X(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode,                          \
                                    11040) X(cuGraphAddMemFreeNode, cuGraphAddMemFreeNode, 11040)            \
                                      X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040) X(  \
                                          cuGraphExecDestroy, cuGraphExecDestroy, 10000)                     \
                                          X(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040) X(            \
                                              cuStreamCreate, cuStreamCreate, 2000) X(cuGraphClone,          \
                                                                                      cuGraphClone, 10000)   \
                                              X(cuImportExternalMemory, cuImportExternalMemory, 10000) X(    \
                                                  cuDestroyExternalMemory, cuDestroyExternalMemory, 10000)   \
                                                  X(cuExternalMemoryGetMappedBuffer,                         \
                                                    cuExternalMemoryGetMappedBuffer,                         \
                                                    10000) X(cuStreamDestroy, cuStreamDestroy_v2, 4000)      \
                                                      X(cuThreadExchangeStreamCaptureMode,                   \
                                                        cuThreadExchangeStreamCaptureMode,                   \
                                                        10010) X(cuEventCreate, cuEventCreate, 2000)         \
                                                          X(cuEventQuery, cuEventQuery, 2000) X(             \
                                                              cuEventSynchronize, cuEventSynchronize, 2000)  \
                                                              X(cuEventDestroy, cuEventDestroy_v2, 4000)

// Functions asked for twice: with the default flag and with the per-thread default stream.
#define DRIVER_STREAM_FUNCTIONS(X)                                                                          \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020)                                                                \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020)                                                \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020)                                                                  \
  X(cuGraphLaunch, cuGraphLaunch, 10000) X(cuStreamSynchronize, cuStreamSynchronize, 2000)                  \
      X(cuStreamWaitEvent, cuStreamWaitEvent, 3020) X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010) \
          X(cuStreamEndCapture, cuStreamEndCapture, 10000)                                                  \
              X(cuStreamIsCapturing, cuStreamIsCapturing, 10000) X(cuEventRecord, cuEventRecord, 2000)
// clang-format on

struct DriverTable {
  decltype(&::cuGetProcAddress_v2) get_proc_address;
#define FIELD(name, symbol, version) decltype(&::symbol) name;
  DRIVER_FUNCTIONS(FIELD)
  DRIVER_STREAM_FUNCTIONS(FIELD)
#undef FIELD
#define FIELD(name, symbol, version) decltype(&::symbol) name##_per_thread;
  DRIVER_STREAM_FUNCTIONS(FIELD)
#undef FIELD
};

// Null when there is no driver.
const DriverTable* Driver();

// Loads the driver, initializes it and makes the thread's device current.
cudaError_t Ensure();
// Remembers `result` for cudaGetLastError and returns it as the runtime's error.
cudaError_t Result(CUresult result);
cudaError_t Fail(cudaError_t error);

extern thread_local int t_device;

}  // namespace simulated_cudart

#define RUNTIME_CALL()                                                                   \
  if (const cudaError_t up = ::simulated_cudart::Ensure(); up != cudaSuccess) return up; \
  const auto& driver = *::simulated_cudart::Driver();                                    \
  (void)driver
#define EXPORT extern "C" __attribute__((visibility("default")))
