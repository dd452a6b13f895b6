// Allocations before main and after it.
#include <stdio.h>
#include <stdlib.h>

#include "tests/simulated_cuda/newest_cuda_runtime.h"

namespace {

struct Global {
  void* pointer = nullptr;
  Global() {
    cudaMalloc(&pointer, 12345);
    atexit([] {
      void* late = nullptr;
      printf("in an exit handler: %d\n", static_cast<int>(cudaMalloc(&late, 321)));
    });
  }
  ~Global() {
    printf("in a destructor: %d\n", static_cast<int>(cudaFree(pointer)));
    void* later = nullptr;
    printf("after main: %d\n", static_cast<int>(cudaMalloc(&later, 4321)));
  }
};

Global g_global;

}  // namespace

__attribute__((constructor(101))) static void BeforeAll() {
  void* early = nullptr;
  printf("in a constructor: %d\n", static_cast<int>(cudaMalloc(&early, 999)));
}

int main() {
  puts("main");
  return 3;
}
