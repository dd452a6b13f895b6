// A process that never touches CUDA: it must see what it would see without the shim.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <dirent.h>

extern "C" {
__attribute__((weak)) int cuInit(unsigned);
__attribute__((weak)) int cudaGetDeviceCount(int*);
}

int main() {
  int tasks = 0;
  if (DIR* folder = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(folder)) tasks += entry->d_name[0] != '.';
    closedir(folder);
  }
  printf("%d thread\n", tasks);
  printf("dlopen libcuda.so.1: %d\n", dlopen("libcuda.so.1", RTLD_NOW) != nullptr);
  // A weak reference is null, or what it leads to says that there is no driver.
  const int result = cuInit != nullptr ? cuInit(0) : 100;
  printf("no driver: %d\n", result != 0);
  printf("missing: %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == nullptr);
  return 0;
}
