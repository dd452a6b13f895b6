// Finds, in half a MiB, the few places that ask for another size again and again: how many distinct sizes
// were asked for at one place, and in how many stretches of the trace new ones came. A place in the crowd may
// be counted too low, for a while; never too high but for one in 65,536.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recorder/memory/pages.h"

namespace gpumemtrace::recorder {

class SizeCounts {
 public:
  SizeCounts() = default;
  ~SizeCounts() { UnmapPages(sets_, sizeof(Set) * kSets); }
  SizeCounts(const SizeCounts&) = delete;
  SizeCounts& operator=(const SizeCounts&) = delete;

  // Whether the sizes of the place with this hash vary.
  bool Vary(uint64_t hash) const {
    if (sets_ == nullptr) return false;
    const auto tag = static_cast<uint16_t>(hash >> 48);
    for (const Count& count : sets_[hash & (kSets - 1)].counts) {
      if (count.sizes != 0 && count.tag == tag) return Many(count);
    }
    return false;
  }

  // One more size at the place, with the event of this index; returns whether they vary now. Without memory
  // to count they never do.
  bool Add(uint64_t hash, uint64_t index) {
    if (sets_ == nullptr) sets_ = static_cast<Set*>(MapPages(sizeof(Set) * kSets));
    if (sets_ == nullptr) return false;
    const auto tag = static_cast<uint16_t>(hash >> 48);
    const auto stretch = static_cast<uint16_t>(index / kStretch);
    Count* least = nullptr;
    for (Count& count : sets_[hash & (kSets - 1)].counts) {
      if (count.sizes != 0 && count.tag == tag) {
        if (count.sizes < UINT16_MAX) ++count.sizes;
        if (count.stretch != stretch && count.stretches < UINT16_MAX) ++count.stretches;
        count.stretch = stretch;
        return Many(count);
      }
      if (!Many(count) && (least == nullptr || count.sizes < least->sizes)) least = &count;
    }
    // Who comes more often stays; who was found stays for good, because it is not counted any more.
    if (least == nullptr) return false;
    if (least->sizes > 1) {
      --least->sizes;
    } else {
      *least = {tag, 1, stretch, 1};
    }
    return false;
  }

 private:
  static constexpr size_t kSets = size_t{1} << 14;
  // A list of parameters has many sizes, all of them in the first step; a sequence length that changes brings
  // a new one with nearly every step, which has one or two thousand events.
  static constexpr uint64_t kStretch = 2048;
  static constexpr uint16_t kMostStretches = 8;
  static constexpr uint16_t kMostSizes = 256;

  struct Count {
    uint16_t tag;
    uint16_t sizes;  // 0 = free
    // The last one with a new size, and how many there were.
    uint16_t stretch;
    uint16_t stretches;
  };
  struct Set {
    Count counts[4];
  };

  static bool Many(const Count& count) {
    return count.sizes > kMostSizes || count.stretches > kMostStretches;
  }

  Set* sets_ = nullptr;
};

}  // namespace gpumemtrace::recorder
