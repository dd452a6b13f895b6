// The ledger's lower level: what the driver gave. Ordinary and stream-ordered memory, virtual memory with its
// references and mappings, imported memory, graphs, contexts, handles.
#include <algorithm>

#include "analyzer/ledger/ledger.h"
#include "analyzer/ledger/lifetimes.h"

namespace gpumemtrace::analyzer {
namespace {

// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH of cuda.h (11.4 and later).
constexpr uint64_t kAutoFreeOnLaunch = 1;

constexpr size_t kMaxDisplaced = 1u << 20;

uint8_t SizeFlags(const SiteInfo& site) {
  return (site.flags & kSiteEstimatedSize) != 0 ? kChangeEstimatedSize : uint8_t{0};
}

// What dies with the context it was made in (CUDA Driver API, cuCtxDestroy): not stream-ordered, virtual or
// graph memory.
bool DiesWithContext(Space space) {
  return space == Space::kDevice || space == Space::kManaged || space == Space::kPinnedHost ||
         space == Space::kArray;
}

}  // namespace

void Ledger::OnSegmentEvent(const TraceEvent& event, const SiteInfo& site) {
  if (site.failed()) {
    Failed(event, site);
    return;
  }
  switch (event.kind) {
    case EventKind::kAllocate:
      AllocateSegment(event, site);
      break;
    case EventKind::kFree:
      FreeSegment(event, site);
      break;
    case EventKind::kAddressReserve: {
      const uint32_t slot = Birth(event, event.site, site.device, Level::kReservation, site.space,
                                  event.address, event.size, 0);
      const uint32_t before = reservations_.Set(event.address, slot);
      if (before != kNoSlot) {
        ++anomalies_.address_reused_while_live;
        Death(before, event, kChangeImplicit);
      }
      break;
    }
    case EventKind::kAddressFree: {
      uint32_t slot = SlotOfObject(event);
      if (slot == kNoSlot) slot = reservations_.Find(event.address);
      if (slot == kNoSlot) {
        UnknownFree(event, site, Level::kReservation, 0);
      } else {
        Death(slot, event, 0);
      }
      break;
    }
    case EventKind::kPhysicalCreate:
      CreatePhysical(event, site);
      break;
    case EventKind::kPhysicalRetain:
      RetainPhysical(event);
      break;
    case EventKind::kPhysicalRelease:
      ReleasePhysical(event, site);
      break;
    case EventKind::kMap:
      Map(event, site);
      break;
    case EventKind::kUnmap:
      Unmap(event, site);
      break;
    case EventKind::kImport:
      Import(event, site);
      break;
    case EventKind::kImportClose:
      ReleasePhysical(event, site);
      break;
    case EventKind::kGraphAllocateNode:
      graphs_[event.argument[0]].push_back({true, site.device, event.site, event.address, event.size});
      AddFreeStanding(event, site, ChangeKind::kSeen, Level::kSegment);
      break;
    case EventKind::kGraphFreeNode:
      graphs_[event.argument[0]].push_back({false, site.device, event.site, event.address, 0});
      AddFreeStanding(event, site, ChangeKind::kSeen, Level::kSegment);
      break;
    case EventKind::kGraphInstantiate:
      Instantiate(event);
      AddFreeStanding(event, site, ChangeKind::kSeen, Level::kHandle);
      break;
    case EventKind::kGraphLaunch:
      Launch(event);
      break;
    case EventKind::kContextDestroy:
      DestroyContext(event);
      break;
    case EventKind::kPoolCreate:
    case EventKind::kContextCreate:
    case EventKind::kHandleCreate: {
      const uint32_t slot =
          Birth(event, event.site, site.device, Level::kHandle, site.space, event.address, 0, 0);
      const uint32_t before = handles_.Set(event.address, slot);
      if (before != kNoSlot) Death(before, event, kChangeImplicit);
      break;
    }
    case EventKind::kPoolDestroy:
    case EventKind::kGraphDestroy:
    case EventKind::kHandleDestroy: {
      // Memory of launched graphs stays; only the recipe goes.
      graphs_.erase(event.address);
      executables_.erase(event.address);
      uint32_t slot = SlotOfObject(event);
      if (slot == kNoSlot) slot = handles_.Find(event.address);
      if (slot != kNoSlot) {
        Death(slot, event, 0);
      } else {
        // Handles come into being in many ways that are not recorded (a capture that ends, a library's own
        // calls): not an error of the program, whose own mistakes the driver answers with a result.
        AddFreeStanding(event, site, ChangeKind::kSeen, Level::kHandle);
      }
      break;
    }
    case EventKind::kKernelLaunch:
      AddFreeStanding(event, site, ChangeKind::kLaunch, Level::kSegment).size = event.argument[0];
      break;
    default:  // pool and graph trims change no allocation; kinds of a later version
      break;
  }
}

void Ledger::Failed(const TraceEvent& event, const SiteInfo& site) {
  // The driver refuses the address itself: cudaErrorInvalidValue = CUDA_ERROR_INVALID_VALUE = 1 and
  // cudaErrorInvalidDevicePointer = 17 (driver_types.h and cuda.h of CUDA 13). Other errors, such as those
  // after the driver has shut down, say nothing about it.
  const bool refused = site.result == 1 || site.result == 17;
  const bool freed_before = freed_.contains(event.address);
  if (event.kind == EventKind::kFree && event.address != 0 && SlotOfObject(event) == kNoSlot &&
      segments_.Find(event.address) == kNoSlot && (freed_before || refused)) {
    UnknownFree(event, site, Level::kSegment, freed_before ? kChangeDoubleFree : uint8_t{0});
  } else {
    AddFreeStanding(event, site, ChangeKind::kFailed, Level::kSegment);
  }
  Deliver();
}

void Ledger::EraseRange(absl::btree_map<uint64_t, AddressRange>::iterator range, const TraceEvent& event) {
  const AddressRange old = range->second;
  ranges_.erase(range);
  RangesChanged();
  if (old.slot == kNoSlot) return;
  if (!old.mapping) {
    ++anomalies_.address_reused_while_live;
    displaced_[old.start] = event.sequence;
    if (displaced_.size() >= kMaxDisplaced) displaced_.clear();
    Death(old.slot, event, kChangeImplicit);
    return;
  }
  const auto references = references_.find(old.slot);
  if (references != references_.end()) references->second.mapped_bytes -= old.end - old.start;
  AddChange(event, ChangeKind::kUnmap, old.slot, 0);
  changes_.back().address = old.start;
  changes_.back().size = old.end - old.start;
  DropIfUnreferenced(old.slot, event);
}

void Ledger::EvictRange(uint64_t start, uint64_t end, const TraceEvent& event) {
  for (;;) {
    auto range = ranges_.upper_bound(start);
    if (range != ranges_.begin() && std::prev(range)->second.end > start) {
      --range;
    } else if (range == ranges_.end() || range->second.start >= end) {
      return;
    }
    EraseRange(range, event);
  }
}

void Ledger::AllocateSegment(const TraceEvent& event, const SiteInfo& site) {
  const uint64_t start = event.address;
  const bool alias = site.space == Space::kAlias;
  const bool has_range = HasAddressRange(site.space) && event.size != 0;
  // A range that ends beyond the address space cannot be.
  const uint64_t end = start + std::min(event.size, UINT64_MAX - start);
  if (has_range && end > start) EvictRange(start, end, event);
  const uint32_t before = segments_.Find(start);
  if (before != kNoSlot) {
    ++anomalies_.address_reused_while_live;
    displaced_[start] = event.sequence;
    Death(before, event, kChangeImplicit);
  }
  const uint32_t slot = Birth(event, event.site, site.device, alias ? Level::kAlias : Level::kSegment,
                              site.space, start, event.size, SizeFlags(site));
  allocations_[slot].context = event.argument[1];
  if (alias) {
    physical_.Set(start, slot);
    references_[slot].handles = 1;
    return;
  }
  segments_.Set(start, slot);
  freed_.erase(start);
  if (has_range && end > start) {
    ranges_[start] = {.start = start, .end = end, .slot = slot, .offset = 0, .mapping = false};
    RangesChanged();
  }
}

void Ledger::FreeSegment(const TraceEvent& event, const SiteInfo& site) {
  uint32_t slot = SlotOfObject(event);
  if (slot == kNoSlot && event.address != 0) slot = segments_.Find(event.address);
  if (slot == kNoSlot && event.address != 0) {
    // A buffer of external memory is released with cuMemFree.
    const uint32_t imported = physical_.Find(event.address);
    if (imported != kNoSlot && allocations_[imported].level == Level::kAlias) {
      ReleasePhysical(event, site);
      return;
    }
  }
  if (slot == kNoSlot || event.sequence < allocations_[slot].birth_sequence) {
    const auto displaced = displaced_.find(event.address);
    if (displaced != displaced_.end() && event.sequence < displaced->second) {
      // The free of the allocation that had this address before; it was ended when the address came again.
      ++anomalies_.late_frees;
      displaced_.erase(displaced);
      return;
    }
  }
  if (slot == kNoSlot) {
    UnknownFree(event, site, Level::kSegment,
                freed_.contains(event.address) ? kChangeDoubleFree : uint8_t{0});
    return;
  }
  const bool other_device =
      site.device >= 0 && allocations_[slot].device >= 0 && allocations_[slot].device != site.device;
  if (other_device) ++anomalies_.other_device_frees;
  Death(slot, event, other_device ? kChangeOtherDevice : uint8_t{0});
}

void Ledger::CreatePhysical(const TraceEvent& event, const SiteInfo& site) {
  const Level level = site.space == Space::kAlias ? Level::kAlias : Level::kSegment;
  const Space space = level == Level::kAlias ? Space::kAlias : Space::kVirtual;
  const uint32_t slot =
      Birth(event, event.site, site.device, level, space, event.address, event.size, SizeFlags(site));
  // A handle's number may come again while the old memory is still mapped: the old slot lives on.
  const uint32_t before = physical_.Set(event.address, slot);
  references_[slot].handles = 1;
  if (before != kNoSlot) {
    ++anomalies_.address_reused_while_live;
    references_[before].handles = 0;
    DropIfUnreferenced(before, event);
  }
}

void Ledger::RetainPhysical(const TraceEvent& event) {
  const AddressRange* range = FindRange(event.argument[0]);
  const uint32_t slot = range != nullptr && range->mapping ? range->slot : physical_.Find(event.address);
  if (slot == kNoSlot || !references_.contains(slot)) return;
  physical_.Set(event.address, slot);
  ++references_[slot].handles;
}

void Ledger::ReleasePhysical(const TraceEvent& event, const SiteInfo& site) {
  uint32_t slot = SlotOfObject(event);
  if (slot == kNoSlot) slot = physical_.Find(event.address);
  const auto references = references_.find(slot);
  if (slot == kNoSlot || references == references_.end()) {
    UnknownFree(event, site, event.kind == EventKind::kImportClose ? Level::kAlias : Level::kSegment, 0);
    return;
  }
  if (references->second.handles > 0) --references->second.handles;
  if (references->second.handles == 0) physical_.Erase(event.address, slot);
  DropIfUnreferenced(slot, event);
}

void Ledger::DropIfUnreferenced(uint32_t slot, const TraceEvent& event) {
  const auto references = references_.find(slot);
  if (references == references_.end()) return;
  if (references->second.handles == 0 && references->second.mapped_bytes == 0) Death(slot, event, 0);
}

void Ledger::Map(const TraceEvent& event, const SiteInfo& site) {
  const uint64_t start = event.address;
  const uint64_t end = start + std::min(event.size, UINT64_MAX - start);
  if (end <= start) return;
  EvictRange(start, end, event);
  const uint32_t slot = physical_.Find(event.argument[0]);
  ranges_[start] = {.start = start, .end = end, .slot = slot, .offset = event.argument[1], .mapping = true};
  RangesChanged();
  static_cast<void>(site);
  if (slot == kNoSlot) return;
  references_[slot].mapped_bytes += end - start;
  AddChange(event, ChangeKind::kMap, slot, 0);
  changes_.back().address = start;
  changes_.back().size = end - start;
}

void Ledger::Unmap(const TraceEvent& event, const SiteInfo& site) {
  const uint64_t start = event.address;
  const uint64_t end = start + std::min(event.size, UINT64_MAX - start);
  if (end <= start) {
    // Of nothing: splitting a mapping there would leave it as it was, for ever.
    UnknownFree(event, site, Level::kReservation, 0);
    return;
  }
  bool any = false;
  // cuMemUnmap takes any range made of whole mappings; a piece of one is an error that the driver refuses, so
  // it means that we missed something: only the piece goes.
  for (;;) {
    auto range = ranges_.upper_bound(start);
    if (range != ranges_.begin() && std::prev(range)->second.end > start) {
      --range;
    } else if (range == ranges_.end() || range->second.start >= end) {
      break;
    }
    const AddressRange old = range->second;
    if (!old.mapping) break;
    any = true;
    const bool partial = old.start < start || old.end > end;
    if (!partial) {
      EraseRange(range, event);
      continue;
    }
    ++anomalies_.partial_unmaps;
    ranges_.erase(range);
    if (old.start < start) {
      AddressRange left = old;
      left.end = start;
      ranges_[left.start] = left;
    }
    if (old.end > end) {
      AddressRange right = old;
      right.start = end;
      right.offset = old.offset + (end - old.start);
      ranges_[right.start] = right;
    }
    RangesChanged();
    const uint64_t bytes = std::min(end, old.end) - std::max(start, old.start);
    if (old.slot != kNoSlot) {
      references_[old.slot].mapped_bytes -= bytes;
      AddChange(event, ChangeKind::kUnmap, old.slot, 0);
      changes_.back().address = std::max(start, old.start);
      changes_.back().size = bytes;
    }
  }
  if (!any) UnknownFree(event, site, Level::kReservation, 0);
}

void Ledger::Import(const TraceEvent& event, const SiteInfo& site) {
  // Opening the same IPC handle again gives the same address and one more reference.
  const uint32_t known = physical_.Find(event.address);
  if (known != kNoSlot && allocations_[known].level == Level::kAlias) {
    ++references_[known].handles;
    return;
  }
  const uint32_t slot = Birth(event, event.site, site.device, Level::kAlias, Space::kAlias, event.address,
                              event.size, SizeFlags(site));
  physical_.Set(event.address, slot);
  references_[slot].handles = 1;
}

void Ledger::Instantiate(const TraceEvent& event) {
  executables_.erase(event.address);
  const auto graph = graphs_.find(event.argument[0]);
  if (graph == graphs_.end()) return;
  GraphExecutable& executable = executables_[event.address];
  executable.nodes = graph->second;
  executable.free_on_launch = (event.argument[1] & kAutoFreeOnLaunch) != 0;
}

// A launch runs the memory nodes of the graph; the order in which they were added is one in which they may
// run.
void Ledger::Launch(const TraceEvent& event) {
  const auto found = executables_.find(event.address);
  if (found == executables_.end()) return;
  const GraphExecutable& executable = found->second;
  TraceEvent launch = event;
  launch.object = kNoSlot;
  for (const GraphNode& node : executable.nodes) {
    const uint32_t live = segments_.Find(node.address);
    if (!node.allocates) {
      if (live != kNoSlot) Death(live, launch, 0);
      continue;
    }
    if (live != kNoSlot) {
      // Still there from the launch before: without auto-free the driver refuses the launch.
      if (allocations_[live].space != Space::kGraph || !executable.free_on_launch) continue;
      Death(live, launch, kChangeImplicit);
    }
    const uint64_t end = node.address + std::min(node.size, UINT64_MAX - node.address);
    if (end > node.address) EvictRange(node.address, end, launch);
    const uint32_t slot =
        Birth(launch, node.site, node.device, Level::kSegment, Space::kGraph, node.address, node.size, 0);
    segments_.Set(node.address, slot);
    freed_.erase(node.address);
    if (end > node.address) {
      ranges_[node.address] = {
          .start = node.address, .end = end, .slot = slot, .offset = 0, .mapping = false};
      RangesChanged();
    }
  }
}

void Ledger::DestroyContext(const TraceEvent& event) {
  const SiteInfo& site = model_.Site(event.site);
  for (uint32_t slot = 0; slot < allocations_.size(); ++slot) {
    const Allocation& allocation = allocations_[slot];
    if (!allocation.live) continue;
    // Host memory of the primary context may carry no device.
    const bool same_context =
        allocation.context == event.address && (allocation.device == site.device || event.address != 0);
    const bool memory = allocation.level == Level::kSegment && DiesWithContext(allocation.space);
    const bool handle = allocation.level == Level::kHandle && event.address == 0 &&
                        model_.Site(allocation.site).kind == EventKind::kHandleCreate;
    if ((memory || handle) && same_context) Death(slot, event, kChangeImplicit);
  }
  const uint32_t context = handles_.Find(event.address);
  if (context != kNoSlot) Death(context, event, 0);
}

}  // namespace gpumemtrace::analyzer
