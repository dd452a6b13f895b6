// Streams, events, stream-ordered memory, pools and graphs of the simulated runtime.
#include "driver_table.h"

using namespace simulated_cudart;

namespace {

CUdeviceptr Address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}
CUdeviceptr* Out(void** pointer) {
  return reinterpret_cast<CUdeviceptr*>(pointer);
}

}  // namespace

// One definition for the legacy default stream and one for the per-thread default stream.
#define BOTH_STREAMS(name, driver_name, parameters, arguments) \
  EXPORT cudaError_t name parameters {                         \
    RUNTIME_CALL();                                            \
    return Result(driver.driver_name arguments);               \
  }                                                            \
  EXPORT cudaError_t name##_ptsz parameters {                  \
    RUNTIME_CALL();                                            \
    return Result(driver.driver_name##_per_thread arguments);  \
  }

BOTH_STREAMS(cudaMallocAsync, cuMemAllocAsync, (void** pointer, size_t size, cudaStream_t stream),
             (Out(pointer), size, stream))
BOTH_STREAMS(cudaMallocFromPoolAsync, cuMemAllocFromPoolAsync,
             (void** pointer, size_t size, cudaMemPool_t pool, cudaStream_t stream),
             (Out(pointer), size, pool, stream))
BOTH_STREAMS(cudaFreeAsync, cuMemFreeAsync, (void* pointer, cudaStream_t stream), (Address(pointer), stream))
BOTH_STREAMS(cudaStreamSynchronize, cuStreamSynchronize, (cudaStream_t stream), (stream))
BOTH_STREAMS(cudaStreamWaitEvent, cuStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
             (stream, event, flags))
BOTH_STREAMS(cudaStreamBeginCapture, cuStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode),
             (stream, static_cast<CUstreamCaptureMode>(mode)))
BOTH_STREAMS(cudaStreamEndCapture, cuStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph),
             (stream, graph))
BOTH_STREAMS(cudaStreamIsCapturing, cuStreamIsCapturing,
             (cudaStream_t stream, cudaStreamCaptureStatus* status),
             (stream, reinterpret_cast<CUstreamCaptureStatus*>(status)))
BOTH_STREAMS(cudaEventRecord, cuEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
BOTH_STREAMS(cudaGraphLaunch, cuGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream))

EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  RUNTIME_CALL();
  return Result(driver.cuStreamCreate(stream, 0));
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  RUNTIME_CALL();
  return Result(driver.cuStreamCreate(stream, flags));
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  RUNTIME_CALL();
  return Result(driver.cuStreamDestroy(stream));
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  RUNTIME_CALL();
  return Result(driver.cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode*>(mode)));
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  RUNTIME_CALL();
  return Result(driver.cuEventCreate(event, flags));
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  RUNTIME_CALL();
  const CUresult result = driver.cuEventQuery(event);
  // "Not ready" is an answer, not an error to remember.
  return result == CUDA_ERROR_NOT_READY ? cudaErrorNotReady : Result(result);
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  RUNTIME_CALL();
  return Result(driver.cuEventSynchronize(event));
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  RUNTIME_CALL();
  return Result(driver.cuEventDestroy(event));
}

EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  RUNTIME_CALL();
  // The same structure on both levels; its later fields depend on the headers' version.
  CUmemPoolProps driver_properties;
  static_assert(sizeof driver_properties == sizeof *properties);
  __builtin_memcpy(&driver_properties, properties, sizeof driver_properties);
  return Result(driver.cuMemPoolCreate(pool, &driver_properties));
}
EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  RUNTIME_CALL();
  return Result(driver.cuMemPoolDestroy(pool));
}
EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  RUNTIME_CALL();
  return Result(driver.cuMemPoolTrimTo(pool, keep));
}
EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  RUNTIME_CALL();
  return Result(driver.cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
}
EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  RUNTIME_CALL();
  return Result(driver.cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
}
EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  RUNTIME_CALL();
  return Result(driver.cuDeviceGetDefaultMemPool(pool, device));
}
EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  RUNTIME_CALL();
  return Result(driver.cuDeviceGetMemPool(pool, device));
}
EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  RUNTIME_CALL();
  return Result(driver.cuDeviceSetMemPool(device, pool));
}

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  RUNTIME_CALL();
  return Result(driver.cuGraphCreate(graph, flags));
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  RUNTIME_CALL();
  return Result(driver.cuGraphDestroy(graph));
}
EXPORT cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* after, size_t count,
                                            cudaMemAllocNodeParams* parameters) {
  RUNTIME_CALL();
  CUDA_MEM_ALLOC_NODE_PARAMS driver_parameters{};
  driver_parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  driver_parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, parameters->poolProps.location.id};
  driver_parameters.bytesize = parameters->bytesize;
  const CUresult result = driver.cuGraphAddMemAllocNode(node, graph, after, count, &driver_parameters);
  parameters->dptr = reinterpret_cast<void*>(driver_parameters.dptr);
  return Result(result);
}
EXPORT cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                           const cudaGraphNode_t* after, size_t count, void* pointer) {
  RUNTIME_CALL();
  return Result(driver.cuGraphAddMemFreeNode(node, graph, after, count, Address(pointer)));
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  RUNTIME_CALL();
  return Result(driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                 unsigned long long flags) {
  RUNTIME_CALL();
  return Result(driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  RUNTIME_CALL();
  return Result(driver.cuGraphExecDestroy(exec));
}
EXPORT cudaError_t cudaDeviceGraphMemTrim(int device) {
  RUNTIME_CALL();
  return Result(driver.cuDeviceGraphMemTrim(device));
}

EXPORT cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t original) {
  RUNTIME_CALL();
  return Result(driver.cuGraphClone(clone, original));
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) {
  RUNTIME_CALL();
  return Result(driver.cuEventCreate(event, 0));
}
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  RUNTIME_CALL();
  return Result(driver.cuStreamCreate(stream, flags));
}
