// Preloaded alone: counts the calls of the functions that the shim stands in front of in a training step of
// PyTorch, thread by thread together. hook_counts() is called through ctypes by
// tests/gpu/workloads/torch_steps.py. The originals are the next definitions in load order.
//   cc -shared -fPIC -O2 -o hook_counts.so hook_counts.c -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef unsigned long long word;
// Every argument of these functions is an integer or a pointer; those beyond the six registers are handed on,
// too.
typedef word (*function)(word, word, word, word, word, word, word, word, word, word, word, word);

#define FUNCTIONS(F)                                                                              \
  F(allocations_and_releases, _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE, "libc10.so") \
  F(autograd_nodes, _ZN2at15sequence_number17get_and_incrementEv, "libtorch_cpu.so")              \
  F(set_stream, _ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE, "libc10_cuda.so")           \
  F(runtime_launches, cudaLaunchKernel, "libcudart.so.13")                                        \
  F(runtime_launches_extended, cudaLaunchKernelExC, "libcudart.so.13")                            \
  F(memory_set, cudaMemsetAsync, "libcudart.so.13")                                               \
  F(event_create, cudaEventCreateWithFlags, "libcudart.so.13")

enum {
#define NUMBER(name, symbol, library) k_##name,
  FUNCTIONS(NUMBER) kFunctions
};
static word counts[kFunctions];
static function originals[kFunctions];

static function find(int number, const char* symbol, const char* library) {
  if (originals[number] == NULL) {
    void* found = dlsym(RTLD_NEXT, symbol);
    if (found == NULL) {
      void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
      if (handle == NULL) handle = dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
      if (handle != NULL) found = dlsym(handle, symbol);
    }
    originals[number] = (function)found;
  }
  return originals[number];
}

#define DEFINE(name, symbol, library)                                                                 \
  word symbol(word a, word b, word c, word d, word e, word f, word g, word h, word i, word j, word k, \
              word l) {                                                                               \
    __atomic_fetch_add(&counts[k_##name], 1, __ATOMIC_RELAXED);                                       \
    function original = find(k_##name, #symbol, library);                                             \
    return original == NULL ? 999 : original(a, b, c, d, e, f, g, h, i, j, k, l);                     \
  }
FUNCTIONS(DEFINE)

// A JSON object of all counts so far.
void hook_counts(char* text, size_t bytes) {
  size_t used = 0;
#define TELL(name, symbol, library)                                                                    \
  used += (size_t)snprintf(text + used, bytes - used, "%s\"%s\": %llu", used == 0 ? "{" : ", ", #name, \
                           counts[k_##name]);
  FUNCTIONS(TELL)
  snprintf(text + used, bytes - used, "}");
}
