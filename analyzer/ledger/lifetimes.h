// Steps of the ledger that every block takes, in a header so that the compiler can put them where they are
// called. For the ledger's own files only.
#pragma once

#include "analyzer/ledger/ledger.h"

namespace gpumemtrace::analyzer {

inline void AddTo(Totals& totals, uint64_t size, const TraceEvent& event) {
  totals.bytes += size;
  ++totals.count;
  ++totals.births;
  totals.born_bytes += size;
  if (totals.bytes > totals.peak_bytes) {
    totals.peak_bytes = totals.bytes;
    totals.peak_index = event.index;
    totals.peak_time_us = event.time_us;
  }
}

inline const AddressRange* Ledger::FindRangeCached(uint64_t address) const {
  // Segments of caching allocators are multiples of 2 MiB.
  AddressRange& cached = range_cache_[(address >> 21) % range_cache_.size()];
  if (address >= cached.start && address < cached.end) return &cached;
  const AddressRange* range = FindRange(address);
  if (range != nullptr) cached = *range;
  return range;
}

inline uint32_t Ledger::NewSlot() {
  if (!free_slots_.empty()) {
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  allocations_.emplace_back();
  return static_cast<uint32_t>(allocations_.size() - 1);
}

inline uint32_t Ledger::SlotOfObject(const TraceEvent& event) const {
  // kNoSlot, too, is greater.
  if (event.object >= slot_of_object_.size()) return kNoSlot;
  const uint32_t slot = slot_of_object_[event.object];
  if (slot == kNoSlot) return kNoSlot;
  const Allocation& allocation = allocations_[slot];
  // Else it ended without a free.
  return allocation.live && allocation.birth_index == event.birth_index ? slot : kNoSlot;
}

inline void Ledger::AddChange(const TraceEvent& event, ChangeKind kind, uint32_t slot, uint8_t flags) {
  Change& change = changes_.Next();
  const Allocation& allocation = allocations_[slot];
  change.index = event.index;
  change.sequence = event.sequence;
  change.time_us = event.time_us;
  change.address = allocation.address;
  change.size = allocation.size;
  change.birth_index = allocation.birth_index;
  change.birth_time_us = allocation.birth_time_us;
  change.slot = slot;
  change.site = allocation.site;
  change.cause = event.site;
  change.segment = allocation.segment;
  change.device = allocation.device;
  change.kind = kind;
  change.level = allocation.level;
  change.space = allocation.space;
  change.flags = flags;
  const bool block = allocation.level == Level::kBlock;
  change.reported_allocated = block ? event.argument[0] : 0;
  change.reported_reserved = block ? event.argument[1] : 0;
}

inline uint32_t Ledger::Birth(const TraceEvent& event, SiteId site, int32_t device, Level level, Space space,
                              uint64_t address, uint64_t size, uint8_t flags) {
  const uint32_t slot = NewSlot();
  // Every field is set.
  Allocation& allocation = allocations_[slot];
  allocation.birth_index = event.index;
  allocation.birth_sequence = event.sequence;
  allocation.birth_time_us = event.time_us;
  allocation.address = address;
  allocation.size = size;
  allocation.context = 0;
  allocation.site = site;
  allocation.segment = kNoSlot;
  allocation.device = device;
  allocation.level = level;
  allocation.space = space;
  allocation.live = true;
  allocation.holds_blocks = false;
  allocation.estimated_size = (flags & kChangeEstimatedSize) != 0;
  if (event.object != kNoSlot) {
    if (event.object >= slot_of_object_.size()) slot_of_object_.resize(event.object + size_t{1}, kNoSlot);
    slot_of_object_[event.object] = slot;
  }
  DeviceBook& book = Book(device);
  AddTo(book.levels[static_cast<size_t>(level)], size, event);
  if (level == Level::kSegment) AddTo(book.spaces[static_cast<size_t>(space)], size, event);
  if (level != Level::kBlock) AddChange(event, ChangeKind::kBirth, slot, flags);
  return slot;
}

}  // namespace gpumemtrace::analyzer
