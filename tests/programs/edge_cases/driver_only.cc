// Linked with libcuda itself: no runtime in the process.
#include <stdio.h>

#define __CUDA_API_VERSION_INTERNAL
#include "tests/simulated_cuda/newest_cuda.h"

int main() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  printf("%d", cuInit(0));
  printf(" %d", cuDeviceGet(&device, 0));
  printf(" %d", cuCtxCreate_v2(&context, 0, device));
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
  CUdeviceptr_v1 old = 0;
  printf(" %d", cuMemAlloc_v2(&p, 3000));
  printf(" %d", cuMemAlloc_v2(&q, 4000));
  printf(" %d", cuMemAlloc(&old, 100));
  printf(" %d", cuMemFree(old));
  printf(" %d\n", cuMemFree_v2(q));

  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  constexpr size_t kUnit = size_t{2} << 20;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handles[3];
  printf("%d", cuMemAddressReserve(&range, 8 * kUnit, 0, 0, 0));
  for (int i = 0; i < 3; ++i) {
    printf(" %d", cuMemCreate(&handles[i], kUnit, &properties, 0));
    printf(" %d", cuMemMap(range + static_cast<CUdeviceptr>(i) * kUnit, kUnit, 0, handles[i], 0));
    printf(" %d", cuMemRelease(handles[i]));
  }
  // One stays mapped, one is gone, one is kept by a reference alone.
  CUmemGenericAllocationHandle again = 0;
  printf(" %d", cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range + 2 * kUnit)));
  printf(" %d\n", cuMemUnmap(range + kUnit, 2 * kUnit));

  // A second context and what dies with it.
  CUcontext other = nullptr;
  printf("%d", cuCtxCreate_v2(&other, 0, device));
  printf(" %d", cuMemAlloc_v2(&q, 5000));
  printf(" %d\n", cuCtxDestroy_v2(other));
  return 0;
}
