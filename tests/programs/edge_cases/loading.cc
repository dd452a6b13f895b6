// dlopen in all its forms, dlsym with its pseudo-handles, look-ups that fail.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "tests/simulated_cuda/newest_cuda_runtime.h"

using namespace edge_cases;

namespace {

using Use = int (*)(int count);

int Call(void* library, int count) {
  if (library == nullptr) {
    printf("not loaded: %s\n", dlerror());
    return -1;
  }
  const auto use = reinterpret_cast<Use>(dlsym(library, "plugin_use"));
  return use != nullptr ? use(count) : -1;
}

}  // namespace

EDGE_CASE(dlopen_dlclose_loop) {
  int sum = 0;
  for (int i = 0; i < 200; ++i) {
    void* library = dlopen(g_plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    sum += Call(library, 3);
    if (library != nullptr) dlclose(library);
  }
  printf("sum %d\n", sum);
  return 0;
}

EDGE_CASE(dlopen_deepbind) {
  void* library = dlopen(g_plugin.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  printf("%d\n", Call(library, 5));
  return 0;
}

EDGE_CASE(dlmopen_new_namespace) {
  void* library = dlmopen(LM_ID_NEWLM, g_plugin.c_str(), RTLD_NOW);
  printf("%d\n", Call(library, 5));
  return 0;
}

EDGE_CASE(failing_lookups) {
  printf("%d", dlsym(RTLD_DEFAULT, "cuNoSuchFunction") == nullptr);
  const char* error = dlerror();
  printf(" %d", error != nullptr && strstr(error, "cuNoSuchFunction") != nullptr);
  printf(" %d", dlsym(RTLD_NEXT, "cudaNoSuchFunction") == nullptr);
  printf(" %d", dlopen("libno_such_library.so.9", RTLD_NOW) == nullptr);
  error = dlerror();
  printf(" %d", error != nullptr && strstr(error, "libno_such_library.so.9") != nullptr);
  printf(" %d\n", dlerror() == nullptr);
  return 0;
}

// The look-ups of a CUDA program by hand: handle, default, driver entry points.
EDGE_CASE(lookups_by_hand) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  void* runtime = dlopen("libcudart.so.13", RTLD_NOW);
  using Malloc = cudaError_t (*)(void**, size_t);
  const auto by_handle = reinterpret_cast<Malloc>(dlsym(runtime, "cudaMalloc"));
  const auto versioned = reinterpret_cast<Malloc>(dlvsym(runtime, "cudaMalloc", "libcudart.so.13"));
  void* p = nullptr;
  void* q = nullptr;
  printf("%d", by_handle(&p, 100) == cudaSuccess);
  printf(" %d", versioned != nullptr && versioned(&q, 200) == cudaSuccess);
  using DriverMalloc = int (*)(unsigned long long*, size_t);
  const auto direct = reinterpret_cast<DriverMalloc>(dlsym(driver, "cuMemAlloc_v2"));
  unsigned long long address = 0;
  printf(" %d", direct(&address, 300) == 0);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  printf(" %d", cudaGetDriverEntryPointByVersion("cuMemAlloc", &entry, 12000, cudaEnableDefault, &status) ==
                    cudaSuccess);
  printf(" %d", status == cudaDriverEntryPointSuccess && entry != nullptr);
  printf(" %d", reinterpret_cast<DriverMalloc>(entry)(&address, 400) == 0);
  printf(" %d", cudaGetDriverEntryPointByVersion("cuNonsense", &entry, 12000, cudaEnableDefault, &status) ==
                    cudaSuccess);
  printf(" %d %d\n", status == cudaDriverEntryPointSymbolNotFound, entry == nullptr);
  return 0;
}

// OpenMP's tool interface: a library looks for the next definition of its own function. A dlsym that loses
// the caller finds the caller itself, again and again.
extern "C" __attribute__((visibility("default"))) int ompt_start_tool(unsigned version, const char* text) {
  static int depth = 0;
  if (++depth > 3) {
    puts("looped");
    return depth;
  }
  const auto next = reinterpret_cast<int (*)(unsigned, const char*)>(dlsym(RTLD_NEXT, "ompt_start_tool"));
  return next != nullptr ? next(version, text) : 0;
}

EDGE_CASE(next_of_the_caller) {
  Release(Allocate(1));
  void* library = dlopen(g_plugin.c_str(), RTLD_NOW | RTLD_GLOBAL);
  const auto chained = reinterpret_cast<int (*)()>(dlsym(library, "plugin_next_of_itself"));
  printf("%d %d\n", ompt_start_tool(1, ""), chained());
  return 0;
}
