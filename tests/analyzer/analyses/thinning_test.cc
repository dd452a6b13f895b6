// What keeps a curve in bounded memory must keep all of the run, whatever came in long stretches and what in
// short ones.
#include "analyzer/analyses/thinning.h"

#include <gtest/gtest.h>

#include "analyzer/analyses/history.h"
#include "analyzer/analyses/usage.h"

namespace gpumemtrace::analyzer {
namespace {

TEST(Thinning, EqualStretchesAreJoinedByTwos) {
  History history(8);
  for (uint64_t i = 1; i <= 20; ++i) history.Birth(i, i, i * 10);
  EXPECT_EQ(history.stride(), 4u);
  ASSERT_EQ(history.intervals().size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(history.intervals()[i].weight, 4u);
    EXPECT_EQ(history.intervals()[i].index, (i + 1) * 4);
    EXPECT_EQ(history.intervals()[i].bytes_max, (i + 1) * 40);
  }
}

TEST(Thinning, FoldedWindowsAreNotJoinedForWhatFollowsInDetail) {
  constexpr uint64_t kWindows = 32;
  constexpr uint64_t kBirths = 1000;
  constexpr uint64_t kInDetail = 20000;
  History history(128);
  Timeline timeline;
  for (uint64_t i = 1; i <= kWindows; ++i) {
    history.Window(i * kBirths, kBirths, i, i + 5, i * 64, (i + 5) * 64, i, i * 64);
    timeline.Add(i * kBirths, i * kBirths, i * 64, 0, 0, kBirths);
  }
  for (uint64_t i = kWindows * kBirths + 1; i <= kWindows * kBirths + kInDetail; ++i) {
    history.Birth(i, kWindows + 1, (kWindows + 1) * 64);
    timeline.Add(i, i, (kWindows + 1) * 64, 0, 0);
    history.Death(kWindows, kWindows * 64);
  }
  // Of the windows at most two were joined at a time, and of 20,000 births in detail as many as a window has.
  EXPECT_LE(history.intervals().size(), 128u);
  ASSERT_GE(history.intervals().size(), kWindows / 2);
  EXPECT_LE(history.intervals()[0].index, 2 * kBirths);
  EXPECT_EQ(history.intervals()[1].bytes_max, (history.intervals()[1].index / kBirths + 5) * 64);
  uint64_t weight = 0;
  for (const History::Interval& interval : history.intervals()) {
    EXPECT_LE(interval.weight, 2 * kBirths);
    weight += interval.weight;
  }
  EXPECT_GT(weight, kWindows * kBirths + kInDetail - 2 * kBirths);
  EXPECT_LE(timeline.points()[0].index, 2 * kBirths);
  EXPECT_LE(timeline.points().size(), 4096u);
}

}  // namespace
}  // namespace gpumemtrace::analyzer
