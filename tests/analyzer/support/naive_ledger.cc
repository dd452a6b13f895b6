#include "tests/analyzer/support/naive_ledger.h"

#include <algorithm>

namespace gpumemtrace::tests {
namespace {

bool IsRange(Space space) {
  return space != Space::kArray && space != Space::kVirtual && space != Space::kAlias;
}

}  // namespace

void NaiveLedger::Born(Thing thing) {
  thing.id = next_id_++;
  things_.push_back(thing);
  const auto add = [&](Sum& sum) {
    sum.bytes += thing.size;
    ++sum.count;
    sum.peak = std::max(sum.peak, sum.bytes);
  };
  add(sums_[{thing.level, thing.device}]);
  if (thing.level == Level::kSegment) add(space_sums_[{thing.space, thing.device}]);
}

void NaiveLedger::Die(uint64_t id) {
  const auto thing = std::find_if(things_.begin(), things_.end(), [&](const Thing& t) { return t.id == id; });
  const auto subtract = [&](Sum& sum) {
    sum.bytes -= thing->size;
    --sum.count;
  };
  subtract(sums_[{thing->level, thing->device}]);
  if (thing->level == Level::kSegment) subtract(space_sums_[{thing->space, thing->device}]);
  things_.erase(thing);
}

NaiveLedger::Thing* NaiveLedger::Find(Level level, uint64_t address, bool virtual_memory) {
  for (Thing& thing : things_) {
    if (thing.level == level && thing.address == address &&
        (thing.space == Space::kVirtual) == virtual_memory) {
      return &thing;
    }
  }
  return nullptr;
}

NaiveLedger::Thing* NaiveLedger::ByHandle(uint64_t handle) {
  for (Thing& thing : things_) {
    if (thing.handle_valid && thing.address == handle) return &thing;
  }
  return nullptr;
}

NaiveLedger::Thing* NaiveLedger::ById(uint64_t id) {
  for (Thing& thing : things_) {
    if (thing.id == id) return &thing;
  }
  return nullptr;
}

bool NaiveLedger::Mapped(uint64_t id) const {
  for (const Mapping& mapping : mappings_) {
    if (mapping.owner == id) return true;
  }
  return false;
}

void NaiveLedger::DieIfUnused(uint64_t id) {
  const Thing* thing = id == 0 ? nullptr : ById(id);
  if (thing != nullptr && thing->references == 0 && !Mapped(id)) Die(id);
}

void NaiveLedger::MakeRoom(uint64_t start, uint64_t end) {
  for (size_t i = 0; i < things_.size();) {
    const Thing& thing = things_[i];
    if (thing.level == Level::kSegment && IsRange(thing.space) && thing.address < end &&
        thing.address + thing.size > start) {
      Die(thing.id);
    } else {
      ++i;
    }
  }
  for (size_t i = 0; i < mappings_.size();) {
    const Mapping mapping = mappings_[i];
    if (mapping.start < end && mapping.end > start) {
      mappings_.erase(mappings_.begin() + static_cast<std::ptrdiff_t>(i));
      DieIfUnused(mapping.owner);
    } else {
      ++i;
    }
  }
}

void NaiveLedger::Launch(uint64_t executable) {
  const auto found = executables_.find(executable);
  if (found == executables_.end()) return;
  for (const Node& node : found->second.first) {
    const Thing* live = Find(Level::kSegment, node.address, false);
    if (!node.allocates) {
      if (live != nullptr) Die(live->id);
      continue;
    }
    if (live != nullptr) {
      if (live->space != Space::kGraph || !found->second.second) continue;
      Die(live->id);
    }
    MakeRoom(node.address, node.address + node.size);
    Born({.space = Space::kGraph, .device = node.device, .address = node.address, .size = node.size});
  }
}

void NaiveLedger::Apply(const BuiltEvent& event) {
  const bool failed = event.result != 0;
  if (failed) return;
  Thing thing{.space = event.space, .device = event.device, .address = event.address, .size = event.size};
  switch (event.kind) {
    case EventKind::kBlockAllocate:
      thing.level = Level::kBlock;
      if (const Thing* old = Find(Level::kBlock, event.address, false)) {
        // Born first, so that the peak sees both: the ledger does the same.
        const uint64_t id = old->id;
        Born(thing);
        Die(id);
      } else {
        Born(thing);
      }
      break;
    case EventKind::kBlockFree:
      if (const Thing* old = Find(Level::kBlock, event.address, false)) Die(old->id);
      break;
    case EventKind::kAllocate:
      if (IsRange(event.space)) MakeRoom(event.address, event.address + event.size);
      if (const Thing* old = Find(Level::kSegment, event.address, false)) Die(old->id);
      Born(thing);
      break;
    case EventKind::kFree:
      if (const Thing* old = Find(Level::kSegment, event.address, false)) Die(old->id);
      break;
    case EventKind::kAddressReserve: {
      thing.level = Level::kReservation;
      const Thing* old = Find(Level::kReservation, event.address, true);
      const uint64_t id = old == nullptr ? 0 : old->id;
      Born(thing);
      if (id != 0) Die(id);
      break;
    }
    case EventKind::kAddressFree:
      if (const Thing* old = Find(Level::kReservation, event.address, true)) Die(old->id);
      break;
    case EventKind::kPhysicalCreate: {
      Thing* old = ByHandle(event.address);
      const uint64_t id = old == nullptr ? 0 : old->id;
      if (old != nullptr) {
        old->handle_valid = false;
        old->references = 0;
      }
      thing.references = 1;
      thing.handle_valid = true;
      Born(thing);
      DieIfUnused(id);
      break;
    }
    case EventKind::kPhysicalRelease:
    case EventKind::kImportClose:
      if (Thing* old = ByHandle(event.address)) {
        if (--old->references == 0) old->handle_valid = false;
        DieIfUnused(old->id);
      }
      break;
    case EventKind::kMap: {
      MakeRoom(event.address, event.address + event.size);
      const Thing* owner = ByHandle(event.argument[0]);
      mappings_.push_back({event.address, event.address + event.size, owner == nullptr ? 0 : owner->id});
      break;
    }
    case EventKind::kUnmap: {
      const uint64_t start = event.address;
      const uint64_t end = event.address + event.size;
      std::vector<Mapping> kept;
      std::vector<uint64_t> touched;
      for (const Mapping& mapping : mappings_) {
        if (mapping.end <= start || mapping.start >= end) {
          kept.push_back(mapping);
          continue;
        }
        touched.push_back(mapping.owner);
        if (mapping.start < start) kept.push_back({mapping.start, start, mapping.owner});
        if (mapping.end > end) kept.push_back({end, mapping.end, mapping.owner});
      }
      mappings_ = kept;
      for (const uint64_t owner : touched) DieIfUnused(owner);
      break;
    }
    case EventKind::kImport:
      if (Thing* old = ByHandle(event.address); old != nullptr && old->level == Level::kAlias) {
        ++old->references;
      } else {
        thing.level = Level::kAlias;
        thing.references = 1;
        thing.handle_valid = true;
        Born(thing);
      }
      break;
    case EventKind::kHandleCreate: {
      thing.level = Level::kHandle;
      thing.size = 0;
      const Thing* old = Find(Level::kHandle, event.address, false);
      const uint64_t id = old == nullptr ? 0 : old->id;
      Born(thing);
      if (id != 0) Die(id);
      break;
    }
    case EventKind::kHandleDestroy:
      if (const Thing* old = Find(Level::kHandle, event.address, false)) Die(old->id);
      break;
    case EventKind::kGraphAllocateNode:
      graphs_[event.argument[0]].push_back({true, event.device, event.address, event.size});
      break;
    case EventKind::kGraphFreeNode:
      graphs_[event.argument[0]].push_back({false, event.device, event.address, 0});
      break;
    case EventKind::kGraphInstantiate:
      executables_.erase(event.address);
      if (graphs_.contains(event.argument[0])) {
        executables_[event.address] = {graphs_[event.argument[0]], (event.argument[1] & 1) != 0};
      }
      break;
    case EventKind::kGraphLaunch:
      Launch(event.address);
      break;
    case EventKind::kGraphDestroy:
      graphs_.erase(event.address);
      executables_.erase(event.address);
      break;
    default:
      break;
  }
}

}  // namespace gpumemtrace::tests
