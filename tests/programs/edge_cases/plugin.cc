// A library that is opened and closed, and allocates through its own runtime.
#include <dlfcn.h>

#include "tests/simulated_cuda/newest_cuda_runtime.h"

extern "C" {

__attribute__((visibility("default"))) int plugin_use(int count) {
  int good = 0;
  for (int i = 0; i < count; ++i) {
    void* p = nullptr;
    good += cudaMalloc(&p, 600 + static_cast<size_t>(i)) == cudaSuccess;
    if (i != 0) good += cudaFree(p) == cudaSuccess;
  }
  return good;
}

// Asks for the next definition of itself after this library: there is none.
__attribute__((visibility("default"))) int plugin_next_of_itself() {
  void* next = dlsym(RTLD_NEXT, "plugin_next_of_itself");
  return next == nullptr ? 1 : next == reinterpret_cast<void*>(&plugin_next_of_itself) ? -1 : 2;
}

}  // extern "C"
