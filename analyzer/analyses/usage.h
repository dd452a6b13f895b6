// Running figures of one birth place, of one answerable line, and of one device: what is alive now, what was
// alive at the highest moments, and the history over the run.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/history.h"
#include "analyzer/analyses/thinning.h"

namespace gpumemtrace::analyzer {

// Moments whose exact composition is kept, per device.
enum Peak : uint8_t {
  kBlockPeak = 0,    // most bytes in blocks of caching allocators
  kSegmentPeak = 1,  // most bytes taken from the driver
  kRecentPeak = 2,   // the local maximum since the last valley
  kPeaks = 3,
};

// What is alive of one key. A peak's composition is kept without copying: each peak has a number that grows
// when it is exceeded, and a key writes its figures down before they first change after that.
struct Usage {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t births = 0;
  uint64_t born_bytes = 0;
  uint64_t first_index = 0;
  uint64_t last_index = 0;  // of a birth
  uint64_t most_bytes = 0;
  std::array<uint64_t, kPeaks> bytes_at{};
  std::array<uint64_t, kPeaks> count_at{};
  std::array<uint32_t, kPeaks> epoch{};
  History history;

  explicit Usage(uint32_t capacity = 128) : history(capacity) {}

  void Save(const std::array<uint32_t, kPeaks>& now) {
    for (int p = 0; p < kPeaks; ++p) {
      if (epoch[p] != now[p]) {
        epoch[p] = now[p];
        bytes_at[p] = bytes;
        count_at[p] = count;
      }
    }
  }
  uint64_t BytesAt(Peak peak, uint32_t now) const { return epoch[peak] == now ? bytes_at[peak] : bytes; }
  uint64_t CountAt(Peak peak, uint32_t now) const { return epoch[peak] == now ? count_at[peak] : count; }

  void Birth(uint64_t index, uint64_t size) {
    if (births++ == 0) first_index = index;
    born_bytes += size;
    last_index = index;
    bytes += size;
    if (bytes > most_bytes) most_bytes = bytes;
    history.Birth(index, ++count, bytes);
  }
  // Of an event whose figures come with its folded window.
  void CountedBirth(uint64_t size) {
    bytes += size;
    ++count;
  }
  void CountedDeath(uint64_t size) {
    bytes -= size < bytes ? size : bytes;
    if (count != 0) --count;
  }
  void Death(uint64_t size) {
    bytes -= size < bytes ? size : bytes;
    if (count != 0) --count;
    history.Death(count, bytes);
  }
};

struct Reading {
  uint64_t index = 0;
  uint64_t time_us = 0;
  uint64_t used = 0;
  uint64_t total = 0;
  // Known at that moment: bytes of all segments on the device.
  uint64_t segments = 0;
  bool valid = false;
};

// A block or segment that was alive at a peak and has died since.
struct PastBlock {
  uint64_t birth_index;
  uint64_t birth_time_us;
  uint64_t death_index;
  uint64_t address;
  uint64_t size;
  OriginId origin;
  SiteId freed_by;
};

// One high moment of a device.
struct HighWater {
  uint64_t bytes = 0;
  uint64_t index = kNoIndex;
  uint64_t time_us = 0;
  uint64_t reserved = 0;
  uint64_t blocks = 0;
  uint64_t segments = 0;
  OriginId born_last = kNoOrigin;
  uint64_t born_last_bytes = 0;
  Reading reading;
  std::vector<PastBlock> past;
};

// A local maximum that is over, with the bytes of each line.
struct PastPeak {
  uint64_t bytes = 0;
  uint64_t index = 0;
  uint64_t time_us = 0;
  OriginId born_last = kNoOrigin;
  std::vector<std::pair<uint32_t, std::pair<uint64_t, uint64_t>>> tracks;  // track, bytes and count
};

// A moment at which a caching allocator took more memory from the driver.
struct ReserveGrowth {
  uint64_t index = 0;
  uint64_t time_us = 0;
  uint64_t grown = 0;
  uint64_t reserved = 0;   // after
  uint64_t allocated = 0;  // after
  uint64_t needless = 0;   // of `grown`: at least as much was free in the allocator as was asked for
  OriginId origin = kNoOrigin;
};

// The run in at most a few thousand slices of equally many changes (folded windows may have more).
class Timeline {
 public:
  // `changes`: how many this moment stands for.
  void Add(uint64_t index, uint64_t time_us, uint64_t allocated, uint64_t reserved, uint64_t used,
           uint64_t changes = 1) {
    if (current_.weight == 0 || allocated > current_.allocated_max) current_.allocated_max = allocated;
    if (current_.weight == 0 || allocated < current_.allocated_min) current_.allocated_min = allocated;
    current_.weight += changes;
    if (current_.weight < stride_) return;
    current_.index = index;
    current_.time_us = time_us;
    current_.reserved = reserved;
    current_.used = used;
    points_.push_back(current_);
    current_ = {};
    if (points_.size() >= kCapacity) Thin(points_, kCapacity, stride_);
  }
  const std::vector<TimelinePoint>& points() const { return points_; }

 private:
  static constexpr size_t kCapacity = 4096;
  std::vector<TimelinePoint> points_;
  TimelinePoint current_;
  uint64_t stride_ = 1;
};

}  // namespace gpumemtrace::analyzer
