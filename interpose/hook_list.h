// THE list of functions that the shim stands in front of. Everything else is made from it: the export map,
// the exported entry points, the names dlsym answers, the substitution in cuGetProcAddress, the API names in
// the trace, and the consistency check of scripts/check_cuda_hooks.py.
//
// One row per exported symbol:
//   H(symbol, base, since, variant, library, wrapper)
//     symbol   the exported name, with its ABI suffix
//     base     the name that cuGetProcAddress is asked for and that the trace shows
//     since    first cudaVersion for which cuGetProcAddress gives this ABI (PFN_<base>_v<since> in
//              cudaTypedefs.h); 0 outside the driver
//     variant  kLegacy or kPerThread: which default stream the function means by stream 0
//     library  where the original lives
//     wrapper  the function that is run instead; it gets the original and its arguments
// A second name under which cuGetProcAddress hands out the same function:
//   A(base, since, variant, symbol)
//
// The first ABI (2000) of cuMemAlloc, cuMemFree and the like has 32-bit pointers and sizes; those are passed
// through untouched (see not_hooked.txt).
// clang-format off
#pragma once

#define GPUMEMTRACE_DEVICE_MEMORY_HOOKS(H) \
  H(cuMemAlloc_v2, "cuMemAlloc", 3020, kLegacy, kDriver, driver::MemAlloc) \
  H(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, kLegacy, kDriver, driver::MemAllocPitch) \
  H(cuMemAllocManaged, "cuMemAllocManaged", 6000, kLegacy, kDriver, driver::MemAllocManaged) \
  H(cuMemFree_v2, "cuMemFree", 3020, kLegacy, kDriver, driver::MemFree)

#define GPUMEMTRACE_HOST_MEMORY_HOOKS(H) \
  H(cuMemAllocHost_v2, "cuMemAllocHost", 3020, kLegacy, kDriver, driver::MemAllocHost) \
  H(cuMemHostAlloc, "cuMemHostAlloc", 2020, kLegacy, kDriver, driver::MemHostAlloc) \
  H(cuMemFreeHost, "cuMemFreeHost", 2000, kLegacy, kDriver, driver::MemFreeHost) \
  H(cuMemHostRegister, "cuMemHostRegister", 4000, kLegacy, kDriver, driver::MemHostRegister) \
  H(cuMemHostRegister_v2, "cuMemHostRegister", 6050, kLegacy, kDriver, driver::MemHostRegister) \
  H(cuMemHostUnregister, "cuMemHostUnregister", 4000, kLegacy, kDriver, driver::MemHostUnregister)

#define GPUMEMTRACE_STREAM_ORDERED_HOOKS(H) \
  H(cuMemAllocAsync, "cuMemAllocAsync", 11020, kLegacy, kDriver, driver::MemAllocAsync) \
  H(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, kPerThread, kDriver, driver::MemAllocAsync) \
  H(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, kLegacy, kDriver, driver::MemAllocFromPoolAsync) \
  H(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, kPerThread, kDriver, driver::MemAllocFromPoolAsync) \
  H(cuMemFreeAsync, "cuMemFreeAsync", 11020, kLegacy, kDriver, driver::MemFreeAsync) \
  H(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, kPerThread, kDriver, driver::MemFreeAsync) \
  H(cuMemPoolCreate, "cuMemPoolCreate", 11020, kLegacy, kDriver, driver::MemPoolCreate) \
  H(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, kLegacy, kDriver, driver::MemPoolDestroy) \
  H(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, kLegacy, kDriver, driver::MemPoolTrimTo) \
  H(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, kLegacy, kDriver, driver::MemPoolImportFromShareableHandle) \
  H(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, kLegacy, kDriver, driver::MemPoolImportPointer) \
  H(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, kLegacy, kDriver, driver::DeviceSetMemPool) \
  H(cuMemSetMemPool, "cuMemSetMemPool", 13000, kLegacy, kDriver, driver::MemSetMemPool)

