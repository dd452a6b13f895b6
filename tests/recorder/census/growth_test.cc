// When memory grew enough for a census.
#include "recorder/census/growth.h"

#include <gtest/gtest.h>

namespace gpumemtrace::recorder::census {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(GrowthWatch, WaitsForTheFirstSecond) {
  GrowthWatch watch(true, 0);
  EXPECT_FALSE(watch.Look(10 * kSecond, 1000, 100 * kMiB, {}));
  EXPECT_FALSE(watch.Look(10 * kSecond + kSecond / 2, 1000, 100 * kMiB, {}));
  EXPECT_TRUE(watch.Look(11 * kSecond, 1000, 100 * kMiB, {}));
}

TEST(GrowthWatch, LooksEverMoreSeldom) {
  GrowthWatch watch(true, 0);
  uint64_t blocks = 0;
  int taken = 0;
  for (uint64_t second = 1; second <= 8 * 3600; ++second) {
    blocks += 100;
    if (watch.Look(second * kSecond, blocks, 0, {})) ++taken;
  }
  EXPECT_GE(taken, 10);
  EXPECT_LE(taken, 20);
}

TEST(GrowthWatch, AsksForGrowth) {
  GrowthWatch watch(true, 0);
  watch.Look(kSecond, 0, 0, {});
  EXPECT_TRUE(watch.Look(3 * kSecond, 500, 100 * kMiB, {}));
  // Nothing more than before, for an hour.
  for (uint64_t second = 4; second < 3600; ++second) {
    EXPECT_FALSE(watch.Look(second * kSecond, 500, 100 * kMiB, {}));
  }
  // The smallest leak of PyTorch's allocator: blocks of 512 bytes.
  EXPECT_TRUE(watch.Look(3601 * kSecond, 600, 100 * kMiB + 100 * 512, {}));
}

TEST(GrowthWatch, KeepsToOnePercentOfTheTime) {
  GrowthWatch watch(true, 0);
  Cost cost;
  uint64_t blocks = 0;
  for (uint64_t second = 1; second <= 2000; ++second) {
    blocks += 100;
    if (!watch.Look(second * kSecond, blocks, 0, cost)) continue;
    cost.last_ns = 400'000'000;
    cost.spent_ns += cost.last_ns;
    EXPECT_LE(cost.spent_ns, 500'000'000 + second * kSecond / 100 + cost.last_ns);
  }
  EXPECT_GE(cost.spent_ns, 2 * cost.last_ns);
  EXPECT_LE(cost.spent_ns, 500'000'000 + 2000 * kSecond / 100);
}

TEST(GrowthWatch, LimitOfTheUser) {
  GrowthWatch watch(false, 64 * kMiB);
  EXPECT_FALSE(watch.Look(kSecond, 1, 10 * kMiB, {}));
  EXPECT_TRUE(watch.Look(kSecond + 1, 1, 70 * kMiB, {}));
  EXPECT_FALSE(watch.Look(kSecond + 2, 1, 100 * kMiB, {}));
  // It counts from the lowest point since.
  EXPECT_FALSE(watch.Look(kSecond + 3, 1, 20 * kMiB, {}));
  EXPECT_TRUE(watch.Look(kSecond + 4, 1, 84 * kMiB, {}));
}

TEST(GrowthWatch, OffByDefault) {
  GrowthWatch watch;
  EXPECT_FALSE(watch.Look(kSecond, 1000, 100 * kMiB, {}));
  EXPECT_FALSE(watch.Look(1000 * kSecond, 1000000, 100000 * kMiB, {}));
}

TEST(GrowthWatch, TriesAgainWhenTheInterpreterWasBusy) {
  GrowthWatch watch(true, 0);
  watch.Look(kSecond, 0, 0, {});
  EXPECT_TRUE(watch.Look(3 * kSecond, 500, 0, {}));
  watch.Retry();
  EXPECT_TRUE(watch.Look(3 * kSecond + 1, 500, 0, {}));
}

}  // namespace
}  // namespace gpumemtrace::recorder::census
