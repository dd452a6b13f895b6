// Every family of the runtime's and driver's functions, leaving a known set of allocations behind.
#include <stdio.h>

#include "cases.h"
#include "tests/simulated_cuda/newest_cuda_runtime.h"

namespace {

int g_failed = 0;

void Check(const char* what, cudaError_t result) {
  if (result == cudaSuccess) return;
  ++g_failed;
  printf("%s: %d\n", what, static_cast<int>(result));
}

#define CALL(expression) Check(#expression, expression)

// Two of everything; one is given back.
void DeviceMemory() {
  for (int i = 0; i < 2; ++i) {
    void* p = nullptr;
    size_t pitch = 0;
    CALL(cudaMalloc(&p, 1000));
    if (i == 0) CALL(cudaFree(p));
    CALL(cudaMallocPitch(&p, &pitch, 100, 30));
    if (i == 0) CALL(cudaFree(p));
    cudaPitchedPtr pitched{};
    CALL(cudaMalloc3D(&pitched, {60, 10, 3}));
    if (i == 0) CALL(cudaFree(pitched.ptr));
    CALL(cudaMallocManaged(&p, 70000, cudaMemAttachGlobal));
    if (i == 0) CALL(cudaFree(p));
  }
  CALL(cudaFree(nullptr));
}

void HostMemory() {
  static char registered[2][8192];
  for (int i = 0; i < 2; ++i) {
    void* p = nullptr;
    CALL(cudaMallocHost(&p, 5000));
    if (i == 0) CALL(cudaFreeHost(p));
    CALL(cudaHostAlloc(&p, 6000, 0));
    static_cast<char*>(p)[5999] = 1;
    if (i == 0) CALL(cudaFreeHost(p));
    CALL(cudaHostRegister(registered[i], sizeof registered[i], 0));
    if (i == 0) CALL(cudaHostUnregister(registered[i]));
  }
}

void Arrays() {
  const cudaChannelFormatDesc format{32, 0, 0, 0, cudaChannelFormatKindFloat};
  for (int i = 0; i < 2; ++i) {
    cudaArray_t array = nullptr;
    CALL(cudaMallocArray(&array, &format, 64, 64, 0));
    if (i == 0) CALL(cudaFreeArray(array));
    CALL(cudaMalloc3DArray(&array, &format, {16, 16, 16}, 0));
    if (i == 0) CALL(cudaFreeArray(array));
    cudaMipmappedArray_t levels = nullptr;
    CALL(cudaMallocMipmappedArray(&levels, &format, {64, 64, 0}, 3, 0));
    if (i == 0) CALL(cudaFreeMipmappedArray(levels));
  }
}

void StreamOrdered() {
  cudaStream_t stream = nullptr;
  CALL(cudaStreamCreate(&stream));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  CALL(cudaMemPoolCreate(&pool, &properties));
  for (int i = 0; i < 2; ++i) {
    void* p = nullptr;
    CALL(cudaMallocAsync(&p, 11000, stream));
    if (i == 0) CALL(cudaFreeAsync(p, stream));
    CALL(cudaMallocFromPoolAsync(&p, 12000, pool, stream));
    if (i == 0) CALL(cudaFreeAsync(p, stream));
  }
  CALL(cudaStreamSynchronize(stream));
}

void Graphs() {
  cudaStream_t stream = nullptr;
  CALL(cudaStreamCreate(&stream));
  // Captured: nodes, not allocations, until the launch.
  void* kept = nullptr;
  void* freed = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CALL(cudaMallocAsync(&kept, 21000, stream));
  CALL(cudaMallocAsync(&freed, 22000, stream));
  CALL(cudaFreeAsync(freed, stream));
  CALL(cudaStreamEndCapture(stream, &graph));
  CALL(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  for (int i = 0; i < 3; ++i) CALL(cudaGraphLaunch(exec, stream));
  // Built by hand.
  cudaGraph_t built = nullptr;
  cudaGraphNode_t allocate = nullptr;
  cudaGraphNode_t release = nullptr;
  cudaMemAllocNodeParams parameters{};
  parameters.poolProps.allocType = cudaMemAllocationTypePinned;
  parameters.poolProps.location = {cudaMemLocationTypeDevice, 0};
  parameters.bytesize = 23000;
  CALL(cudaGraphCreate(&built, 0));
  CALL(cudaGraphAddMemAllocNode(&allocate, built, nullptr, 0, &parameters));
  CALL(cudaGraphAddMemFreeNode(&release, built, &allocate, 1, parameters.dptr));
  cudaGraphExec_t built_exec = nullptr;
  CALL(cudaGraphInstantiate(&built_exec, built, 0));
  CALL(cudaGraphLaunch(built_exec, stream));
  CALL(cudaGraphExecDestroy(built_exec));
  CALL(cudaGraphDestroy(built));
  CALL(cudaGraphDestroy(graph));
  CALL(cudaDeviceGraphMemTrim(0));
}

void Failures() {
  void* p = nullptr;
  printf("too much: %d\n", static_cast<int>(cudaMalloc(&p, size_t{1} << 45)));
  printf("not ours: %d\n", static_cast<int>(cudaFree(reinterpret_cast<void*>(0x1234000))));
  printf("nothing: %d %d\n", static_cast<int>(cudaMalloc(&p, 0)), p == nullptr);
  printf("last error: %d\n", static_cast<int>(cudaGetLastError()));
  printf("then: %d\n", static_cast<int>(cudaGetLastError()));
}

}  // namespace

EDGE_CASE(all_interfaces) {
  DeviceMemory();
  HostMemory();
  Arrays();
  StreamOrdered();
  Graphs();
  Failures();
  printf("%d failed\n", g_failed);
  return 0;
}

EDGE_CASE(device_reset) {
  void* p = nullptr;
  for (int i = 0; i < 10; ++i) CALL(cudaMalloc(&p, 4096));
  CALL(cudaDeviceReset());
  for (int i = 0; i < 3; ++i) CALL(cudaMalloc(&p, 8192));
  printf("%d failed\n", g_failed);
  return 0;
}
