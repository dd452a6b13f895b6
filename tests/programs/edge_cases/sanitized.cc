// A program that was built with a sanitizer of its own, as people do to their CUDA extensions. The
// sanitizer's first act is to look up libc's functions with dlsym, before any constructor and before its own
// interceptors work.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/simulated_cuda/newest_cuda_runtime.h"

int main() {
  char* text = new char[16];
  std::strcpy(text, "sanitized");
  void* memory = nullptr;
  std::thread thread([&] { std::printf("%s %d\n", text, static_cast<int>(cudaMalloc(&memory, 12345))); });
  thread.join();
  std::printf("found %d\n", dlsym(RTLD_DEFAULT, "strcmp") != nullptr);
  delete[] text;
  return 5;
}
