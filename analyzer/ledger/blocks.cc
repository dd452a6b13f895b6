// The ledger's upper level: blocks of caching allocators, and the check against the allocator's own totals.
#include <algorithm>

#include "analyzer/ledger/ledger.h"
#include "analyzer/ledger/lifetimes.h"

namespace gpumemtrace::analyzer {

uint32_t Ledger::ClaimSegments(DeviceBook& book, uint64_t start, uint64_t size) {
  const AddressRange* range = FindRangeCached(start);
  if (range == nullptr || range->slot == kNoSlot) return kNoSlot;
  const uint32_t slot = range->slot;
  const auto claim = [&](uint32_t segment) {
    Allocation& allocation = allocations_[segment];
    if (allocation.holds_blocks || allocation.level != Level::kSegment) return;
    allocation.holds_blocks = true;
    Book(allocation.device).block_segments += allocation.size;
  };
  claim(slot);
  // A block in an expandable segment may span several mappings.
  const uint64_t end = start + std::max<uint64_t>(size, 1);
  uint64_t covered = range->end;
  while (covered < end) {
    range = FindRange(covered);
    if (range == nullptr || range->slot == kNoSlot) break;
    claim(range->slot);
    covered = range->end;
  }
  static_cast<void>(book);
  return slot;
}

void Ledger::CheckBlock(DeviceBook& book, const TraceEvent& event, uint64_t size_change) {
  if ((model_.Site(event.site).flags & kSiteWithoutTotals) != 0) return;
  if (book.check == nullptr) book.check = &self_checks_[book.device];
  SelfCheck& check = *book.check;
  if (!event.totals_known) {
    book.resynchronize = true;
    return;
  }
  const uint64_t allocated = event.argument[0];
  const uint64_t reserved = event.argument[1];
  check.reported_allocated = allocated;
  check.reported_reserved = reserved;
  check.reported_allocated_peak = std::max(check.reported_allocated_peak, allocated);
  check.reported_reserved_peak = std::max(check.reported_reserved_peak, reserved);

  check.computed_allocated += size_change;
  if (book.resynchronize) {
    // What was allocated in the lost part is known from the allocator only.
    book.resynchronize = false;
    check.computed_allocated = allocated;
  } else {
    ++check.allocated_checked;
    if (check.computed_allocated != allocated) {
      if (check.allocated_disagree++ == 0 && check.reserved_disagree == 0) {
        check.first_index = event.index;
        check.first_computed = check.computed_allocated;
        check.first_reported = allocated;
      }
    }
  }
  check.computed_reserved = book.block_segments;
  if (book.homeless_blocks == 0) {
    ++check.reserved_checked;
    if (book.block_segments != reserved) {
      if (check.reserved_disagree++ == 0 && check.allocated_disagree == 0) {
        check.first_index = event.index;
        check.first_is_reserved = true;
        check.first_computed = book.block_segments;
        check.first_reported = reserved;
      }
    }
  }
}

void Ledger::OnBlockEvent(const TraceEvent& event, const SiteInfo& site) {
  ++block_events_;
  DeviceBook& book = Book(site.device);
  switch (event.kind) {
    case EventKind::kBlockAllocate: {
      const uint32_t slot =
          Birth(event, event.site, site.device, Level::kBlock, site.space, event.address, event.size, 0);
      const uint32_t before = blocks_.Set(event.address, slot);
      if (before != kNoSlot) {
        // Its free was lost: the address cannot have been given out twice.
        ++anomalies_.address_reused_while_live;
        Death(before, event, kChangeImplicit);
      }
      const uint32_t segment = ClaimSegments(book, event.address, event.size);
      allocations_[slot].segment = segment;
      if (segment == kNoSlot) ++book.homeless_blocks;
      AddChange(event, ChangeKind::kBirth, slot, 0);
      CheckBlock(book, event, event.size);
      break;
    }
    case EventKind::kBlockFree: {
      uint32_t slot = SlotOfObject(event);
      if (slot == kNoSlot && event.address != 0) slot = blocks_.Find(event.address);
      CheckBlock(book, event, 0 - event.size);
      if (slot == kNoSlot) {
        UnknownFree(event, site, Level::kBlock, 0);
        break;
      }
      const bool other_device = allocations_[slot].device != site.device;
      if (other_device) ++anomalies_.other_device_frees;
      Death(slot, event, other_device ? kChangeOtherDevice : 0);
      break;
    }
    default: {
      CheckBlock(book, event, 0);
      AddFreeStanding(event, site, ChangeKind::kOutOfMemory, Level::kBlock);
      Deliver();
      break;
    }
  }
}

}  // namespace gpumemtrace::analyzer
