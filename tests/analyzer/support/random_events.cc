#include "tests/analyzer/support/random_events.h"

#include <random>

namespace gpumemtrace::tests {
namespace {

constexpr uint64_t kMiB = 1u << 20;

class Generator {
 public:
  Generator(uint64_t seed, bool wild) : random_(seed), wild_(wild) {}

  BuiltEvent Next() {
    BuiltEvent event;
    event.device = static_cast<int32_t>(Below(2));
    event.thread = 1;
    switch (Below(20)) {
      case 0:
        return Allocate(event);
      case 1:
        return End(event, EventKind::kFree, segments_);
      case 2:
        return Physical(event);
      case 3:
        return MapOne(event);
      case 4:
        return UnmapOne(event);
      case 5:
        return Release(event);
      case 6:
        return Handle(event);
      case 7:
        return Graph(event);
      case 8:
        return Import(event);
      case 9:
        return Reservation(event);
      default:
        return Block(event);
    }
  }

 private:
  struct Thing {
    uint64_t address;
    uint64_t size;
    int32_t device;
  };

  uint64_t Below(uint64_t limit) { return random_() % limit; }
  bool Wild() { return wild_ && Below(40) == 0; }
  // Few distinct addresses, so that they come again.
  uint64_t Address(uint64_t base, uint64_t step, uint64_t places) { return base + step * Below(places); }
  bool Taken(const std::vector<Thing>& things, uint64_t address) {
    for (const Thing& thing : things) {
      if (thing.address == address) return true;
    }
    return false;
  }
  Thing Take(std::vector<Thing>& things) {
    const size_t i = Below(things.size());
    const Thing thing = things[i];
    things[i] = things.back();
    things.pop_back();
    return thing;
  }

  BuiltEvent Block(BuiltEvent event) {
    if (!blocks_.empty() && Below(2) == 0) {
      const Thing thing = Take(blocks_);
      event.kind = EventKind::kBlockFree;
      event.address = thing.address;
      event.size = thing.size;
      event.device = thing.device;
      allocated_[event.device] -= thing.size;
    } else {
      event.kind = Below(200) == 0 ? EventKind::kBlockOutOfMemory : EventKind::kBlockAllocate;
      event.size = 512 * (1 + Below(64));
      event.size_varies = Below(10) == 0;
      if (event.kind == EventKind::kBlockAllocate) {
        event.address = Address(0x7f0000000000, 64 * 512, 256);
        if (Taken(blocks_, event.address)) {
          if (!Wild()) return Handle(event);
          std::erase_if(blocks_, [&](const Thing& thing) { return thing.address == event.address; });
        }
        blocks_.push_back({event.address, event.size, event.device});
        allocated_[event.device] += event.size;
      }
    }
    event.api = "c10";
    event.argument[0] = allocated_[event.device];
    event.argument[1] = reserved_;
    if (event.kind == EventKind::kBlockFree && Wild()) event.address += 256;
    return event;
  }

  BuiltEvent Allocate(BuiltEvent event) {
    static constexpr Space kSpaces[] = {Space::kDevice,        Space::kManaged, Space::kPinnedHost,
                                        Space::kStreamOrdered, Space::kArray,   Space::kRegisteredHost};
    event.kind = EventKind::kAllocate;
    event.space = kSpaces[Below(6)];
    event.size = kMiB * (1 + Below(4));
    event.address = Address(0x7f0000000000, 4 * kMiB, 64);
    if (event.space == Space::kPinnedHost) event.device = -1;
    if (Below(30) == 0) event.result = 2;  // out of memory
    if (event.result == 0) {
      if (Taken(segments_, event.address)) {
        if (!Wild()) return Handle(event);
        std::erase_if(segments_, [&](const Thing& thing) { return thing.address == event.address; });
      }
      segments_.push_back({event.address, event.size, event.device});
    }
    return event;
  }

  BuiltEvent End(BuiltEvent event, EventKind kind, std::vector<Thing>& things) {
    if (things.empty()) return Handle(event);
    const Thing thing = Take(things);
    event.kind = kind;
    event.address = thing.address;
    event.device = thing.device;
    event.api = "cudaFree";
    if (Wild()) event.address += 4096;
    if (Wild()) event.result = 1;
    return event;
  }

  BuiltEvent Physical(BuiltEvent event) {
    event.kind = EventKind::kPhysicalCreate;
    event.space = Space::kVirtual;
    event.address = 0x5000 + 16 * Below(64);  // a handle
    event.size = 2 * kMiB * (1 + Below(4));
    if (Taken(handles_, event.address)) return Handle(event);
    handles_.push_back({event.address, event.size, event.device});
    return event;
  }

