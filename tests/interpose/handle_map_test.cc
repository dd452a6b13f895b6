// HandleMap: found, replaced, erased, full, and used by many threads at once.
#include "interpose/handle_map.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace gpumemtrace::interpose {
namespace {

TEST(HandleMap, FindsWhatWasPut) {
  HandleMap<64> map;
  uint64_t value = 0;
  EXPECT_FALSE(map.Get(5, &value));
  EXPECT_TRUE(map.Put(5, 50));
  EXPECT_TRUE(map.Put(6, 60));
  EXPECT_TRUE(map.Put(5, 51));
  ASSERT_TRUE(map.Get(5, &value));
  EXPECT_EQ(value, 51u);
  EXPECT_TRUE(map.Erase(5));
  EXPECT_FALSE(map.Contains(5));
  EXPECT_FALSE(map.Erase(5));
  EXPECT_TRUE(map.Contains(6));
}

TEST(HandleMap, SaysWhenItIsFullAndReusesErasedSlots) {
  HandleMap<16> map;
  for (uint64_t key = 1; key <= 16; ++key) {
    ASSERT_TRUE(map.Put(key << 12, key));
  }
  EXPECT_FALSE(map.Put(17 << 12, 17));
  EXPECT_TRUE(map.Erase(3 << 12));
  EXPECT_TRUE(map.Put(17 << 12, 17));
  EXPECT_TRUE(map.Contains(17 << 12));
}

TEST(HandleMap, AsACacheTheNewestIsAlwaysThere) {
  HandleMap<16> map;
  for (uint64_t key = 1; key <= 1000; ++key) {
    map.PutOver(key << 9, key);
    uint64_t value = 0;
    ASSERT_TRUE(map.Get(key << 9, &value));
    ASSERT_EQ(value, key);
  }
}

TEST(HandleMap, ThreadsDoNotSeeEachOthersHalves) {
  HandleMap<1024> map;
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&map, t] {
      for (uint64_t round = 0; round < 2000; ++round) {
        const uint64_t key = t << 32 | (round % 50 + 1) << 8;
        ASSERT_TRUE(map.Put(key, key + 1));
        uint64_t value = 0;
        ASSERT_TRUE(map.Get(key, &value));
        ASSERT_EQ(value, key + 1);
        ASSERT_TRUE(map.Erase(key));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace gpumemtrace::interpose
