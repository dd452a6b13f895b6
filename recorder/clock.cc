#include "recorder/clock.h"

#include <linux/prctl.h>
#include <sys/prctl.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gpumemtrace::recorder {
namespace {

#if defined(__x86_64__)
// Invariant TSC: bit 8 of edx of leaf 0x80000007 (Intel's and AMD's manuals).
bool RunsAtOneRate() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & 1u << 8) != 0;
}

// prctl(PR_SET_TSC, PR_TSC_SIGSEGV) makes reading it a fault.
bool MayBeRead() {
  int mode = 0;
  return prctl(PR_GET_TSC, &mode, 0, 0, 0) == 0 && mode == PR_TSC_ENABLE;
}

bool IsTrustworthy() {
  return RunsAtOneRate() && MayBeRead();
}
#else
bool IsTrustworthy() {
  return false;
}
#endif

// Between two comparisons. The shorter, the less certain: reading both takes up to a microsecond when it is
// interrupted.
constexpr uint64_t kShortestNs = 10'000'000;

// What some readings of a clock take. The least of three: another program is never faster.
template <typename Read>
uint64_t CostOf(Read read) {
  constexpr int kReadings = 64;
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < 3; ++i) {
    uint64_t sum = 0;
    const uint64_t begun = sys::MonotonicNs();
    for (int j = 0; j < kReadings; ++j) sum += read();
    const uint64_t taken = sys::MonotonicNs() - begun;
    __asm__ volatile("" : : "r"(sum));
    if (taken < least) least = taken;
  }
  return least;
}

// A release may be so much too early.
constexpr uint64_t kFarthestTicks = 10'000'000;

}  // namespace

void CounterRate::Prepare() {
  // Also in the child of a fork, whose parent may have been at it.
  busy_.store(false, std::memory_order_relaxed);
  scale_.store(0, std::memory_order_relaxed);
  // Under some hypervisors every reading of the counter is a trap, and without a vDSO every look at the
  // kernel's clocks is a system call.
  const uint64_t clock_cost = CostOf(sys::MonotonicNs);
  usable_ = IsTrustworthy();
  const uint64_t counter_cost = usable_ ? CostOf(ReadCounter) : clock_cost;
  usable_ = counter_cost < clock_cost;
  const uint64_t ns_between_ticks = sys::NsBetweenTicks();
  tick_is_cheaper_ = ns_between_ticks != 0 && ns_between_ticks <= kFarthestTicks &&
                     CostOf(sys::TickNs) < (usable_ ? counter_cost : clock_cost);
  if (!usable_) return;
  ns_.store(sys::MonotonicNs(), std::memory_order_relaxed);
  ticks_ = ReadCounter();
}

void CounterRate::Observe() {
  // Any other thread may have just been here: only who has something to do writes what all threads read.
  if (sys::MonotonicNs() - ns_.load(std::memory_order_relaxed) < kShortestNs) return;
  // Who finds another thread here has nothing to do.
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  Compare();
  busy_.store(false, std::memory_order_release);
}

void CounterRate::Compare() {
  if (!usable_) return;
  const uint64_t ns = sys::MonotonicNs();
  const uint64_t ticks = ReadCounter();
  const uint64_t last_ns = ns_.load(std::memory_order_relaxed);
  if (ns - last_ns < kShortestNs) return;
  __extension__ using Wide = unsigned __int128;
  const Wide scale = (static_cast<Wide>(ns - last_ns) << kShift) / (ticks != ticks_ ? ticks - ticks_ : 1);
  const uint64_t old = scale_.load(std::memory_order_relaxed);
  // A counter of less than 0.1 or more than 16 GHz, one that went back, or one whose rate moved by a percent.
  const bool sane = ticks > ticks_ && scale < Wide{10} << kShift && scale > Wide{1} << (kShift - 4);
  if (!sane || (old != 0 && (scale < old - old / 100 || scale > old + old / 100))) {
    usable_ = false;
    scale_.store(0, std::memory_order_relaxed);
    return;
  }
  scale_.store(static_cast<uint64_t>(scale), std::memory_order_relaxed);
  // Each rate is that of the last interval: the kernel's clock is slewed, and so are we.
  ns_.store(ns, std::memory_order_relaxed);
  ticks_ = ticks;
}

}  // namespace gpumemtrace::recorder