  BuiltEvent MapOne(BuiltEvent event) {
    if (handles_.empty()) return Physical(event);
    const Thing handle = handles_[Below(handles_.size())];
    event.kind = EventKind::kMap;
    event.space = Space::kVirtual;
    event.address = Address(0x600000000000, 8 * kMiB, 32);
    if (Taken(mappings_, event.address)) return UnmapOne(event);
    event.size = handle.size;
    event.argument[0] = handle.address;
    event.device = handle.device;
    mappings_.push_back({event.address, event.size, event.device});
    return event;
  }

  BuiltEvent UnmapOne(BuiltEvent event) {
    if (mappings_.empty()) return Physical(event);
    const Thing mapping = Take(mappings_);
    event.kind = EventKind::kUnmap;
    event.space = Space::kVirtual;
    event.address = mapping.address;
    event.size = mapping.size;
    if (Wild()) event.size /= 2;
    return event;
  }

  BuiltEvent Release(BuiltEvent event) {
    if (handles_.empty()) return Physical(event);
    const Thing handle = Take(handles_);
    event.kind = EventKind::kPhysicalRelease;
    event.space = Space::kVirtual;
    event.address = handle.address;
    if (Wild()) event.address += 8;
    return event;
  }

  BuiltEvent Handle(BuiltEvent event) {
    event = BuiltEvent{.device = event.device, .api = "cudaStreamCreate"};
    if (!streams_.empty() && Below(2) == 0) return End(event, EventKind::kHandleDestroy, streams_);
    event.kind = EventKind::kHandleCreate;
    event.address = 0x1000000 + 64 * next_handle_++;
    streams_.push_back({event.address, 0, event.device});
    return event;
  }

  BuiltEvent Graph(BuiltEvent event) {
    event.argument[0] = 0x900 + Below(4);
    switch (Below(6)) {
      case 0:
        event.kind = EventKind::kGraphAllocateNode;
        event.space = Space::kGraph;
        event.address = Address(0x610000000000, kMiB, 16);
        event.size = kMiB;
        event.argument[1] = 0xaa00 + Below(1000);
        break;
      case 1:
        event.kind = EventKind::kGraphFreeNode;
        event.space = Space::kGraph;
        event.address = Address(0x610000000000, kMiB, 16);
        event.argument[1] = 0xaa00 + Below(1000);
        break;
      case 2:
        event.kind = EventKind::kGraphInstantiate;
        event.address = 0xa00 + Below(4);
        event.argument[1] = Below(2);
        break;
      case 5:
        event.kind = EventKind::kGraphDestroy;
        event.address = (Below(2) == 0 ? 0x900 : 0xa00) + Below(4);
        event.argument[0] = 0;
        break;
      default:
        event.kind = EventKind::kGraphLaunch;
        event.address = 0xa00 + Below(4);
        event.argument[0] = 0;
        break;
    }
    return event;
  }

  BuiltEvent Import(BuiltEvent event) {
    event.space = Space::kAlias;
    if (!imports_.empty() && Below(2) == 0) return End(event, EventKind::kImportClose, imports_);
    event.kind = EventKind::kImport;
    event.address = Address(0x620000000000, kMiB, 8);
    event.size = kMiB;
    event.argument[0] = random_();
    imports_.push_back({event.address, event.size, event.device});
    return event;
  }

  BuiltEvent Reservation(BuiltEvent event) {
    event.space = Space::kVirtual;
    if (!reservations_.empty() && Below(2) == 0) return End(event, EventKind::kAddressFree, reservations_);
    event.kind = EventKind::kAddressReserve;
    event.address = Address(0x630000000000, 1024 * kMiB, 16);
    event.size = 512 * kMiB;
    if (Taken(reservations_, event.address)) return Handle(event);
    reservations_.push_back({event.address, event.size, event.device});
    return event;
  }

  std::mt19937_64 random_;
  const bool wild_;
  uint64_t allocated_[2] = {0, 0};
  uint64_t reserved_ = 64 * kMiB;
  uint64_t next_handle_ = 0;
  std::vector<Thing> blocks_;
  std::vector<Thing> segments_;
  std::vector<Thing> handles_;
  std::vector<Thing> mappings_;
  std::vector<Thing> streams_;
  std::vector<Thing> imports_;
  std::vector<Thing> reservations_;
};

}  // namespace

std::vector<BuiltEvent> RandomEvents(uint64_t seed, size_t count, bool wild) {
  Generator generator(seed, wild);
  std::vector<BuiltEvent> events;
  for (size_t i = 0; i < count; ++i) events.push_back(generator.Next());
  return events;
}

}  // namespace gpumemtrace::tests