#define GPUMEMTRACE_VIRTUAL_MEMORY_HOOKS(H) \
  H(cuMemAddressReserve, "cuMemAddressReserve", 10020, kLegacy, kDriver, driver::MemAddressReserve) \
  H(cuMemAddressFree, "cuMemAddressFree", 10020, kLegacy, kDriver, driver::MemAddressFree) \
  H(cuMemCreate, "cuMemCreate", 10020, kLegacy, kDriver, driver::MemCreate) \
  H(cuMemRelease, "cuMemRelease", 10020, kLegacy, kDriver, driver::MemRelease) \
  H(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, kLegacy, kDriver, driver::MemRetainAllocationHandle) \
  H(cuMemMap, "cuMemMap", 10020, kLegacy, kDriver, driver::MemMap) \
  H(cuMemUnmap, "cuMemUnmap", 10020, kLegacy, kDriver, driver::MemUnmap) \
  H(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, kLegacy, kDriver, driver::MemImportFromShareableHandle) \
  H(cuMulticastCreate, "cuMulticastCreate", 12010, kLegacy, kDriver, driver::MulticastCreate)

#define GPUMEMTRACE_ARRAY_HOOKS(H) \
  H(cuArrayCreate_v2, "cuArrayCreate", 3020, kLegacy, kDriver, driver::ArrayCreate) \
  H(cuArray3DCreate_v2, "cuArray3DCreate", 3020, kLegacy, kDriver, driver::Array3DCreate) \
  H(cuArrayDestroy, "cuArrayDestroy", 2000, kLegacy, kDriver, driver::ArrayDestroy) \
  H(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, kLegacy, kDriver, driver::MipmappedArrayCreate) \
  H(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, kLegacy, kDriver, driver::ArrayDestroy)

#define GPUMEMTRACE_SHARING_HOOKS(H) \
  H(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, kLegacy, kDriver, driver::IpcOpenMemHandle) \
  H(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, kLegacy, kDriver, driver::IpcOpenMemHandle) \
  H(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, kLegacy, kDriver, driver::IpcCloseMemHandle) \
  H(cuImportExternalMemory, "cuImportExternalMemory", 10000, kLegacy, kDriver, driver::ImportExternalMemory) \
  H(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, kLegacy, kDriver, driver::DestroyExternalMemory) \
  H(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000, kLegacy, kDriver, driver::ExternalMemoryGetMappedBuffer) \
  H(cuExternalMemoryGetMappedMipmappedArray, "cuExternalMemoryGetMappedMipmappedArray", 10000, kLegacy, kDriver, driver::ExternalMemoryGetMappedMipmappedArray)

#define GPUMEMTRACE_GRAPH_HOOKS(H) \
  H(cuGraphCreate, "cuGraphCreate", 10000, kLegacy, kDriver, driver::GraphCreate) \
  H(cuGraphClone, "cuGraphClone", 10000, kLegacy, kDriver, driver::GraphClone) \
  H(cuGraphDestroy, "cuGraphDestroy", 10000, kLegacy, kDriver, driver::GraphDestroy) \
  H(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, kLegacy, kDriver, driver::GraphAddMemAllocNode) \
  H(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040, kLegacy, kDriver, driver::GraphAddMemFreeNode) \
  H(cuGraphAddNode, "cuGraphAddNode", 12020, kLegacy, kDriver, driver::GraphAddNode) \
  H(cuGraphAddNode_v2, "cuGraphAddNode", 12030, kLegacy, kDriver, driver::GraphAddNodeWithEdges) \
  H(cuGraphInstantiate, "cuGraphInstantiate", 10000, kLegacy, kDriver, driver::GraphInstantiate) \
  H(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, kLegacy, kDriver, driver::GraphInstantiate) \
  H(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, kLegacy, kDriver, driver::GraphInstantiateWithFlags) \
  H(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, kLegacy, kDriver, driver::GraphInstantiateWithParams) \
  H(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, kPerThread, kDriver, driver::GraphInstantiateWithParams) \
  H(cuGraphLaunch, "cuGraphLaunch", 10000, kLegacy, kDriver, driver::GraphLaunch) \
  H(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, kPerThread, kDriver, driver::GraphLaunch) \
  H(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, kLegacy, kDriver, driver::GraphExecDestroy) \
  H(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, kLegacy, kDriver, driver::DeviceGraphMemTrim) \
  H(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, kLegacy, kDriver, driver::StreamBeginCapture) \
  H(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, kPerThread, kDriver, driver::StreamBeginCapture) \
  H(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, kLegacy, kDriver, driver::StreamBeginCaptureMode) \
  H(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, kPerThread, kDriver, driver::StreamBeginCaptureMode) \
  H(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, kLegacy, kDriver, driver::StreamBeginCaptureToGraph) \
  H(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, kPerThread, kDriver, driver::StreamBeginCaptureToGraph) \
  H(cuStreamEndCapture, "cuStreamEndCapture", 10000, kLegacy, kDriver, driver::StreamEndCapture) \
  H(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, kPerThread, kDriver, driver::StreamEndCapture)

