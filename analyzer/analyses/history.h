// How much of one birth place was alive over the run, in bounded memory: intervals of equally many births
// (folded windows may have more), doubled when there are too many. The minimum of each interval is what
// survives: temporaries that come and go within it do not show.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analyzer/analyses/thinning.h"

namespace gpumemtrace::analyzer {

class History {
 public:
  struct Interval {
    uint64_t index = 0;      // of its last birth
    uint64_t bytes_min = 0;  // lowest since the previous interval's last birth, before this one's last
    uint64_t bytes_max = 0;  // highest after a birth
    uint32_t count_min = 0;
    uint32_t count_max = 0;
    uint64_t weight = 0;  // births

    void Join(const Interval& next) {
      index = next.index;
      bytes_min = std::min(bytes_min, next.bytes_min);
      bytes_max = std::max(bytes_max, next.bytes_max);
      count_min = std::min(count_min, next.count_min);
      count_max = std::max(count_max, next.count_max);
      weight += next.weight;
    }
  };

  explicit History(uint32_t capacity = 128) : capacity_(capacity) {}

  // A birth at event `index`; `count` and `bytes` include it.
  void Birth(uint64_t index, uint64_t count, uint64_t bytes) {
    count_max_ = std::max(count_max_, count);
    bytes_max_ = std::max(bytes_max_, bytes);
    if (++pending_ >= stride_) Push(index, count, bytes);
  }

  // `count` and `bytes` are what is left.
  void Death(uint64_t count, uint64_t bytes) {
    count_min_ = std::min(count_min_, count);
    bytes_min_ = std::min(bytes_min_, bytes);
  }

  // Many births and deaths at once, the last birth at `index`: fewest and most that were alive between, and
  // what is left.
  void Window(uint64_t index, uint64_t births, uint64_t least_count, uint64_t most_count,
              uint64_t least_bytes, uint64_t most_bytes, uint64_t count, uint64_t bytes) {
    count_min_ = std::min(count_min_, least_count);
    bytes_min_ = std::min(bytes_min_, least_bytes);
    if (births == 0) return;
    count_max_ = std::max(count_max_, most_count);
    bytes_max_ = std::max(bytes_max_, most_bytes);
    pending_ += births;
    if (pending_ >= stride_) Push(index, count, bytes);
  }

  const std::vector<Interval>& intervals() const { return intervals_; }
  // Births per interval.
  uint64_t stride() const { return stride_; }

 private:
  static uint32_t Clamp(uint64_t value) {
    return value > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(value);
  }

  void Push(uint64_t index, uint64_t count, uint64_t bytes) {
    intervals_.push_back({index, bytes_min_, bytes_max_, Clamp(count_min_), Clamp(count_max_), pending_});
    pending_ = 0;
    count_min_ = count;
    bytes_min_ = bytes;
    count_max_ = 0;
    bytes_max_ = 0;
    if (intervals_.size() >= capacity_) Thin(intervals_, capacity_, stride_);
  }

  std::vector<Interval> intervals_;
  // Since the last interval. Nothing is alive before the first birth.
  uint64_t bytes_min_ = 0;
  uint64_t bytes_max_ = 0;
  uint64_t count_min_ = 0;
  uint64_t count_max_ = 0;
  uint64_t pending_ = 0;
  uint64_t stride_ = 1;
  uint32_t capacity_;
};

}  // namespace gpumemtrace::analyzer
