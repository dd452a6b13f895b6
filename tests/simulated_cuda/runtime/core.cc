// Loading the driver, devices, errors, entry points.
#include <dlfcn.h>

#include <atomic>
#include <mutex>

#include "driver_table.h"

namespace simulated_cudart {
namespace {

#ifndef SIMULATED_CUDART_VERSION
#define SIMULATED_CUDART_VERSION 13000
#endif

thread_local cudaError_t t_last_error = cudaSuccess;

DriverTable* Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return nullptr;
  auto* table = new DriverTable{};
  table->get_proc_address =
      reinterpret_cast<decltype(table->get_proc_address)>(dlsym(library, "cuGetProcAddress_v2"));
  if (table->get_proc_address == nullptr) return nullptr;
  // The real runtime probes with the empty name and never asks for a status.
  void* probe = nullptr;
  table->get_proc_address("", &probe, 0, 0, nullptr);
  bool complete = true;
  const auto get = [&](const char* name, int version, cuuint64_t flags, auto& out) {
    void* function = nullptr;
    table->get_proc_address(name, &function, version, flags, nullptr);
    out = reinterpret_cast<std::decay_t<decltype(out)>>(function);
    complete = complete && function != nullptr;
  };
#define GET(name, symbol, version) get(#name, version, CU_GET_PROC_ADDRESS_DEFAULT, table->name);
  DRIVER_FUNCTIONS(GET)
  DRIVER_STREAM_FUNCTIONS(GET)
#undef GET
#define GET(name, symbol, version) \
  get(#name, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, table->name##_per_thread);
  DRIVER_STREAM_FUNCTIONS(GET)
#undef GET
  return complete ? table : nullptr;
}

std::once_flag g_loaded;
DriverTable* g_driver = nullptr;
// Primary contexts, retained once per device and process.
std::atomic<CUcontext> g_primary[64];

}  // namespace

thread_local int t_device = 0;

const DriverTable* Driver() {
  std::call_once(g_loaded, [] { g_driver = Load(); });
  return g_driver;
}

cudaError_t Fail(cudaError_t error) {
  if (error != cudaSuccess) t_last_error = error;
  return error;
}

// The numbers of both enumerations agree for the errors that the stand-in driver returns.
cudaError_t Result(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
      return cudaSuccess;
    case CUDA_ERROR_INVALID_CONTEXT:
      return Fail(cudaErrorDeviceUninitialized);
    case CUDA_ERROR_NOT_INITIALIZED:
      return Fail(cudaErrorInitializationError);
    default:
      return Fail(static_cast<cudaError_t>(result));
  }
}

cudaError_t Ensure() {
  const DriverTable* driver = Driver();
  if (driver == nullptr) return Fail(cudaErrorInsufficientDriver);
  if (const CUresult result = driver->cuInit(0); result != CUDA_SUCCESS) return Result(result);
  CUcontext current = nullptr;
  driver->cuCtxGetCurrent(&current);
  CUcontext primary = g_primary[t_device].load();
  if (current != nullptr && (current == primary || primary == nullptr)) return cudaSuccess;
  if (primary == nullptr) {
    CUcontext retained = nullptr;
    if (const CUresult result = driver->cuDevicePrimaryCtxRetain(&retained, t_device);
        result != CUDA_SUCCESS) {
      return Result(result);
    }
    g_primary[t_device].store(retained);
    primary = retained;
  }
  return Result(driver->cuCtxSetCurrent(primary));
}

}  // namespace simulated_cudart

using namespace simulated_cudart;

EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t error = t_last_error;
  t_last_error = cudaSuccess;
  return error;
}
EXPORT cudaError_t cudaPeekAtLastError() {
  return t_last_error;
}
EXPORT const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess                 ? "cudaSuccess"
         : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
                                              : "cudaError";
}
EXPORT const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : "error";
}
EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  const DriverTable* driver = Driver();
  if (driver == nullptr) return Fail(cudaErrorInsufficientDriver);
  if (const CUresult result = driver->cuInit(0); result != CUDA_SUCCESS) return Result(result);
  return Result(driver->cuDeviceGetCount(count));
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) return error;
  if (device < 0 || device >= count) return Fail(cudaErrorInvalidDevice);
  t_device = device;
  return Ensure();
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  RUNTIME_CALL();
  return Result(driver.cuCtxSynchronize());
}
EXPORT cudaError_t cudaDeviceReset() {
  RUNTIME_CALL();
  const cudaError_t error = Result(driver.cuDevicePrimaryCtxReset(t_device));
  g_primary[t_device].store(nullptr);
  return error;
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return Driver() != nullptr ? Result(Driver()->cuDriverGetVersion(version)) : cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = SIMULATED_CUDART_VERSION;
  return cudaSuccess;
}

namespace {

cudaError_t EntryPoint(const char* symbol, void** out, unsigned version, unsigned long long flags,
                       bool per_thread, cudaDriverEntryPointQueryResult* status) {
  RUNTIME_CALL();
  if (flags == cudaEnableDefault && per_thread) flags = cudaEnablePerThreadDefaultStream;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result = driver.get_proc_address(symbol, out, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return Result(result);
}

}  // namespace

EXPORT cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** out, unsigned long long flags,
                                           cudaDriverEntryPointQueryResult* status) {
  return EntryPoint(symbol, out, SIMULATED_CUDART_VERSION, flags, false, status);
}
EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** out, unsigned long long flags,
                                                cudaDriverEntryPointQueryResult* status) {
  return EntryPoint(symbol, out, SIMULATED_CUDART_VERSION, flags, true, status);
}
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** out, unsigned version,
                                                    unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult* status) {
  return EntryPoint(symbol, out, version, flags, false, status);
}
EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** out, unsigned version,
                                                         unsigned long long flags,
                                                         cudaDriverEntryPointQueryResult* status) {
  return EntryPoint(symbol, out, version, flags, true, status);
}