#define GPUMEMTRACE_GRAPH_ALIASES(A) \
  A("cuGraphInstantiate", 12000, kLegacy, cuGraphInstantiateWithFlags)

#define GPUMEMTRACE_CONTEXT_HOOKS(H) \
  H(cuInit, "cuInit", 2000, kLegacy, kDriver, driver::Init) \
  H(cuCtxCreate, "cuCtxCreate", 2000, kLegacy, kDriver, driver::CtxCreate) \
  H(cuCtxCreate_v2, "cuCtxCreate", 3020, kLegacy, kDriver, driver::CtxCreate) \
  H(cuCtxCreate_v3, "cuCtxCreate", 11040, kLegacy, kDriver, driver::CtxCreateWithAffinity) \
  H(cuCtxCreate_v4, "cuCtxCreate", 12050, kLegacy, kDriver, driver::CtxCreateWithParams) \
  H(cuCtxDestroy, "cuCtxDestroy", 2000, kLegacy, kDriver, driver::CtxDestroy) \
  H(cuCtxDestroy_v2, "cuCtxDestroy", 4000, kLegacy, kDriver, driver::CtxDestroy) \
  H(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, kLegacy, kDriver, driver::DevicePrimaryCtxRetain) \
  H(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, kLegacy, kDriver, driver::DevicePrimaryCtxRelease) \
  H(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, kLegacy, kDriver, driver::DevicePrimaryCtxRelease) \
  H(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, kLegacy, kDriver, driver::DevicePrimaryCtxReset) \
  H(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, kLegacy, kDriver, driver::DevicePrimaryCtxReset) \
  H(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, kLegacy, kDriver, driver::GreenCtxCreate) \
  H(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, kLegacy, kDriver, driver::HandleDestroy)

#define GPUMEMTRACE_DRIVER_HANDLE_HOOKS(H) \
  H(cuStreamCreate, "cuStreamCreate", 2000, kLegacy, kDriver, driver::HandleCreate2) \
  H(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, kLegacy, kDriver, driver::HandleCreate3) \
  H(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 12050, kLegacy, kDriver, driver::HandleCreate4) \
  H(cuStreamDestroy, "cuStreamDestroy", 2000, kLegacy, kDriver, driver::HandleDestroy) \
  H(cuStreamDestroy_v2, "cuStreamDestroy", 4000, kLegacy, kDriver, driver::HandleDestroy) \
  H(cuEventCreate, "cuEventCreate", 2000, kLegacy, kDriver, driver::HandleCreate2) \
  H(cuEventDestroy, "cuEventDestroy", 2000, kLegacy, kDriver, driver::HandleDestroy) \
  H(cuEventDestroy_v2, "cuEventDestroy", 4000, kLegacy, kDriver, driver::HandleDestroy) \
  H(cuModuleLoad, "cuModuleLoad", 2000, kLegacy, kDriver, driver::HandleCreate2) \
  H(cuModuleLoadData, "cuModuleLoadData", 2000, kLegacy, kDriver, driver::HandleCreate2) \
  H(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, kLegacy, kDriver, driver::HandleCreate5) \
  H(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, kLegacy, kDriver, driver::HandleCreate2) \
  H(cuModuleUnload, "cuModuleUnload", 2000, kLegacy, kDriver, driver::HandleDestroy) \
  H(cuLibraryLoadData, "cuLibraryLoadData", 12000, kLegacy, kDriver, driver::HandleCreate8) \
  H(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, kLegacy, kDriver, driver::HandleCreate8) \
  H(cuLibraryUnload, "cuLibraryUnload", 12000, kLegacy, kDriver, driver::HandleDestroy)

#define GPUMEMTRACE_LAUNCH_HOOKS(H) \
  H(cuLaunchKernel, "cuLaunchKernel", 4000, kLegacy, kDriver, driver::LaunchKernel) \
  H(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, kPerThread, kDriver, driver::LaunchKernel) \
  H(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, kLegacy, kDriver, driver::LaunchKernelEx) \
  H(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, kPerThread, kDriver, driver::LaunchKernelEx)

