// What a test can ask the simulated driver: every live allocation, device use, and how often each function
// was called. Exported by the stand-in libcuda.so.1; also readable from outside the process through the
// ledger file named by SIMULATED_CUDA_LEDGER (see ledger.h for its layout).
//
// Environment variables, read once at the first call:
//   SIMULATED_CUDA_DEVICES        number of devices, default 1
//   SIMULATED_CUDA_DEVICE_BYTES   memory of each device, default 8 GiB
//   SIMULATED_CUDA_CONTEXT_BYTES  what a context takes, default 256 MiB
//   SIMULATED_CUDA_LEDGER         file for the ledger; %p becomes the process id
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct SimulatedCudaAllocation {
  uint64_t address;  // or a handle, for physical memory and arrays
  uint64_t size;     // bytes as requested
  int32_t device;    // -1 = host
  uint32_t kind;     // SimulatedCudaKind
  char api[48];      // exported driver function that made it
};

enum SimulatedCudaKind {
  SIMULATED_CUDA_DEVICE = 1,
  SIMULATED_CUDA_MANAGED = 2,
  SIMULATED_CUDA_PINNED = 3,
  SIMULATED_CUDA_REGISTERED = 4,
  SIMULATED_CUDA_POOL = 5,
  SIMULATED_CUDA_PHYSICAL = 6,
  SIMULATED_CUDA_ARRAY = 7,
  SIMULATED_CUDA_GRAPH = 8,
  SIMULATED_CUDA_ALIAS = 9,
};

#define SIMULATED_CUDA_API __attribute__((visibility("default")))

// Copies up to `capacity` live allocations and returns how many there are.
SIMULATED_CUDA_API size_t simulatedCudaLive(struct SimulatedCudaAllocation* out, size_t capacity);
// Bytes in use on a device, contexts and pools' reserves included.
SIMULATED_CUDA_API uint64_t simulatedCudaUsed(int device);
// Calls of an exported driver function since the process started.
SIMULATED_CUDA_API uint64_t simulatedCudaCalls(const char* function);
// While held, recorded events are not complete: what record_stream() delays stays delayed.
SIMULATED_CUDA_API void simulatedCudaHoldEvents(int hold);
// One line per live allocation on a file descriptor.
SIMULATED_CUDA_API void simulatedCudaDump(int descriptor);

#ifdef __cplusplus
}
#endif
