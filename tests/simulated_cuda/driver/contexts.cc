// Initialization, devices, contexts, modules, errors.
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "state.h"

using namespace simulated_cuda;

namespace {

// Trivial, so that a thread's own destructors may still call the driver.
constexpr int kStackDepth = 32;
thread_local CUcontext t_stack[kStackDepth];
thread_local int t_depth;

CUresult Push(CUcontext context) {
  if (t_depth == kStackDepth) return CUDA_ERROR_INVALID_VALUE;
  t_stack[t_depth++] = context;
  return CUDA_SUCCESS;
}

// The real driver has threads of its own from the first context on; programs can see that (Python warns of
// fork() in a process with threads).
void StartDriverThread() {
  static bool started = false;
  if (started) return;
  started = true;
  pthread_t thread;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto run = [](void*) -> void* {
    pthread_setname_np(pthread_self(), "cuda-EvtHandlr");
    for (;;) pause();
  };
  if (pthread_create(&thread, nullptr, run, nullptr) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CUresult CreateContext(CUcontext* out, int device) {
  State& state = GetState();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= state.device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (!Charge(device, state.context_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* context = new CUctx_st{device, false, state.context_bytes};
  StartDriverThread();
  state.contexts.insert(context);
  *out = context;
  return Push(context);
}

CUresult DestroyContext(CUcontext context) {
  State& state = GetState();
  if (state.contexts.erase(context) == 0) return CUDA_ERROR_INVALID_CONTEXT;
  FreeContextAllocations(context);
  Uncharge(context->device, context->bytes);
  for (int i = 0; i < t_depth; ++i) {
    if (t_stack[i] != context) continue;
    memmove(t_stack + i, t_stack + i + 1, sizeof *t_stack * static_cast<size_t>(t_depth - i - 1));
    --t_depth;
    --i;
  }
  delete context;
  return CUDA_SUCCESS;
}

bool PrimaryUp(const Device& device) {
  return device.primary.bytes != 0;
}

CUresult BringUpPrimary(Device& device) {
  State& state = GetState();
  if (PrimaryUp(device)) return CUDA_SUCCESS;
  if (!Charge(device.primary.device, state.context_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  StartDriverThread();
  device.primary.bytes = state.context_bytes;
  state.contexts.insert(&device.primary);
  return CUDA_SUCCESS;
}

void TearDownPrimary(Device& device) {
  if (!PrimaryUp(device)) return;
  FreeContextAllocations(&device.primary);
  Uncharge(device.primary.device, device.primary.bytes);
  device.primary.bytes = 0;
  GetState().contexts.erase(&device.primary);
}

CUresult ReleasePrimary(CUdevice device) {
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  Device& d = DeviceAt(device);
  if (d.primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--d.primary_references == 0) TearDownPrimary(d);
  return CUDA_SUCCESS;
}

CUresult ResetPrimary(CUdevice device) {
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  // The context becomes unusable, the references to it stay.
  TearDownPrimary(DeviceAt(device));
  return CUDA_SUCCESS;
}

struct Module {
  int device;
};
constexpr size_t kModuleBytes = 2 * kMiB;

CUresult LoadModule(void** out) {
  Device* device = CurrentDevice();
  if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!Charge(device->primary.device, kModuleBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = new Module{device->primary.device};
  return CUDA_SUCCESS;
}

CUresult UnloadModule(void* handle) {
  auto* module = static_cast<Module*>(handle);
  Uncharge(module->device, kModuleBytes);
  delete module;
  return CUDA_SUCCESS;
}

}  // namespace

namespace simulated_cuda {

CUcontext CurrentContext() {
  const CUcontext context = t_depth > 0 ? t_stack[t_depth - 1] : nullptr;
  return context != nullptr && GetState().contexts.count(context) != 0 ? context : nullptr;
}

Device* CurrentDevice() {
  const CUcontext context = CurrentContext();
  return context != nullptr ? &DeviceAt(context->device) : nullptr;
}

}  // namespace simulated_cuda

EXPORT CUresult cuInit(unsigned flags) {
  static const uint32_t call = ledger::RegisterCall(__func__);
  ledger::CountCall(call);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(Mutex());
  State& state = GetState();
  if (state.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (state.device_count == 0) return CUDA_ERROR_NO_DEVICE;
  state.initialized = true;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
  DRIVER_CALL();
  *count = GetState().device_count;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  DRIVER_CALL();
  if (ordinal < 0 || ordinal >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  DRIVER_CALL();
  strncpy(name, "Simulated GPU", static_cast<size_t>(length));
  if (length > 0) name[length - 1] = '\0';
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  DRIVER_CALL();
  memcpy(uuid->bytes, "simulated-gpu-00", 16);
  uuid->bytes[15] = static_cast<char>('0' + device);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid(uuid, device);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = DeviceAt(device).total;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  DRIVER_CALL();
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = 0;
      break;
    default:
      *value = 1;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  DRIVER_CALL();
  const Device* device = CurrentDevice();
  if (device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *free_bytes = device->total - device->used;
  *total = device->total;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate(CUcontext* context, unsigned, CUdevice device) {
  DRIVER_CALL();
  return CreateContext(context, device);
}
EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) {
  DRIVER_CALL();
  return CreateContext(context, device);
}
EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int, unsigned, CUdevice device) {
  DRIVER_CALL();
  return CreateContext(context, device);
}
EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice device) {
  DRIVER_CALL();
  return CreateContext(context, device);
}
EXPORT CUresult cuCtxDestroy(CUcontext context) {
  DRIVER_CALL();
  return DestroyContext(context);
}
EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
  DRIVER_CALL();
  return DestroyContext(context);
}
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  DRIVER_CALL();
  return Push(context);
}
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  DRIVER_CALL();
  if (t_depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --t_depth;
  if (context != nullptr) *context = t_stack[t_depth];
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  DRIVER_CALL();
  if (t_depth > 0) --t_depth;
  return context != nullptr ? Push(context) : CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  DRIVER_CALL();
  *context = CurrentContext();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  DRIVER_CALL();
  const CUcontext context = CurrentContext();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSynchronize() {
  DRIVER_CALL();
  if (CurrentContext() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  PoolsReleaseUnused();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetLimit(CUlimit, size_t) {
  DRIVER_CALL();
  return CurrentContext() != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  Device& d = DeviceAt(device);
  if (const CUresult result = BringUpPrimary(d); result != CUDA_SUCCESS) return result;
  ++d.primary_references;
  *context = &d.primary;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  DRIVER_CALL();
  return ReleasePrimary(device);
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  DRIVER_CALL();
  return ReleasePrimary(device);
}
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  DRIVER_CALL();
  return ResetPrimary(device);
}
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  DRIVER_CALL();
  return ResetPrimary(device);
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = PrimaryUp(DeviceAt(device)) ? 1 : 0;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule* module, const char*) {
  DRIVER_CALL();
  return LoadModule(reinterpret_cast<void**>(module));
}
EXPORT CUresult cuModuleLoadData(CUmodule* module, const void*) {
  DRIVER_CALL();
  return LoadModule(reinterpret_cast<void**>(module));
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  DRIVER_CALL();
  return LoadModule(reinterpret_cast<void**>(module));
}
EXPORT CUresult cuModuleLoadFatBinary(CUmodule* module, const void*) {
  DRIVER_CALL();
  return LoadModule(reinterpret_cast<void**>(module));
}
EXPORT CUresult cuModuleUnload(CUmodule module) {
  DRIVER_CALL();
  return UnloadModule(module);
}
EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned,
                                  CUlibraryOption*, void**, unsigned) {
  DRIVER_CALL();
  return LoadModule(reinterpret_cast<void**>(library));
}
EXPORT CUresult cuLibraryUnload(CUlibrary library) {
  DRIVER_CALL();
  return UnloadModule(library);
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS:
      *name = "CUDA_SUCCESS";
      break;
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      break;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      break;
    case CUDA_ERROR_NOT_INITIALIZED:
      *name = "CUDA_ERROR_NOT_INITIALIZED";
      break;
    default:
      *name = "CUDA_ERROR";
      break;
  }
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  return cuGetErrorName(error, text);
}
EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char*, CUjit_option*, void**, unsigned,
                                      CUlibraryOption*, void**, unsigned) {
  DRIVER_CALL();
  return LoadModule(reinterpret_cast<void**>(library));
}

// A green context is a part of the primary context's device: it takes no memory of its own here.
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc, CUdevice device, unsigned) {
  DRIVER_CALL();
  if (device < 0 || device >= GetState().device_count) return CUDA_ERROR_INVALID_DEVICE;
  *out = reinterpret_cast<CUgreenCtx>(new CUctx_st{device, false, 0});
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  DRIVER_CALL();
  delete reinterpret_cast<CUctx_st*>(context);
  return CUDA_SUCCESS;
}