#define GPUMEMTRACE_RESOLVER_HOOKS(H) \
  H(cuGetProcAddress, "cuGetProcAddress", 11030, kLegacy, kDriver, driver::GetProcAddress) \
  H(cuGetProcAddress_v2, "cuGetProcAddress", 12000, kLegacy, kDriver, driver::GetProcAddressWithStatus) \
  H(cuGetExportTable, "cuGetExportTable", 3000, kLegacy, kDriver, driver::GetExportTable) \
  H(cudaGetDriverEntryPoint, "cudaGetDriverEntryPoint", 0, kLegacy, kRuntime, runtime::GetDriverEntryPoint) \
  H(cudaGetDriverEntryPoint_ptsz, "cudaGetDriverEntryPoint", 0, kPerThread, kRuntime, runtime::GetDriverEntryPoint) \
  H(cudaGetDriverEntryPointByVersion, "cudaGetDriverEntryPointByVersion", 0, kLegacy, kRuntime, runtime::GetDriverEntryPointByVersion) \
  H(cudaGetDriverEntryPointByVersion_ptsz, "cudaGetDriverEntryPointByVersion", 0, kPerThread, kRuntime, runtime::GetDriverEntryPointByVersion)

// The runtime's functions: each gives its name to the driver call that it makes.
#define GPUMEMTRACE_RUNTIME_HOOKS(H) \
  H(cudaMalloc, "cudaMalloc", 0, kLegacy, kRuntime, runtime::Malloc) \
  H(cudaMallocManaged, "cudaMallocManaged", 0, kLegacy, kRuntime, runtime::MallocManaged) \
  H(cudaMallocPitch, "cudaMallocPitch", 0, kLegacy, kRuntime, runtime::MallocPitch) \
  H(cudaMalloc3D, "cudaMalloc3D", 0, kLegacy, kRuntime, runtime::Malloc3D) \
  H(cudaFree, "cudaFree", 0, kLegacy, kRuntime, runtime::Free) \
  H(cudaMallocHost, "cudaMallocHost", 0, kLegacy, kRuntime, runtime::MallocHost) \
  H(cudaHostAlloc, "cudaHostAlloc", 0, kLegacy, kRuntime, runtime::HostAlloc) \
  H(cudaFreeHost, "cudaFreeHost", 0, kLegacy, kRuntime, runtime::FreeHost) \
  H(cudaHostRegister, "cudaHostRegister", 0, kLegacy, kRuntime, runtime::HostRegister) \
  H(cudaHostUnregister, "cudaHostUnregister", 0, kLegacy, kRuntime, runtime::HostUnregister) \
  H(cudaMallocAsync, "cudaMallocAsync", 0, kLegacy, kRuntime, runtime::MallocAsync) \
  H(cudaMallocAsync_ptsz, "cudaMallocAsync", 0, kPerThread, kRuntime, runtime::MallocAsync) \
  H(cudaMallocFromPoolAsync, "cudaMallocFromPoolAsync", 0, kLegacy, kRuntime, runtime::MallocFromPoolAsync) \
  H(cudaMallocFromPoolAsync_ptsz, "cudaMallocFromPoolAsync", 0, kPerThread, kRuntime, runtime::MallocFromPoolAsync) \
  H(cudaFreeAsync, "cudaFreeAsync", 0, kLegacy, kRuntime, runtime::FreeAsync) \
  H(cudaFreeAsync_ptsz, "cudaFreeAsync", 0, kPerThread, kRuntime, runtime::FreeAsync) \
  H(cudaMallocArray, "cudaMallocArray", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaMalloc3DArray, "cudaMalloc3DArray", 0, kLegacy, kRuntime, runtime::Malloc3DArray) \
  H(cudaMallocMipmappedArray, "cudaMallocMipmappedArray", 0, kLegacy, kRuntime, runtime::MallocMipmappedArray) \
  H(cudaFreeArray, "cudaFreeArray", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaFreeMipmappedArray, "cudaFreeMipmappedArray", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaMemPoolCreate, "cudaMemPoolCreate", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaMemPoolDestroy, "cudaMemPoolDestroy", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaMemPoolTrimTo, "cudaMemPoolTrimTo", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaMemPoolImportFromShareableHandle, "cudaMemPoolImportFromShareableHandle", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaMemPoolImportPointer, "cudaMemPoolImportPointer", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaIpcOpenMemHandle, "cudaIpcOpenMemHandle", 0, kLegacy, kRuntime, runtime::IpcOpenMemHandle) \
  H(cudaIpcCloseMemHandle, "cudaIpcCloseMemHandle", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaImportExternalMemory, "cudaImportExternalMemory", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaDestroyExternalMemory, "cudaDestroyExternalMemory", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaExternalMemoryGetMappedBuffer, "cudaExternalMemoryGetMappedBuffer", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaExternalMemoryGetMappedMipmappedArray, "cudaExternalMemoryGetMappedMipmappedArray", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphCreate, "cudaGraphCreate", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphClone, "cudaGraphClone", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphDestroy, "cudaGraphDestroy", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphAddMemAllocNode, "cudaGraphAddMemAllocNode", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphAddMemFreeNode, "cudaGraphAddMemFreeNode", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphAddNode, "cudaGraphAddNode", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphInstantiate, "cudaGraphInstantiate", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphInstantiateWithFlags, "cudaGraphInstantiateWithFlags", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphInstantiateWithParams, "cudaGraphInstantiateWithParams", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaGraphInstantiateWithParams_ptsz, "cudaGraphInstantiateWithParams", 0, kPerThread, kRuntime, runtime::Named) \
  H(cudaGraphExecDestroy, "cudaGraphExecDestroy", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaDeviceGraphMemTrim, "cudaDeviceGraphMemTrim", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaDeviceReset, "cudaDeviceReset", 0, kLegacy, kRuntime, runtime::DeviceReset) \
  H(cudaStreamCreate, "cudaStreamCreate", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaStreamCreateWithFlags, "cudaStreamCreateWithFlags", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaStreamCreateWithPriority, "cudaStreamCreateWithPriority", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaStreamDestroy, "cudaStreamDestroy", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaEventCreate, "cudaEventCreate", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaEventCreateWithFlags, "cudaEventCreateWithFlags", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaEventDestroy, "cudaEventDestroy", 0, kLegacy, kRuntime, runtime::Named) \
  H(cudaLibraryLoadData, "cudaLibraryLoadData", 0, kLegacy, kRuntime, runtime::NamedWide) \
  H(cudaLibraryLoadFromFile, "cudaLibraryLoadFromFile", 0, kLegacy, kRuntime, runtime::NamedWide) \
  H(cudaLibraryUnload, "cudaLibraryUnload", 0, kLegacy, kRuntime, runtime::Named)

