// Decides when memory grew enough to be worth a census. Plain arithmetic, no clock and no thread of its own.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder::census {

// What censuses have cost so far.
struct Cost {
  uint64_t spent_ns = 0;
  uint64_t last_ns = 0;
};

class GrowthWatch {
 public:
  GrowthWatch() = default;
  // `automatic`: looks by itself, ever more seldom. `limit`: bytes of growth after which to look, 0 = none.
  GrowthWatch(bool automatic, uint64_t limit) : automatic_(automatic), limit_(limit) {}

  // True when a census should be taken now.
  bool Look(uint64_t now_ns, uint64_t live_blocks, uint64_t live_bytes, const Cost& cost) {
    if (start_ns_ == 0) {
      start_ns_ = now_ns;
      next_ns_ = now_ns + kFirstNs;
    }
    if (limit_ != 0) {
      if (live_bytes < limit_base_) limit_base_ = live_bytes;
      if (live_bytes - limit_base_ >= limit_) return Take(now_ns, live_blocks, live_bytes);
    }
    if (!automatic_) return false;
    if (now_ns < next_ns_) return false;
    if (cost.spent_ns + cost.last_ns > kAllowanceNs + (now_ns - start_ns_) / kShare) return false;
    // A program that leaks by the smallest block of an allocator shows in the number of blocks first.
    const bool more_blocks = live_blocks >= blocks_ + kBlocks;
    const bool more_bytes = live_bytes >= bytes_ + kBytes && live_bytes - bytes_ >= bytes_ / 16;
    if (!more_blocks && !more_bytes) return false;
    return Take(now_ns, live_blocks, live_bytes);
  }

  // The census that Look asked for could not be scheduled.
  void Retry() {
    next_ns_ = taken_ns_;
    blocks_ = bytes_ = limit_base_ = 0;
  }

 private:
  static constexpr uint64_t kFirstNs = 900'000'000;
  // What censuses may cost in all (install.py says the same): so much, and one part in so many of the time.
  static constexpr uint64_t kAllowanceNs = 500'000'000;
  static constexpr uint64_t kShare = 100;
  static constexpr uint64_t kBlocks = 32;
  static constexpr uint64_t kBytes = uint64_t{1} << 20;

  bool Take(uint64_t now_ns, uint64_t live_blocks, uint64_t live_bytes) {
    taken_ns_ = now_ns;
    // Each at twice the age of the one before: a night has about a dozen.
    next_ns_ = now_ns + (now_ns - start_ns_);
    blocks_ = live_blocks;
    bytes_ = limit_base_ = live_bytes;
    return true;
  }

  bool automatic_ = false;
  uint64_t limit_ = 0;
  uint64_t start_ns_ = 0;
  uint64_t next_ns_ = 0;
  uint64_t taken_ns_ = 0;
  uint64_t blocks_ = 0;
  uint64_t bytes_ = 0;
  uint64_t limit_base_ = 0;
};

}  // namespace gpumemtrace::recorder::census
