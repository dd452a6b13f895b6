// The judgement of curves, without traces.
#include <gtest/gtest.h>

#include "analyzer/analyses/suppressions.h"
#include "analyzer/analyses/trend.h"
#include "analyzer/commands/limits.h"

namespace gpumemtrace::analyzer {
namespace {

std::vector<FloorPoint> Curve(const std::vector<uint64_t>& counts, uint64_t size = 100) {
  std::vector<FloorPoint> floors;
  for (size_t i = 0; i < counts.size(); ++i)
    floors.push_back({static_cast<double>(i), counts[i] * size, counts[i]});
  return floors;
}

TEST(TrendTest, StraightGrowthIsALeakWithItsExactRate) {
  std::vector<uint64_t> counts;
  for (uint64_t i = 0; i < 40; ++i) counts.push_back(2 * i);
  const Trend trend = JudgeTrend(Curve(counts), 39, TrendBy::kCount);
  EXPECT_EQ(trend.kind, GrowthKind::kLeak);
  EXPECT_TRUE(trend.still_growing);
  EXPECT_DOUBLE_EQ(trend.bytes_per_step, 200);
  EXPECT_DOUBLE_EQ(trend.count_per_step, 2);
  EXPECT_GT(trend.confidence, 0.99);
}

TEST(TrendTest, NothingGrowsInALevelCurve) {
  EXPECT_FALSE(JudgeTrend(Curve({3, 3, 3, 3, 3, 3}), 5, TrendBy::kCount).grows);
}

TEST(TrendTest, GrowthThatStopsHasSaturated) {
  std::vector<uint64_t> counts;
  for (uint64_t i = 0; i < 20; ++i) counts.push_back(std::min<uint64_t>(i, 16));
  EXPECT_EQ(JudgeTrend(Curve(counts), 19, TrendBy::kCount).kind, GrowthKind::kSaturated);
}

TEST(TrendTest, OneJumpIsAOneOff) {
  EXPECT_EQ(JudgeTrend(Curve({1, 1, 1, 9, 9, 9, 9, 9}), 7, TrendBy::kCount).kind, GrowthKind::kOneOff);
}

TEST(TrendTest, TeethWithALevelFloorAreSawTooth) {
  std::vector<uint64_t> counts;
  for (uint64_t i = 0; i < 55; ++i) counts.push_back(i % 10);
  EXPECT_EQ(JudgeTrend(Curve(counts), 54, TrendBy::kCount).kind, GrowthKind::kSawtooth);
}

TEST(TrendTest, TeethWithARisingFloorAreALeak) {
  std::vector<uint64_t> counts;
  for (uint64_t i = 0; i < 100; ++i) counts.push_back(i % 10 + i / 10 * 5);
  EXPECT_EQ(JudgeTrend(Curve(counts), 99, TrendBy::kCount).kind, GrowthKind::kLeak);
}

TEST(TrendTest, WhatCameOnceBesideEqualPortionsIsNoPartOfTheRate) {
  for (const size_t at : {size_t{1}, size_t{20}}) {
    std::vector<FloorPoint> floors;
    for (uint64_t i = 0; i < 40; ++i) {
      const bool workspace = i >= at;
      floors.push_back(
          {static_cast<double>(i), 512 * i + (workspace ? 1u << 20 : 0u), i + (workspace ? 1u : 0u)});
    }
    const Trend trend = JudgeTrend(floors, 39, TrendBy::kCount);
    EXPECT_EQ(trend.kind, GrowthKind::kLeak);
    EXPECT_DOUBLE_EQ(trend.bytes_per_step, 512);
    EXPECT_DOUBLE_EQ(trend.count_per_step, 1);
    EXPECT_EQ(trend.grown_bytes, 39 * 512u);
    EXPECT_EQ(trend.grown_count, 39u);
    EXPECT_EQ(trend.once_bytes, 1u << 20);
    EXPECT_EQ(trend.once_count, 1u);
  }
}

TEST(TrendTest, PortionsOfManySizesAreAllOfTheLeak) {
  std::vector<FloorPoint> floors{{0, 0, 0}};
  for (uint64_t i = 1; i < 60; ++i) {
    const uint64_t bytes = i % 10 == 0 ? 4000 : 100 + 37 * (i % 7);
    floors.push_back({static_cast<double>(i), floors.back().bytes + bytes, i});
  }
  const Trend trend = JudgeTrend(floors, 59, TrendBy::kCount);
  EXPECT_EQ(trend.kind, GrowthKind::kLeak);
  EXPECT_EQ(trend.once_bytes, 0u);
}

TEST(TrendTest, WorkInFlightThatStandsHighAtTheEndIsNoLeak) {
  const std::vector<uint64_t> up_and_down = {0, 2, 1, 3, 5, 4, 2, 0, 1, 3, 2, 4, 6, 7, 5, 3, 4,  2, 1,
                                             0, 1, 2, 4, 3, 5, 6, 5, 7, 6, 8, 7, 8, 9, 8, 9, 10, 9, 10};
  EXPECT_EQ(JudgeTrend(Curve(up_and_down), 37, TrendBy::kCount).kind, GrowthKind::kSawtooth);
  // The same beside one that is kept in each step.
  std::vector<uint64_t> and_a_leak = up_and_down;
  for (size_t i = 0; i < and_a_leak.size(); ++i) and_a_leak[i] += i;
  EXPECT_EQ(JudgeTrend(Curve(and_a_leak), 37, TrendBy::kCount).kind, GrowthKind::kLeak);
}

TEST(TrendTest, ASilenceLikeOneBeforeIsNoEnd) {
  // A rise in three of ten steps, at random; one gap of ten steps, and fourteen silent ones at the end.
  std::vector<uint64_t> counts{0};
  const auto go = [&counts](size_t steps, bool rises) {
    for (size_t i = 0; i < steps; ++i) counts.push_back(counts.back() + (rises && i % 3 == 0 ? 1u : 0u));
  };
  go(60, true);
  go(10, false);
  go(60, true);
  const std::vector<uint64_t> before = counts;
  go(14, false);
  EXPECT_EQ(JudgeTrend(Curve(counts), static_cast<double>(counts.size()) - 1, TrendBy::kCount).kind,
            GrowthKind::kLeak);
  counts = before;
  go(40, false);
  EXPECT_EQ(JudgeTrend(Curve(counts), static_cast<double>(counts.size()) - 1, TrendBy::kCount).kind,
            GrowthKind::kSaturated);
}

TEST(TrendTest, OneObjectThatGetsLargerIsLongerStepsAndNoOneOff) {
  std::vector<FloorPoint> floors;
  for (uint64_t i = 0; i < 30; ++i)
    floors.push_back({static_cast<double>(i), 1000 * (i + 1), i < 2 ? 1u : 2u});
  const Trend trend = JudgeTrend(floors, 29, TrendBy::kCount);
  EXPECT_EQ(trend.kind, GrowthKind::kLongerSteps);
}

TEST(TrendTest, AnUnfinishedToothIsNoLeak) {
  // Uneven teeth that each leave a few behind, and a last one that is as high as the others.
  std::vector<uint64_t> counts;
  for (const uint64_t low : {0, 2, 1, 3, 0, 2}) {
    for (uint64_t i = 0; i < 20 + low; ++i) counts.push_back(low + i);
  }
  const double last = static_cast<double>(counts.size() - 1);
  const Trend trend = JudgeTrend(Curve(counts), last, TrendBy::kCount);
  EXPECT_NE(trend.kind, GrowthKind::kLeak) << static_cast<int>(trend.kind);
}

TEST(TrendTest, WhatGrowsForLongerThanTheTeethIsALeak) {
  // One early drop, then a rise that goes on and on.
  std::vector<uint64_t> counts = {30, 60, 0};
  for (uint64_t i = 1; i < 50; ++i) counts.push_back(i);
  const Trend trend = JudgeTrend(Curve(counts), static_cast<double>(counts.size() - 1), TrendBy::kCount);
  EXPECT_EQ(trend.kind, GrowthKind::kLeak);
  EXPECT_DOUBLE_EQ(trend.bytes_per_step, 100);
}

TEST(TrendTest, AJumpIsNotCountedAsGrowth) {
  std::vector<FloorPoint> floors;
  for (uint64_t i = 0; i < 60; ++i) {
    const uint64_t workspace = i >= 2 ? 1'000'000 : 0;
    floors.push_back({static_cast<double>(i), 100 * i + workspace, i + (i >= 2 ? 1 : 0)});
  }
  const Trend trend = JudgeTrend(floors, 59, TrendBy::kCount);
  EXPECT_EQ(trend.kind, GrowthKind::kLeak);
  EXPECT_DOUBLE_EQ(trend.bytes_per_step, 100);
  EXPECT_EQ(trend.grown_bytes, 5900u);
  EXPECT_EQ(trend.grown_count, 59u);
}

TEST(TrendTest, LargerObjectsInEqualNumberAreLongerSteps) {
  std::vector<FloorPoint> floors;
  for (uint64_t i = 0; i < 30; ++i) floors.push_back({static_cast<double>(i), 100 * (i + 1), 1});
  EXPECT_EQ(JudgeTrend(floors, 29, TrendBy::kCount).kind, GrowthKind::kLongerSteps);
}

TEST(TrendTest, TheMedianSlopeIgnoresOutliers) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 50; ++i) points.emplace_back(i, 3.0 * i + (i == 20 ? 1e6 : 0));
  EXPECT_NEAR(TheilSenSlope(points), 3.0, 1e-9);
}