// Handles of other libraries: every one costs device memory, so their creation is an event of its own.
#define GPUMEMTRACE_LIBRARY_HOOKS(H) \
  H(cublasCreate_v2, "cublasCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cublasDestroy_v2, "cublasDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cublasLtCreate, "cublasLtCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cublasLtDestroy, "cublasLtDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cublasXtCreate, "cublasXtCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cublasXtDestroy, "cublasXtDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cudnnCreate, "cudnnCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cudnnDestroy, "cudnnDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cusparseCreate, "cusparseCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cusparseDestroy, "cusparseDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cusparseLtInit, "cusparseLtInit", 0, kLegacy, kLibrary, libraries::CreateInPlace) \
  H(cusparseLtDestroy, "cusparseLtDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cusolverDnCreate, "cusolverDnCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cusolverDnDestroy, "cusolverDnDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cusolverSpCreate, "cusolverSpCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cusolverSpDestroy, "cusolverSpDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cusolverRfCreate, "cusolverRfCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cusolverRfDestroy, "cusolverRfDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cusolverMgCreate, "cusolverMgCreate", 0, kLegacy, kLibrary, libraries::Create) \
  H(cusolverMgDestroy, "cusolverMgDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(curandCreateGenerator, "curandCreateGenerator", 0, kLegacy, kLibrary, libraries::Create) \
  H(curandDestroyGenerator, "curandDestroyGenerator", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(cufftCreate, "cufftCreate", 0, kLegacy, kLibrary, libraries::CreatePlan) \
  H(cufftPlan1d, "cufftPlan1d", 0, kLegacy, kLibrary, libraries::CreatePlan) \
  H(cufftPlan2d, "cufftPlan2d", 0, kLegacy, kLibrary, libraries::CreatePlan) \
  H(cufftPlan3d, "cufftPlan3d", 0, kLegacy, kLibrary, libraries::CreatePlan) \
  H(cufftPlanMany, "cufftPlanMany", 0, kLegacy, kLibrary, libraries::CreatePlanMany) \
  H(cufftDestroy, "cufftDestroy", 0, kLegacy, kLibrary, libraries::DestroyPlan) \
  H(ncclCommInitAll, "ncclCommInitAll", 0, kLegacy, kLibrary, libraries::CommInitAll) \
  H(ncclCommInitRank, "ncclCommInitRank", 0, kLegacy, kLibrary, libraries::CommInitRank) \
  H(ncclCommInitRankConfig, "ncclCommInitRankConfig", 0, kLegacy, kLibrary, libraries::CommInitRankConfig) \
  H(ncclCommInitRankScalable, "ncclCommInitRankScalable", 0, kLegacy, kLibrary, libraries::CommInitRankScalable) \
  H(ncclCommSplit, "ncclCommSplit", 0, kLegacy, kLibrary, libraries::CommSplit) \
  H(ncclCommShrink, "ncclCommShrink", 0, kLegacy, kLibrary, libraries::CommShrink) \
  H(ncclCommDestroy, "ncclCommDestroy", 0, kLegacy, kLibrary, libraries::Destroy) \
  H(ncclCommAbort, "ncclCommAbort", 0, kLegacy, kLibrary, libraries::Destroy)

// PyTorch. Every spelling that a release exports (frameworks: 1.7 … 2.14); the last argument is a
// c10::Device, two int8_t in one register.
#define GPUMEMTRACE_TORCH_ALLOCATOR_HOOKS(H) \
  H(_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, "c10::reportMemoryUsageToProfiler", 0, kLegacy, kTorch, torch::ReportMemoryUsage) \
  H(_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE, "c10::reportMemoryUsageToProfiler", 0, kLegacy, kTorch, torch::ReportMemoryUsage) \
  H(_ZN3c1027reportMemoryUsageToProfilerEPvlNS_6DeviceE, "c10::reportMemoryUsageToProfiler", 0, kLegacy, kTorch, torch::ReportMemoryUsageWithoutTotals) \
  H(_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE, "c10::reportOutOfMemoryToProfiler", 0, kLegacy, kTorch, torch::ReportOutOfMemory) \
  H(_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE, "c10::reportOutOfMemoryToProfiler", 0, kLegacy, kTorch, torch::ReportOutOfMemory)

#define GPUMEMTRACE_TORCH_STREAM_HOOKS(H) \
  H(_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE, "c10::cuda::setCurrentCUDAStream", 0, kLegacy, kTorch, torch::SetCurrentStream)

#define GPUMEMTRACE_TORCH_AUTOGRAD_HOOKS(H) \
  H(_ZN2at15sequence_number17get_and_incrementEv, "at::sequence_number::get_and_increment", 0, kLegacy, kTorch, torch::NextSequenceNumber)

#define GPUMEMTRACE_ALL_HOOKS(H) \
  GPUMEMTRACE_DEVICE_MEMORY_HOOKS(H) \
  GPUMEMTRACE_HOST_MEMORY_HOOKS(H) \
  GPUMEMTRACE_STREAM_ORDERED_HOOKS(H) \
  GPUMEMTRACE_VIRTUAL_MEMORY_HOOKS(H) \
  GPUMEMTRACE_ARRAY_HOOKS(H) \
  GPUMEMTRACE_SHARING_HOOKS(H) \
  GPUMEMTRACE_GRAPH_HOOKS(H) \
  GPUMEMTRACE_CONTEXT_HOOKS(H) \
  GPUMEMTRACE_DRIVER_HANDLE_HOOKS(H) \
  GPUMEMTRACE_LAUNCH_HOOKS(H) \
  GPUMEMTRACE_RESOLVER_HOOKS(H) \
  GPUMEMTRACE_RUNTIME_HOOKS(H) \
  GPUMEMTRACE_LIBRARY_HOOKS(H) \
  GPUMEMTRACE_TORCH_ALLOCATOR_HOOKS(H) \
  GPUMEMTRACE_TORCH_STREAM_HOOKS(H) \
  GPUMEMTRACE_TORCH_AUTOGRAD_HOOKS(H)

#define GPUMEMTRACE_ALL_ALIASES(A) GPUMEMTRACE_GRAPH_ALIASES(A)

// Exported besides the hooks: the doors of the loader, the ends of the process, NVTX's injection point, our own API.
#define GPUMEMTRACE_OTHER_EXPORTS(E) \
  E(dlsym) \
  E(dlvsym) \
  E(dlopen) \
  E(dlmopen) \
  E(dlclose) \
  E(_exit) \
  E(_Exit) \
  E(quick_exit) \
  E(InitializeInjectionNvtx2) \
  E(gpumemtrace_mark) \
  E(gpumemtrace_step) \
  E(gpumemtrace_push) \
  E(gpumemtrace_pop) \
  E(gpumemtrace_census)
// clang-format on
