// Counts, in a quarter of a MiB, how many distinct sizes were asked for at one place, to find the few places
// that ask for very many. A place in the crowd may be counted too low, for a while; never too high but for
// one in 65,536.
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

  // One more size at the place with this hash; returns how many that makes. 0: no memory to count.
  uint32_t Add(uint64_t hash) {
    if (sets_ == nullptr) sets_ = static_cast<Set*>(MapPages(sizeof(Set) * kSets));
    if (sets_ == nullptr) return 0;
    const auto tag = static_cast<uint16_t>(hash >> 48);
    Count* least = nullptr;
    for (Count& count : sets_[hash & (kSets - 1)].counts) {
      if (count.sizes != 0 && count.tag == tag) {
        if (count.sizes < UINT16_MAX) ++count.sizes;
        return count.sizes;
      }
      if (least == nullptr || count.sizes < least->sizes) least = &count;
    }
    // Who comes more often stays.
    if (least->sizes > 1) {
      --least->sizes;
    } else {
      *least = {tag, 1};
    }
    return 1;
  }

 private:
  static constexpr size_t kSets = size_t{1} << 14;
  struct Count {
    uint16_t tag;
    uint16_t sizes;  // 0 = free
  };
  struct Set {
    Count counts[4];
  };

  Set* sets_ = nullptr;
};

}  // namespace gpumemtrace::recorder
