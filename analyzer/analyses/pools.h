// Caching allocators from the outside: which segments are theirs, what lies in them, and where the holes are.
// Keeps the live set by slot; pictures of whole pools are taken only at rare moments.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/container/btree_map.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/ledger/ledger.h"

namespace gpumemtrace::analyzer {

// What is known of a live allocation.
struct LiveSlot {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t birth_index = kNoIndex;
  uint64_t birth_time_us = 0;
  uint64_t stream = 0;  // of a caching allocator's segment: of the first block in it
  // Of a segment: bytes and number of live blocks that begin in it.
  uint64_t block_bytes = 0;
  uint32_t blocks = 0;
  OriginId origin = kNoOrigin;
  uint32_t segment = kNoSlot;
  int32_t device = -1;
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  bool live = false;
  bool holds_blocks = false;  // a caching allocator's segment
};

// A pool at one moment, still without names.
struct PoolPicture {
  struct Segment {
    uint64_t address = 0;
    uint64_t size = 0;
    uint64_t live_bytes = 0;
    uint64_t live_blocks = 0;
    uint64_t largest_gap = 0;
    uint64_t gaps = 0;
    uint64_t stream = 0;
    OriginId origin = kNoOrigin;
  };
  struct Pin {
    OriginId origin = kNoOrigin;
    uint64_t blocks = 0;
    uint64_t bytes = 0;
    uint64_t pinned = 0;
  };
  // Free bytes that a request did not get; see Refusal.
  struct Refused {
    uint64_t free = 0;
    uint64_t pieces = 0;
    uint64_t other_streams = 0;
    uint64_t too_small = 0;
    uint64_t largest = 0;
    uint64_t other_pool = 0;
  };
  uint64_t index = kNoIndex;
  uint64_t time_us = 0;
  uint64_t reserved = 0;
  uint64_t allocated = 0;
  Refused refused;
  uint64_t empty_bytes = 0;
  uint64_t gap_bytes = 0;
  uint64_t largest_fit = 0;
  uint64_t streams = 0;
  std::vector<Segment> segments;  // with most free bytes beside live blocks first
  std::vector<Pin> pins;          // that pin most first
};

class Pools {
 public:
  void Birth(const Change& change, OriginId origin, uint64_t stream);
  void Death(const Change& change);
  void Map(const Change& change);
  void Unmap(const Change& change);

  const std::vector<LiveSlot>& slots() const { return slots_; }
  const LiveSlot* slot(uint32_t number) const { return number < slots_.size() ? &slots_[number] : nullptr; }
  // Bytes of segments of caching allocators, and of these the free ones beside live blocks (exact unless the
  // allocator maps virtual memory).
  uint64_t allocator_segments(int32_t device) const { return At(device).segments; }
  int64_t gaps(int32_t device) const { return At(device).gaps; }
  bool maps_memory(int32_t device) const { return At(device).virtual_memory; }

  // With a block that was just born (`requested`), also where what lay free did not serve it.
  PoolPicture Picture(int32_t device, uint64_t index, uint64_t time_us, uint32_t requested = kNoSlot) const;

 private:
  struct Device {
    uint64_t segments = 0;
    int64_t gaps = 0;
    bool virtual_memory = false;
  };
  struct Range {
    uint64_t size = 0;
    uint32_t slot = kNoSlot;
  };
  const Device& At(int32_t device) const {
    static const Device kNone;
    const auto it = devices_.find(device);
    return it == devices_.end() ? kNone : it->second;
  }

  // Nearly all changes in a row are of one device.
  Device& ForDevice(int32_t device) {
    if (last_device_ != nullptr && last_number_ == device) return *last_device_;
    last_device_ = &devices_[device];
    last_number_ = device;
    return *last_device_;
  }

  std::vector<LiveSlot> slots_;
  std::map<int32_t, Device> devices_;
  Device* last_device_ = nullptr;
  int32_t last_number_ = 0;
  // Mappings of physical memory, by address.
  absl::btree_map<uint64_t, Range> mappings_;
};

}  // namespace gpumemtrace::analyzer
