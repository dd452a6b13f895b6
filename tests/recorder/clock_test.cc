// The clock of events (clock.h) against the kernel's.
#include "recorder/clock.h"

#include <gtest/gtest.h>

namespace gpumemtrace::recorder {
namespace {

// A rate that has been compared, as in a process that has run for a while.
class ClockTest : public testing::Test {
 protected:
  ClockTest() {
    rate_.Prepare();
    const uint64_t begun = sys::MonotonicNs();
    while (sys::MonotonicNs() - begun < 20'000'000) {
    }
    rate_.Observe();
  }

  CounterRate rate_;
};

TEST_F(ClockTest, NowIsTheKernelsTimeWithinAMillisecond) {
  EventClock clock;
  uint64_t last = 0;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t before = sys::MonotonicNs();
    const uint64_t now = clock.Now(rate_);
    const uint64_t after = sys::MonotonicNs();
    ASSERT_GE(now, last);
    ASSERT_GE(now + 1'000'000, before);
    ASSERT_LE(now, after + 1'000'000);
    last = now;
  }
}

TEST_F(ClockTest, RecentIsNeverBeforeTheThreadsLastTimeAndAtMostATickOld) {
  EventClock clock;
  const uint64_t most = sys::NsBetweenTicks() + 1'000'000;
  uint64_t last = 0;
  uint64_t repeated = 0;
  for (int i = 0; i < 300'000; ++i) {
    if (i % 3 == 0) {
      last = clock.Now(rate_);
      continue;
    }
    // The tick was read after this, and the time that it stands for is younger than it by one at most.
    const uint64_t before = sys::TickNs();
    const uint64_t recent = clock.Recent(rate_);
    ASSERT_GE(recent, last);
    ASSERT_GE(recent + most, before) << "older than a tick";
    repeated += recent == last;
    last = recent;
  }
  if (rate_.tick_is_cheaper()) {
    EXPECT_GT(repeated, 100'000u);
  }
}

TEST_F(ClockTest, RecentGoesOnWhenNothingElseAsks) {
  EventClock clock;
  const uint64_t first = clock.Recent(rate_);
  const uint64_t begun = sys::TickNs();
  // Two ticks later at the latest it is another time, whoever waits in between.
  while (sys::TickNs() - begun < 2 * sys::NsBetweenTicks()) {
  }
  EXPECT_GT(clock.Recent(rate_), first);
  EXPECT_GE(clock.Recent(rate_) + 1'000'000, begun);
}

TEST_F(ClockTest, ZeroBytesAreAClock) {
  alignas(EventClock) unsigned char bytes[sizeof(EventClock)] = {};
  auto* clock = reinterpret_cast<EventClock*>(bytes);
  const uint64_t before = sys::MonotonicNs();
  EXPECT_GE(clock->Recent(rate_) + 1'000'000, before);
}

// Without a rate, as at a process's beginning and where the counter may not be used, it is the kernel's clock
// itself.
TEST(Clock, WithoutARateAsksTheKernel) {
  const CounterRate none;
  EventClock clock;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t before = sys::MonotonicNs();
    const uint64_t now = i % 2 == 0 ? clock.Now(none) : clock.Recent(none);
    ASSERT_GE(now, before);
    ASSERT_LE(now, sys::MonotonicNs());
  }
}

}  // namespace
}  // namespace gpumemtrace::recorder