TEST(SuppressionsTest, PatternsAreThoseOfLeakSanitizer) {
  EXPECT_TRUE(MatchesPattern("Allocate", "c10::cuda::Allocate(int)"));
  EXPECT_TRUE(MatchesPattern("^c10::*Allocate", "c10::cuda::Allocate(int)"));
  EXPECT_FALSE(MatchesPattern("^cuda", "c10::cuda::Allocate(int)"));
  EXPECT_TRUE(MatchesPattern("train.py$", "/home/user/train.py"));
  EXPECT_FALSE(MatchesPattern("train$", "/home/user/train.py"));
  const Suppressions suppressions({"# known", "leak:libnccl", "  leak:*cache*  ", "race:x"});
  EXPECT_EQ(suppressions.Match("libnccl.so.2"), "libnccl");
  EXPECT_EQ(suppressions.Match("my_cache.py"), "*cache*");
  EXPECT_EQ(suppressions.Match("train.py"), "");
  EXPECT_EQ(suppressions.malformed().size(), 1u);
}

TEST(LimitsTest, AmountsAreParsed) {
  uint64_t bytes = 0;
  EXPECT_TRUE(ParseBytes("40GiB", false, bytes));
  EXPECT_EQ(bytes, uint64_t{40} << 30);
  EXPECT_TRUE(ParseBytes("1.5M", false, bytes));
  EXPECT_EQ(bytes, uint64_t{3} << 19);
  EXPECT_TRUE(ParseBytes("2KB/step", true, bytes));
  EXPECT_EQ(bytes, 2000u);
  EXPECT_TRUE(ParseBytes("512", false, bytes));
  EXPECT_EQ(bytes, 512u);
  for (const char* wrong : {"", "GiB", "-1", "1XB", "1/step", "nan", "1e30"})
    EXPECT_FALSE(ParseBytes(wrong, false, bytes)) << wrong;
  double fraction = 0;
  EXPECT_TRUE(ParseFraction("2%", fraction));
  EXPECT_DOUBLE_EQ(fraction, 0.02);
  EXPECT_TRUE(ParseFraction("0.5", fraction));
  EXPECT_FALSE(ParseFraction("two", fraction));
}

}  // namespace
}  // namespace gpumemtrace::analyzer
