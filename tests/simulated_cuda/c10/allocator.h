// The caching allocator: what libc10_cuda.so offers to the rest of the simulated torch.
#pragma once

#include <stdexcept>
#include <string>

#include "cuda_stream.h"

namespace c10::cuda::allocator {

struct OutOfMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Statistics {
  size_t allocated, allocated_peak;
  size_t reserved, reserved_peak;
  size_t requested;
  uint64_t segments;
  uint64_t out_of_memory;
  uint64_t retries;
};

// Memory on `device`, for use on its current stream. Null for nothing. Throws OutOfMemoryError.
C10_API void* Allocate(int device, size_t size);
C10_API void Free(void* pointer);
// The block is also used on `stream`: it cannot be reused before work queued there is done.
C10_API void RecordStream(void* pointer, int64_t stream);
C10_API void EmptyCache();
C10_API Statistics GetStatistics(int device);
C10_API void ResetPeak(int device);
// While a graph is captured, allocations on `stream` come from the private pool `pool`.
C10_API void BeginPrivatePool(int device, uint64_t pool, int64_t stream);
C10_API void EndPrivatePool(int device, uint64_t pool);
// Nobody refers to the pool any more: its free segments may be given back.
C10_API void ReleasePrivatePool(int device, uint64_t pool);
// "native", "cudaMallocAsync" or "none".
C10_API const char* BackendName();

}  // namespace c10::cuda::allocator
