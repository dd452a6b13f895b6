// edge_cases <plug-in> <case> [arguments]; without a case: the list of them.
#include <stdio.h>
#include <stdlib.h>

#include "cases.h"
#include "tests/simulated_cuda/newest_cuda_runtime.h"

namespace edge_cases {

std::string g_plugin;

std::vector<Case>& Cases() {
  static auto* const cases = new std::vector<Case>;
  return *cases;
}

void* Allocate(size_t size) {
  void* pointer = nullptr;
  if (const cudaError_t error = cudaMalloc(&pointer, size); error != cudaSuccess) {
    printf("cudaMalloc failed: %d\n", static_cast<int>(error));
    abort();
  }
  return pointer;
}

void Release(void* pointer) {
  if (const cudaError_t error = cudaFree(pointer); error != cudaSuccess) {
    printf("cudaFree failed: %d\n", static_cast<int>(error));
    abort();
  }
}

}  // namespace edge_cases

int main(int argc, char** argv) {
  if (argc < 3) {
    for (const auto& c : edge_cases::Cases()) puts(c.name);
    return 0;
  }
  edge_cases::g_plugin = argv[1];
  const std::vector<std::string> arguments(argv + 3, argv + argc);
  for (const auto& c : edge_cases::Cases()) {
    if (std::string(c.name) == argv[2]) return c.run(arguments);
  }
  fprintf(stderr, "no such case: %s\n", argv[2]);
  return 64;
}
