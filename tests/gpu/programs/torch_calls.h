// What the preloads here stand in front of: functions of PyTorch that the shim hooks, as their callers see
// them (c10/core/Allocator.h, ATen/SequenceNumber.h, c10/cuda/CUDAStream.h of PyTorch 2.11), and how the next
// definition is found.
#pragma once

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#define REPORT_SYMBOL "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
#define NEXT_SYMBOL "_ZN2at15sequence_number17get_and_incrementEv"
#define SET_STREAM_SYMBOL "_ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE"

// c10::cuda::CUDAStream: two registers.
typedef struct {
  int64_t device;
  int64_t id;
} Stream;
// c10::Device: its type in the low byte, its index above.
typedef void Report(void* pointer, int64_t size, uint64_t allocated, uint64_t reserved, uint16_t device);
typedef uint64_t Next(void);
typedef void SetStream(Stream stream);

Report report __asm__(REPORT_SYMBOL);
Next next __asm__(NEXT_SYMBOL);
SetStream set_stream __asm__(SET_STREAM_SYMBOL);

// The library's own definition; PyTorch's libraries are not in the global scope.
static inline void* find_in(const char* library, const char* symbol) {
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return handle != NULL ? dlsym(handle, symbol) : NULL;
}

// The definition behind this preload: the shim's, where there is one.
static inline void* find_next(const char* library, const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  return found != NULL ? found : find_in(library, symbol);
}
