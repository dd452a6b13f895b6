// cuda_runtime_api.h as CUDA 13.0 has it, whatever headers we are built with, from 11.8 on: what 12 changed
// or brought, for the simulated runtime and for the programs that run on it. To be included instead of
// <cuda_runtime_api.h>, and without __CUDA_API_VERSION_INTERNAL.
#pragma once

#include <cuda.h>

#if CUDA_VERSION < 12000
#ifdef __CUDA_RUNTIME_API_H__
#error "newest_cuda_runtime.h must come before cuda_runtime_api.h"
#endif
// 12.0 gave both functions other parameters under the same symbol. What the older header says of them is read
// under names that nobody uses.
#define cudaGraphInstantiate cudaGraphInstantiate_before_12
#define cudaGetDriverEntryPoint cudaGetDriverEntryPoint_before_12
#include <cuda_runtime_api.h>
#undef cudaGraphInstantiate
#undef cudaGetDriverEntryPoint

enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
  cudaDriverEntryPointVersionNotSufficent = 2,  // spelled so by the toolkit
};

extern "C" {
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status = nullptr);
}  // extern "C"
#else
#include <cuda_runtime_api.h>
#endif

#if CUDART_VERSION < 12050
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                        unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* status = nullptr);
#endif
