// libnccl.so.2: a communicator takes buffers by cudaMalloc and by cuMemCreate from its static runtime.
#include "newest_cuda.h"
#include "newest_cuda_runtime.h"

extern "C" {

struct ncclComm {
  void* buffer;
  void* pinned;
  CUmemGenericAllocationHandle physical;
  CUdeviceptr mapping;
};

namespace {

constexpr size_t kMapped = size_t{16} << 20;

struct VirtualMemory {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
};

VirtualMemory Load() {
  VirtualMemory v{};
  const auto get = [](const char* name, void* out) {
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion(name, static_cast<void**>(out), 12000, cudaEnableDefault, &found);
  };
  get("cuMemAddressReserve", &v.reserve);
  get("cuMemAddressFree", &v.free);
  get("cuMemCreate", &v.create);
  get("cuMemRelease", &v.release);
  get("cuMemMap", &v.map);
  get("cuMemUnmap", &v.unmap);
  return v;
}

}  // namespace

__attribute__((visibility("default"))) int ncclCommInitRank(ncclComm** out, int, const void*, int) {
  auto* comm = new ncclComm{};
  if (cudaMalloc(&comm->buffer, size_t{4} << 20) != cudaSuccess) return 1;
  if (cudaHostAlloc(&comm->pinned, 65536, 0) != cudaSuccess) return 1;
  const VirtualMemory v = Load();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  if (v.create(&comm->physical, kMapped, &properties, 0) != CUDA_SUCCESS) return 1;
  if (v.reserve(&comm->mapping, kMapped, 0, 0, 0) != CUDA_SUCCESS) return 1;
  v.map(comm->mapping, kMapped, 0, comm->physical, 0);
  *out = comm;
  return 0;
}

__attribute__((visibility("default"))) int ncclCommDestroy(ncclComm* comm) {
  const VirtualMemory v = Load();
  // The reference goes first: the mapping alone keeps the memory for a moment.
  v.release(comm->physical);
  v.unmap(comm->mapping, kMapped);
  v.free(comm->mapping, kMapped);
  cudaFree(comm->buffer);
  cudaFreeHost(comm->pinned);
  delete comm;
  return 0;
}

}  // extern "C"
