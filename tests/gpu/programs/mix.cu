// A CUDA C++ program that keeps its own exact ledger of what it has, and writes it to argv[1].<pid>.json.
// Built three ways by acceptance.py: the CUDA runtime linked statically, the shared one, and (-DDRIVER_ONLY) none.
#include <cuda.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unistd.h>
#include <vector>

#ifndef DRIVER_ONLY
#include <cuda_runtime.h>
#endif

struct Ledger {
  std::uint64_t now = 0, peak = 0, allocations = 0, total = 0;
  void add(std::uint64_t bytes) {
    now += bytes;
    total += bytes;
    ++allocations;
    if (now > peak) peak = now;
  }
  void remove(std::uint64_t bytes) { now -= bytes; }
};
static Ledger device, managed, pinned, stream_ordered, physical;

#define CHECK(call)                                                          \
  do {                                                                       \
    auto result = (call);                                                    \
    if (result != decltype(result){}) {                                      \
      std::fprintf(stderr, "%s failed: %d\n", #call, static_cast<int>(result)); \
      std::exit(3);                                                          \
    }                                                                        \
  } while (0)

static unsigned next_random() {
  static std::uint32_t state = 12345;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static void virtual_memory(int ordinal) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = ordinal;
  std::size_t granularity = 0;
  CHECK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const std::size_t bytes = granularity * 3;
  for (int i = 0; i < 4; ++i) {
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle{};
    CHECK(cuMemAddressReserve(&address, bytes * 2, 0, 0, 0));
    CHECK(cuMemCreate(&handle, bytes, &prop, 0));
    physical.add(bytes);
    CHECK(cuMemMap(address, bytes, 0, handle, 0));
    CUmemAccessDesc access{};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CHECK(cuMemSetAccess(address, bytes, &access, 1));
    CHECK(cuMemsetD8(address, 1, bytes));
    CHECK(cuCtxSynchronize());  // the fill does not wait, and neither does the unmapping
    CHECK(cuMemRelease(handle));  // the mapping keeps the memory
    if (i < 3) {
      CHECK(cuMemUnmap(address, bytes));
      CHECK(cuMemAddressFree(address, bytes * 2));
      physical.remove(bytes);
    }
  }
}

#ifdef DRIVER_ONLY
static void plain() {
  std::vector<std::pair<CUdeviceptr, std::size_t>> live;
  for (int i = 0; i < 300; ++i) {
    if (!live.empty() && next_random() % 2) {
      std::size_t at = next_random() % live.size();
      CHECK(cuMemFree(live[at].first));
      device.remove(live[at].second);
      live.erase(live.begin() + static_cast<long>(at));
    } else {
      std::size_t bytes = 1 + next_random() % (4u << 20);
      CUdeviceptr p = 0;
      CHECK(cuMemAlloc(&p, bytes));
      device.add(bytes);
      live.emplace_back(p, bytes);
    }
  }
  CUdeviceptr p = 0;
  CHECK(cuMemAllocManaged(&p, 5 << 20, CU_MEM_ATTACH_GLOBAL));
  managed.add(5 << 20);
  CHECK(cuMemFree(p));
  managed.remove(5 << 20);
  void* host = nullptr;
  CHECK(cuMemHostAlloc(&host, 3 << 20, 0));
  pinned.add(3 << 20);
  CHECK(cuMemAllocHost(&host, 1 << 20));
  pinned.add(1 << 20);
  CHECK(cuMemFreeHost(host));
  pinned.remove(1 << 20);
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 20; ++i) {
    CHECK(cuMemAllocAsync(&p, 1 << 20, stream));
    stream_ordered.add(1 << 20);
    if (i % 2) {
      CHECK(cuMemFreeAsync(p, stream));
      stream_ordered.remove(1 << 20);
    }
  }
  CHECK(cuStreamSynchronize(stream));
}
#else
static void plain() {
  std::vector<std::pair<void*, std::size_t>> live;
  for (int i = 0; i < 300; ++i) {
    if (!live.empty() && next_random() % 2) {
      std::size_t at = next_random() % live.size();
      CHECK(cudaFree(live[at].first));
      device.remove(live[at].second);
      live.erase(live.begin() + static_cast<long>(at));
    } else {
      std::size_t bytes = 1 + next_random() % (4u << 20);
      void* p = nullptr;
      CHECK(cudaMalloc(&p, bytes));
      device.add(bytes);
      live.emplace_back(p, bytes);
    }
  }
  void* p = nullptr;
  CHECK(cudaMallocManaged(&p, 5 << 20));
  managed.add(5 << 20);
  CHECK(cudaFree(p));
  managed.remove(5 << 20);
  void* host = nullptr;
  CHECK(cudaHostAlloc(&host, 3 << 20, cudaHostAllocDefault));
  pinned.add(3 << 20);
  CHECK(cudaMallocHost(&host, 1 << 20));
  pinned.add(1 << 20);
  CHECK(cudaFreeHost(host));
  pinned.remove(1 << 20);
  cudaStream_t stream{};
  CHECK(cudaStreamCreate(&stream));
  for (int i = 0; i < 20; ++i) {
    CHECK(cudaMallocAsync(&p, 1 << 20, stream));
    stream_ordered.add(1 << 20);
    if (i % 2) {
      CHECK(cudaFreeAsync(p, stream));
      stream_ordered.remove(1 << 20);
    }
  }
  CHECK(cudaStreamSynchronize(stream));
}
#endif

int main(int argc, char** argv) {
  CHECK(cuInit(0));
  CUdevice ordinal{};
  CHECK(cuDeviceGet(&ordinal, 0));
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, ordinal));
  CHECK(cuCtxSetCurrent(context));
  plain();
  virtual_memory(ordinal);
  const std::string name = argc > 1 ? std::string(argv[1]) + "." + std::to_string(getpid()) + ".json" : "";
  std::FILE* out = argc > 1 ? std::fopen(name.c_str(), "w") : stdout;
  const char* names[] = {"device", "managed", "pinned", "stream_ordered", "physical"};
  const Ledger* ledgers[] = {&device, &managed, &pinned, &stream_ordered, &physical};
  std::fputc('{', out);
  for (int i = 0; i < 5; ++i) {
    std::fprintf(out, "%s\"%s\": {\"live\": %llu, \"peak\": %llu, \"allocations\": %llu, \"total\": %llu}", i ? ", " : "", names[i],
                 static_cast<unsigned long long>(ledgers[i]->now), static_cast<unsigned long long>(ledgers[i]->peak),
                 static_cast<unsigned long long>(ledgers[i]->allocations), static_cast<unsigned long long>(ledgers[i]->total));
  }
  std::fputs("}\n", out);
  if (out != stdout) std::fclose(out);
  std::printf("live %llu\n", static_cast<unsigned long long>(device.now));
  return 7;  // an exit code of its own, to see that it stays
}
