// The time of an event, in nanoseconds of CLOCK_MONOTONIC, read from the processor's counter where that is
// cheaper and trustworthy.
//
// A thread reads the kernel's clock at least once a millisecond and in between adds what the counter went on
// by; so a wrong rate or a counter that jumps (another socket, a machine that was moved) is never off by more
// than a millisecond, and nothing is assumed about how counters of different processors relate.
//
// Reading the counter is a quarter to a third of what a release costs. A release may therefore take the time
// of what its thread recorded before, as long as the kernel's clock has not ticked since: Recent().
#pragma once

#include <atomic>
#include <cstdint>

#include "recorder/system.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace gpumemtrace::recorder {

// The processor's counter. Where none is known to us it stands still, and CounterRate does not use it.
inline uint64_t ReadCounter() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return 0;
#endif
}

// How fast the counter runs.
class CounterRate {
 public:
  // Whether the counter may be read at all (a program can forbid it), runs at one rate in every state of the
  // processor, and is cheaper than the kernel's clock. Call before any thread reads it.
  void Prepare();
  // Compares both clocks; the first call that is long enough after Prepare publishes the rate. A rate that
  // changes from one call to the next switches the counter off. Any thread, now and then.
  void Observe();

  // Nanoseconds per tick in units of 2^-32; 0 = do not use the counter.
  uint64_t scale() const { return scale_.load(std::memory_order_relaxed); }
  // Whether asking for the kernel's last tick is cheaper than the counter, and ticks are close enough.
  bool tick_is_cheaper() const { return tick_is_cheaper_; }
  static constexpr int kShift = 32;

 private:
  std::atomic<uint64_t> scale_{0};
  // Owns what follows.
  std::atomic<bool> busy_{false};
  bool usable_ = false;
  // Does not change while threads read it.
  bool tick_is_cheaper_ = false;
  uint64_t ticks_ = 0;
  std::atomic<uint64_t> ns_{0};

  void Compare();
};

// One thread's clock. Zero bytes are a valid one.
class EventClock {
 public:
  uint64_t Now(const CounterRate& rate) {
    // Far more than the processor does in that time, and little enough that the product fits.
    constexpr uint64_t kMostNs = 1'000'000;
    if (scale_ == 0) return NotBack(Look(rate));
    const uint64_t ticks = ReadCounter();
    const uint64_t passed = (ticks - ticks_) * scale_ >> CounterRate::kShift;
    if (ticks - ticks_ < kMostTicks && passed < kMostNs) [[likely]] {
      return NotBack(ns_ + passed);
    }
    return NotBack(Look(rate));
  }

  // What Now or this said last, if the kernel's clock has not ticked since: at most one tick ago.
  uint64_t Recent(const CounterRate& rate) {
    if (tick_ == kNoTicks) return Now(rate);
    const uint64_t tick = sys::TickNs();
    if (tick == tick_) [[likely]] {
      return last_;
    }
    tick_ = tick;
    return Now(rate);
  }

 private:
  // A rate that is a little off makes the kernel's clock seem to go back when it is looked at again.
  uint64_t NotBack(uint64_t now) { return last_ = now > last_ ? now : last_; }

  // At the kernel's clock, and at the rate, which is not in the cache line of this.
  __attribute__((noinline)) uint64_t Look(const CounterRate& rate) {
    scale_ = rate.scale();
    const uint64_t ticks = scale_ != 0 ? ReadCounter() : 0;
    const uint64_t now = sys::MonotonicNs();
    if (rate.tick_is_cheaper() != (tick_ != kNoTicks)) tick_ = rate.tick_is_cheaper() ? 0 : kNoTicks;
    ticks_ = ticks;
    ns_ = now;
    return ns_;
  }

  // 16 GHz for a millisecond.
  static constexpr uint64_t kMostTicks = uint64_t{1} << 24;

  static constexpr uint64_t kNoTicks = ~uint64_t{0};

  uint64_t ticks_ = 0;
  uint64_t ns_ = 0;
  // Of the rate when the kernel's clock was read, 0 = read it again.
  uint64_t scale_ = 0;
  // What was said last, and the kernel's last tick when Recent asked for it.
  uint64_t last_ = 0;
  uint64_t tick_ = 0;
};

}  // namespace gpumemtrace::recorder
