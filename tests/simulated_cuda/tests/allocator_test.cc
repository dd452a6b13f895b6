// The caching allocator's rules (rounding, segments, best fit, splitting, merging, retry, expandable
// segments) as this process's settings have them; ctest runs the file once per setting.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "c10/allocator.h"
#include "c10/settings.h"
#include "driver/simulated_cuda.h"

namespace {

using namespace c10::cuda::allocator;

constexpr size_t kMiB = size_t{1} << 20;

// Bytes of live driver allocations made by the given function.
uint64_t LiveBytes(const char* api) {
  std::vector<SimulatedCudaAllocation> live(simulatedCudaLive(nullptr, 0));
  simulatedCudaLive(live.data(), live.size());
  uint64_t sum = 0;
  for (const auto& a : live) sum += strcmp(a.api, api) == 0 ? a.size : 0;
  return sum;
}

uint64_t SegmentBytes() {
  return LiveBytes("cuMemAlloc_v2") + LiveBytes("cuMemCreate");
}

bool Expandable() {
  return GetSettings().expandable_segments;
}
bool Default() {
  return getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr;
}

class AllocatorTest : public testing::Test {
 protected:
  void SetUp() override {
    EmptyCache();
    ASSERT_EQ(GetStatistics(0).allocated, 0u);
    ASSERT_EQ(GetStatistics(0).reserved, 0u);
    ASSERT_EQ(SegmentBytes(), 0u);
  }
};

TEST_F(AllocatorTest, RoundsToBlocks) {
  if (!Default()) GTEST_SKIP();
  void* p = Allocate(0, 1);
  EXPECT_EQ(GetStatistics(0).allocated, 512u);
  void* q = Allocate(0, 513);
  EXPECT_EQ(GetStatistics(0).allocated, 512u + 1024u);
  Free(p);
  Free(q);
}

TEST_F(AllocatorTest, NothingIsNoBlock) {
  EXPECT_EQ(Allocate(0, 0), nullptr);
}

TEST_F(AllocatorTest, SegmentSizesFollowTheRequest) {
  if (!Default()) GTEST_SKIP();
  const auto reserved_for = [](size_t size) {
    void* p = Allocate(0, size);
    const size_t reserved = GetStatistics(0).reserved;
    Free(p);
    EmptyCache();
    return reserved;
  };
  EXPECT_EQ(reserved_for(1), 2 * kMiB);
  EXPECT_EQ(reserved_for(kMiB), 2 * kMiB);
  EXPECT_EQ(reserved_for(kMiB + 1), 20 * kMiB);
  EXPECT_EQ(reserved_for(10 * kMiB - 512), 20 * kMiB);
  EXPECT_EQ(reserved_for(10 * kMiB), 10 * kMiB);
  EXPECT_EQ(reserved_for(11 * kMiB), 12 * kMiB);
}

TEST_F(AllocatorTest, SplitsLargeBlocksOnlyAboveOneMebibyteOfRest) {
  if (!Default()) GTEST_SKIP();
  void* p = Allocate(0, 19 * kMiB);
  EXPECT_EQ(GetStatistics(0).allocated, 20 * kMiB) << "a rest of 1 MiB stays with the block";
  Free(p);
  void* q = Allocate(0, 19 * kMiB - 512);
  EXPECT_EQ(GetStatistics(0).allocated, 19 * kMiB - 512);
  Free(q);
}

TEST_F(AllocatorTest, TakesTheSmallestThatFitsAtTheLowestAddress) {
  if (!Default()) GTEST_SKIP();
  std::vector<void*> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(Allocate(0, i % 2 == 0 ? 512 : 4096));
  Free(blocks[1]);
  Free(blocks[2]);  // merges with 1 to 4608 bytes
  void* small = Allocate(0, 4608);
  EXPECT_EQ(small, blocks[1]);
  Free(small);
  Free(blocks[0]);
  Free(blocks[3]);
  Free(blocks[4]);
  EmptyCache();
  EXPECT_EQ(GetStatistics(0).reserved, 0u) << "neighbors merged back into one segment";
}

TEST_F(AllocatorTest, StreamsDoNotShareBlocks) {
  void* p = Allocate(0, 4096);
  Free(p);
  const auto current = c10::cuda::getCurrentCUDAStream(0);
  // The stand-in's streams are handles; any number keys the pools.
  c10::cuda::setCurrentCUDAStream({{{c10::DeviceType::CUDA, 0}, 0x1000}});
  void* q = Allocate(0, 4096);
  EXPECT_NE(p, q);
  c10::cuda::setCurrentCUDAStream(current);
  Free(q);
}

TEST_F(AllocatorTest, ABlockUsedOnAnotherStreamComesBackAfterItsEvent) {
  simulatedCudaHoldEvents(1);
  void* p = Allocate(0, 4096);
  RecordStream(p, 1);
  Free(p);
  EXPECT_EQ(GetStatistics(0).allocated, 0u) << "counted as freed at once";
  void* q = Allocate(0, 4096);
  EXPECT_NE(p, q);
  simulatedCudaHoldEvents(0);
  void* r = Allocate(0, 4096);
  EXPECT_EQ(p, r);
  Free(q);
  Free(r);
}

TEST_F(AllocatorTest, RetriesWithoutItsCacheThenReports) {
  std::vector<void*> blocks;
  // Half of the device in cache, then a request of three quarters.
  const size_t half = 4096 * kMiB;
  for (size_t i = 0; i < half / (256 * kMiB); ++i) blocks.push_back(Allocate(0, 256 * kMiB));
  for (void* p : blocks) Free(p);
  EXPECT_GE(GetStatistics(0).reserved, half);
  const uint64_t retries = GetStatistics(0).retries;
  void* big = Allocate(0, half / 2 * 3);
  EXPECT_GE(GetStatistics(0).allocated, half / 2 * 3);
  if (Default()) {
    EXPECT_EQ(GetStatistics(0).retries, retries + 1);
  }
  const Statistics before = GetStatistics(0);
  EXPECT_THROW(Allocate(0, half), OutOfMemoryError);
  EXPECT_EQ(GetStatistics(0).out_of_memory, before.out_of_memory + 1);
  EXPECT_EQ(GetStatistics(0).allocated, before.allocated);
  Free(big);
}

// Reserved equals what the driver gave, blocks never overlap, and everything merges back.
TEST_F(AllocatorTest, HoldsItsInvariantsUnderRandomUse) {
  std::mt19937 random(7);
  std::map<uint64_t, size_t> live;
  std::vector<void*> order;
  for (int step = 0; step < 20000; ++step) {
    if (order.empty() || random() % 100 < 52) {
      const size_t size = random() % 10 == 0 ? random() % (64 * kMiB) + 1 : random() % (256 * 1024) + 1;
      void* p = nullptr;
      try {
        p = Allocate(0, size);
      } catch (const OutOfMemoryError&) {
        continue;
      }
      const uint64_t address = reinterpret_cast<uint64_t>(p);
      const auto above = live.lower_bound(address);
      ASSERT_TRUE(above == live.end() || address + size <= above->first);
      if (above != live.begin()) {
        const auto below = std::prev(above);
        ASSERT_LE(below->first + below->second, address);
      }
      live[address] = size;
      order.push_back(p);
    } else {
      const size_t at = random() % order.size();
      void* p = order[at];
      order[at] = order.back();
      order.pop_back();
      live.erase(reinterpret_cast<uint64_t>(p));
      Free(p);
    }
    if (step % 997 == 0) EmptyCache();
    if (step % 101 == 0) {
      ASSERT_EQ(GetStatistics(0).reserved, SegmentBytes());
    }
  }
  for (void* p : order) Free(p);
  EmptyCache();
  EXPECT_EQ(GetStatistics(0).allocated, 0u);
  EXPECT_EQ(GetStatistics(0).reserved, 0u);
  EXPECT_EQ(SegmentBytes(), 0u);
  EXPECT_EQ(Expandable(), simulatedCudaCalls("cuMemCreate") > 0);
}

TEST(Rounding, FollowsTheDivisions) {
  if (GetSettings().roundup_power2_divisions != 4) GTEST_SKIP();
  EXPECT_EQ(RoundSize(1200), 1536u) << "up to 512 times the divisions, plain rounding";
  EXPECT_EQ(RoundSize(5000), 5120u);
  EXPECT_EQ(RoundSize(4096), 4096u);
  EXPECT_EQ(RoundSize(4 * kMiB + 1), 5 * kMiB);
}

}  // namespace
