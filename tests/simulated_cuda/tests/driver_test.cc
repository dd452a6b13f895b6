// The simulated driver itself: reference counts, pools, graph memory, version resolution, accounting.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "driver/simulated_cuda.h"

#define __CUDA_API_VERSION_INTERNAL
#include "newest_cuda.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxCreate_v2(&context_, 0, 0), CUDA_SUCCESS);
    used_ = simulatedCudaUsed(0);
    live_ = simulatedCudaLive(nullptr, 0);
  }
  void TearDown() override { EXPECT_EQ(cuCtxDestroy_v2(context_), CUDA_SUCCESS); }
  uint64_t Grown() const { return simulatedCudaUsed(0) - used_; }
  size_t NewLive() const { return simulatedCudaLive(nullptr, 0) - live_; }

  CUcontext context_ = nullptr;
  uint64_t used_ = 0;
  size_t live_ = 0;
};

CUmemAllocationProp OnDevice() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return properties;
}

TEST_F(DriverTest, AccountsDeviceMemoryExactly) {
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  ASSERT_EQ(cuMemAlloc_v2(&a, 1000), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc_v2(&b, 5 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 1024 + 5 * kMiB);
  ASSERT_EQ(NewLive(), 2u);
  std::vector<SimulatedCudaAllocation> live(live_ + 2);
  simulatedCudaLive(live.data(), live.size());
  bool found = false;
  for (const auto& allocation : live) {
    if (allocation.address != a) continue;
    found = true;
    EXPECT_EQ(allocation.size, 1000u);
    EXPECT_STREQ(allocation.api, "cuMemAlloc_v2");
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(cuMemFree_v2(a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(b), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 0u);
  EXPECT_EQ(NewLive(), 0u);
}

TEST_F(DriverTest, AFreedAddressIsGivenOutAgain) {
  CUdeviceptr a = 0;
  CUdeviceptr b = 0;
  ASSERT_EQ(cuMemAlloc_v2(&a, 4096), CUDA_SUCCESS);
  cuMemFree_v2(a);
  ASSERT_EQ(cuMemAlloc_v2(&b, 4096), CUDA_SUCCESS);
  EXPECT_EQ(a, b);
  cuMemFree_v2(b);
}

TEST_F(DriverTest, RefusesWhatDoesNotFit) {
  CUdeviceptr a = 0xdead;
  EXPECT_EQ(cuMemAlloc_v2(&a, size_t{1} << 40), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&a, ~size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(a, 0xdeadu);
  EXPECT_EQ(Grown(), 0u);
}

TEST_F(DriverTest, TheFirstAbiHasAddressesOf32Bits) {
  CUdeviceptr_v1 a = 0;
  ASSERT_EQ(cuMemAlloc(&a, 100), CUDA_SUCCESS);
  EXPECT_NE(a, 0u);
  EXPECT_EQ(cuMemFree(a), CUDA_SUCCESS);
}

TEST_F(DriverTest, PhysicalMemoryDiesWithItsLastReferenceAndMapping) {
  const CUmemAllocationProp properties = OnDevice();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  ASSERT_EQ(cuMemCreate(&handle, 4 * kMiB, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 4 * kMiB);
  ASSERT_EQ(cuMemAddressReserve(&range, 16 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 4 * kMiB) << "a reserved range is not memory";
  ASSERT_EQ(cuMemMap(range, 4 * kMiB, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(range + 8 * kMiB, 2 * kMiB, 2 * kMiB, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 4 * kMiB) << "mappings keep it";
  EXPECT_EQ(cuMemMap(range + 12 * kMiB, 2 * kMiB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range + kMiB)), CUDA_SUCCESS);
  EXPECT_EQ(again, handle);
  EXPECT_EQ(cuMemUnmap(range, 2 * kMiB), CUDA_ERROR_INVALID_VALUE) << "only whole mappings";
  ASSERT_EQ(cuMemUnmap(range, 4 * kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(range + 8 * kMiB, 2 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 4 * kMiB) << "the retained reference keeps it";
  ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 0u);
  EXPECT_EQ(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(range, 16 * kMiB), CUDA_SUCCESS);
}

TEST_F(DriverTest, PoolsKeepMemoryUntilASynchronization) {
  CUdeviceptr a = 0;
  ASSERT_EQ(cuMemAllocAsync(&a, kMiB, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 32 * kMiB);
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  cuuint64_t used = 0;
  ASSERT_EQ(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), CUDA_SUCCESS);
  EXPECT_EQ(used, kMiB);
  ASSERT_EQ(cuMemFreeAsync(a, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 32 * kMiB);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 0u);
}

TEST_F(DriverTest, ADestroyedPoolLivesUntilItsLastAllocation) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  CUdeviceptr a = 0;
  ASSERT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&a, 100, pool, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(NewLive(), 1u);
  CUdeviceptr b = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&b, 100, pool, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemFree_v2(a), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 0u);
}

TEST_F(DriverTest, CapturedAllocationsAreNodesAndLiveOnLaunch) {
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr kept = 0;
  CUdeviceptr temporary = 0;
  ASSERT_EQ(cuMemAllocAsync(&kept, 3 * kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&temporary, kMiB, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeAsync(temporary, stream), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  EXPECT_EQ(NewLive(), 0u);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH),
            CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
  EXPECT_EQ(NewLive(), 1u);
  EXPECT_EQ(Grown(), 4 * kMiB);
  ASSERT_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS) << "leftovers are freed on launch";
  EXPECT_EQ(NewLive(), 1u);
  ASSERT_EQ(cuMemFreeAsync(kept, stream), CUDA_SUCCESS);
  EXPECT_EQ(NewLive(), 0u);
  EXPECT_EQ(Grown(), 4 * kMiB) << "the graph pool keeps its memory";
  ASSERT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(Grown(), 0u);
  CUgraphExec strict = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&strict, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(strict, stream), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(strict, stream), CUDA_ERROR_INVALID_VALUE);
  cuMemFree_v2(kept);
  cuDeviceGraphMemTrim(0);
  cuGraphExecDestroy(exec);
  cuGraphExecDestroy(strict);
  cuGraphDestroy(graph);
  cuStreamDestroy_v2(stream);
}

TEST_F(DriverTest, ADyingContextFreesItsOwnOnly) {
  CUcontext other = nullptr;
  const uint64_t before = simulatedCudaUsed(0);
  ASSERT_EQ(cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
  CUdeviceptr plain = 0;
  void* pinned = nullptr;
  const CUmemAllocationProp properties = OnDevice();
  CUmemGenericAllocationHandle physical = 0;
  ASSERT_EQ(cuMemAlloc_v2(&plain, kMiB), CUDA_SUCCESS);
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&physical, 2 * kMiB, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy_v2(other), CUDA_SUCCESS);
  EXPECT_EQ(NewLive(), 1u);
  EXPECT_EQ(simulatedCudaUsed(0) - before, 2 * kMiB);
  EXPECT_EQ(cuMemRelease(physical), CUDA_SUCCESS);
}

TEST_F(DriverTest, VersionAndFlagSelectTheFunction) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status;
  ASSERT_EQ(cuGetProcAddress_v2("cuMemAlloc", &function, 2000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAlloc));
  ASSERT_EQ(cuGetProcAddress_v2("cuMemAlloc", &function, 13000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAlloc_v2));
  ASSERT_EQ(cuGetProcAddress_v2("cuMemAllocAsync", &function, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAllocAsync));
  ASSERT_EQ(cuGetProcAddress_v2("cuMemAllocAsync", &function, 12000, 2, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAllocAsync_ptsz));
  ASSERT_EQ(cuGetProcAddress_v2("cuMemAllocAsync", &function, 11000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  ASSERT_EQ(cuGetProcAddress_v2("", &function, 0, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(cuGetProcAddress("nonsense", &function, 13000, 0), CUDA_ERROR_NOT_FOUND);
}

TEST_F(DriverTest, AForkedChildIsRefused) {
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr a = 0;
    const bool refused =
        cuMemAlloc_v2(&a, 100) == CUDA_ERROR_NOT_INITIALIZED && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
