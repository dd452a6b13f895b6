// cuda.h, and what toolkits newer than its own brought: the simulated driver offers the functions of
// CUDA 13.0 whatever headers it is built with, from 11.8 on (Debian 12 has those, Ubuntu 24.04 has 12.0).
// Names, values and layouts are the toolkit's; the version at each part is that of the first cuda.h that has
// them. Of a structure that is only passed on by its address nothing but the name is here.
//
// To be included instead of <cuda.h>. A file that wants every ABI of a function under its exported name
// defines __CUDA_API_VERSION_INTERNAL before.
#pragma once

#include <cuda.h>

extern "C" {

#if CUDA_VERSION < 12000
enum CUdriverProcAddressQueryResult {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};
CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status);

using CUlibrary = struct CUlib_st*;
enum CUlibraryOption : unsigned;
CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                           unsigned count, CUlibraryOption* library_options, void** library_values,
                           unsigned library_count);
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* file, CUjit_option* options, void** values,
                               unsigned count, CUlibraryOption* library_options, void** library_values,
                               unsigned library_count);
CUresult cuLibraryUnload(CUlibrary library);

enum CUgraphInstantiateResult { CUDA_GRAPH_INSTANTIATE_SUCCESS = 0 };
struct CUDA_GRAPH_INSTANTIATE_PARAMS {
  cuuint64_t flags;
  CUstream hUploadStream;
  CUgraphNode hErrNode_out;
  CUgraphInstantiateResult result_out;
};
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters);
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* parameters);
#endif

#if CUDA_VERSION < 12010
struct CUmulticastObjectProp;
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* properties);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                            CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                            unsigned long long flags);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address,
                             size_t size, unsigned long long flags);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset, size_t size);
#endif

#if CUDA_VERSION < 12020
struct CUDA_MEM_FREE_NODE_PARAMS {
  CUdeviceptr dptr;
};
// The kinds of nodes that the simulated driver knows; the padding gives the size.
struct CUgraphNodeParams {
  CUgraphNodeType type;
  int reserved0[3];
  union {
    long long reserved1[29];
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUDA_MEM_FREE_NODE_PARAMS free;
  };
  long long reserved2;
};
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                        CUgraphNodeParams* parameters);
#endif

#if CUDA_VERSION < 12030
struct CUgraphEdgeData;
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                           const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* parameters);
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* after,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode);
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* after,
                                          const CUgraphEdgeData* edges, size_t count,
                                          CUstreamCaptureMode mode);
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after, const CUgraphEdgeData** edges,
                                   size_t* count);
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                        CUgraph* graph, const CUgraphNode** after,
                                        const CUgraphEdgeData** edges, size_t* count);
#endif

#if CUDA_VERSION < 12040
using CUgreenCtx = struct CUgreenCtx_st*;
using CUdevResourceDesc = struct CUdevResourceDesc_st*;
CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc resources, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreenCtx context);
#endif

#if CUDA_VERSION < 12050
struct CUctxCreateParams;
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags, CUdevice device);
#endif

#if CUDA_VERSION < 13000
CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type);
CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type);
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool);
#endif

}  // extern "C"

// The same with every toolkit, be it that it has the structure or that we do.
static_assert(sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS) == 32);
static_assert(sizeof(CUgraphNodeParams) == 256);
