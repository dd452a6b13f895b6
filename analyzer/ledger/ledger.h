// The live set: turns events into births and deaths of allocations, on two levels that are never added up:
// blocks (what caching allocators gave to the program) and segments (what the driver gave), with reference
// counts and mappings of virtual memory, graph launches, contexts, aliases. Checks itself against the
// allocator's own totals on every block event.
//
// Analyses are observers: they get changes in batches (one virtual call per batch and analysis, about a
// thousand changes each) and may ask the ledger for its state at the end of the batch.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "analyzer/ledger/address_map.h"
#include "analyzer/trace/model.h"
#include "analyzer/trace/reader.h"

namespace gpumemtrace::analyzer {

enum class Level : uint8_t {
  kBlock,    // tensors of a caching allocator
  kSegment,  // memory that the driver gave; for virtual memory: the physical memory, from its creation until
             // the last reference and the last mapping are gone
  kAlias,    // memory owned elsewhere (IPC, external, imported handles): not part of this process's bytes
  kReservation,  // address space, no memory
  kHandle,       // streams, pools, contexts, graphs, library handles: bytes unknown (size 0)
};
constexpr int kLevelCount = 5;

enum class ChangeKind : uint8_t {
  kBirth,
  kDeath,
  // A caching allocator gave up: `size` is what was asked for. The batch ends after it.
  kOutOfMemory,
  // A driver call failed: `size` is what was asked for, the result stands in the site. The batch ends after
  // it.
  kFailed,
  // Something was freed that is not live: a double free, or born before tracing or in a lost part.
  kUnknownFree,
  // Physical memory `slot` got or lost an address: `address`, `size` = the mapped range.
  kMap,
  kUnmap,
  // A kernel was launched (not every launch is recorded): `size` = device bytes that disappeared with it.
  kLaunch,
  // A call with a stack that changes no live set: captured into a graph, a graph instantiated, a handle
  // destroyed whose making is not recorded. Tells where the program is.
  kSeen,
};

// Bits of Change::flags.
constexpr uint8_t kChangeImplicit = 1u << 0;       // death without a free: context destroyed, address reused
constexpr uint8_t kChangeEstimatedSize = 1u << 1;  // arrays
constexpr uint8_t kChangeDoubleFree = 1u << 2;     // kUnknownFree of an address that was freed before
constexpr uint8_t kChangeOtherDevice = 1u << 3;    // freed on another device than it was made on

// Self-contained: still right after the slot has been reused.
struct Change {
  uint64_t index = 0;  // of the event that caused it
  uint64_t sequence = 0;
  uint64_t time_us = 0;
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t birth_index = kNoIndex;
  uint64_t birth_time_us = 0;
  // Blocks: the allocator's totals after the event.
  uint64_t reported_allocated = 0;
  uint64_t reported_reserved = 0;
  // Dense number of the allocation, stable while it lives, reused afterwards; kNoSlot for failures and
  // unknown frees. Analyses can keep what they know about live allocations in vectors indexed by it.
  uint32_t slot = kNoSlot;
  // Where the allocation was made (births and deaths alike); for kUnknownFree where it was freed.
  SiteId site = 0;
  // Site of the event that caused the change (for deaths: who freed).
  SiteId cause = 0;
  // Blocks: slot of the segment that holds the first byte, kNoSlot = not seen.
  uint32_t segment = kNoSlot;
  int32_t device = -1;
  ChangeKind kind = ChangeKind::kBirth;
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  uint8_t flags = 0;
};

// The changes of a batch. Entries are kept and written over: most of a change's fields are set anyway, so
// none is cleared first.
class ChangeBuffer {
 public:
  explicit ChangeBuffer(size_t capacity) : changes_(capacity) {}
  // The caller sets every field.
  Change& Next() {
    if (size_ == changes_.size()) changes_.resize(2 * size_);
    return changes_[size_++];
  }
  Change& back() { return changes_[size_ - 1]; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void clear() { size_ = 0; }
  std::span<const Change> all() const { return {changes_.data(), size_}; }

 private:
  std::vector<Change> changes_;
  size_t size_ = 0;
};

struct Allocation {
  uint64_t birth_index = kNoIndex;
  uint64_t birth_sequence = 0;
  uint64_t birth_time_us = 0;
  // Blocks, ordinary segments, reservations: the start. Physical memory: the handle.
  uint64_t address = 0;
  uint64_t size = 0;
  // Ordinary segments: the context they were made in, 0 = the device's primary context or unknown.
  uint64_t context = 0;
  SiteId site = 0;
  uint32_t segment = kNoSlot;  // of a block
  int32_t device = -1;
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  bool live = false;
  // Segment: a caching allocator's blocks were seen in it, so it is the allocator's.
  bool holds_blocks = false;
  bool estimated_size = false;
};

// A range of addresses backed by memory: an ordinary allocation, or one mapping of physical memory.
struct AddressRange {
  uint64_t start = 0;
  uint64_t end = 0;
  uint32_t slot = kNoSlot;  // the segment
  uint64_t offset = 0;      // of `start` in the physical memory
  bool mapping = false;
};

// Memory of this space has an address range of its own; arrays have handles, virtual memory has mappings.
constexpr bool HasAddressRange(Space space) {
  return space != Space::kArray && space != Space::kVirtual && space != Space::kAlias;
}

struct Totals {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t peak_bytes = 0;
  uint64_t peak_index = kNoIndex;  // event at which the peak was first reached
  uint64_t peak_time_us = 0;
  uint64_t births = 0;
  uint64_t deaths = 0;
  uint64_t born_bytes = 0;
};

// Result of checking the running sums against what the allocator reports, per device.
struct SelfCheck {
  uint64_t allocated_checked = 0;
  uint64_t allocated_disagree = 0;
  uint64_t reserved_checked = 0;
  uint64_t reserved_disagree = 0;
  // First disagreement.
  uint64_t first_index = kNoIndex;
  bool first_is_reserved = false;
  uint64_t first_computed = 0;
  uint64_t first_reported = 0;
  // Last computed and last reported.
  uint64_t computed_allocated = 0;
  uint64_t reported_allocated = 0;
  uint64_t computed_reserved = 0;
  uint64_t reported_reserved = 0;
  uint64_t reported_allocated_peak = 0;
  uint64_t reported_reserved_peak = 0;
};

struct Anomalies {
  uint64_t unknown_frees = 0;
  uint64_t double_frees = 0;
  uint64_t other_device_frees = 0;
  uint64_t address_reused_while_live = 0;
  uint64_t late_frees = 0;      // arrived after the address was given out again; ordered by sequence
  uint64_t partial_unmaps = 0;  // an unmap that does not end at a mapping's edge
  uint64_t gaps = 0;            // lost parts of the trace
};

class Ledger;

class LedgerObserver {
 public:
  virtual ~LedgerObserver() = default;
  // Changes in order. The ledger's state is that after the last one.
  virtual void OnChanges(const Ledger&, std::span<const Change>) {}
  // All changes with a smaller sequence number have been delivered, none with a greater one.
  virtual void OnMark(const Ledger&, const TraceMark&) {}
  virtual void OnDeviceReading(const Ledger&, const DeviceReading&) {}
  // Every packet, before its events, for parts that the ledger does not interpret.
  virtual void OnContent(const Ledger&, const Content&) {}
  // Around the events that a folded window has kept; see TraceSink.
  virtual void OnFoldedBegin(const Ledger&, const FoldedWindow&) {}
  virtual void OnFolded(const Ledger&, const FoldedWindow&) {}
  // A lost part of the trace lies here.
  virtual void OnGap(const Ledger&) {}
  // After the last event.
  virtual void OnEnd(const Ledger&) {}
};

// See the top of the file. The model must outlive the ledger.
class Ledger : public TraceSink {
 public:
  explicit Ledger(const TraceModel& model);
  ~Ledger() override;

  // Observers must outlive the reading.
  void AddObserver(LedgerObserver* observer) { observers_.push_back(observer); }

  void OnEvents(std::span<const TraceEvent> events) override;
  void OnMark(const TraceMark& mark) override;
  void OnDeviceReading(const DeviceReading& reading) override;
  void OnContent(const Content& content) override;
  void OnFoldedBegin(const FoldedWindow& window) override;
  void OnFolded(const FoldedWindow& window) override;
  void OnGap() override;
  // Call once after ReadTrace.
  void Finish();

  const TraceModel& model() const { return model_; }

  // All slots, live or not; index = slot.
  std::span<const Allocation> allocations() const { return allocations_; }
  const Allocation& allocation(uint32_t slot) const { return allocations_[slot]; }

  // Address ranges backed by memory, by start (segments and mappings; never blocks).
  const absl::btree_map<uint64_t, AddressRange>& ranges() const { return ranges_; }
  // The range that contains `address`, null when none does.
  const AddressRange* FindRange(uint64_t address) const;
  // Sum of mapped bytes of a segment of virtual memory (0 = not mapped anywhere).
  uint64_t MappedBytes(uint32_t slot) const;

  // Devices with any event, ascending; −1 = host.
  std::vector<int32_t> devices() const;
  const Totals& totals(Level level, int32_t device) const;
  const Totals& segment_totals(Space space, int32_t device) const;
  // Devices with block events have an entry.
  const std::map<int32_t, SelfCheck>& self_checks() const { return self_checks_; }
  const Anomalies& anomalies() const { return anomalies_; }

  // Events that were recorded and are not lost, those of folded windows included.
  uint64_t events() const { return events_; }
  // Index of the event that comes next; inside a folded window an estimate by sequence numbers.
  uint64_t position() const { return position_; }
  // Stretches of the trace that were folded, and the events in them that are gone.
  uint64_t folded_windows() const { return folded_windows_; }
  uint64_t folded_events() const { return folded_events_; }
  uint64_t folded_until_us() const { return folded_until_us_; }
  uint64_t block_events() const { return block_events_; }
  uint64_t first_time_us() const { return first_time_us_; }
  uint64_t last_time_us() const { return last_time_us_; }

 private:
  // Everything that is counted per device.
  struct DeviceBook {
    int32_t device = -1;
    std::array<Totals, kLevelCount> levels;
    std::array<Totals, kSpaceCount> spaces;  // of level kSegment
    SelfCheck* check = nullptr;              // once there are blocks
    // Bytes of the segments in which blocks were seen.
    uint64_t block_segments = 0;
    // Blocks that lie in no segment seen: then reserved bytes cannot be checked.
    uint64_t homeless_blocks = 0;
    // The next block event sets the running sum: the events before it are lost.
    bool resynchronize = false;
  };
  // What keeps virtual memory or an imported handle alive.
  struct References {
    uint64_t handles = 0;
    uint64_t mapped_bytes = 0;
  };
  struct GraphNode {
    bool allocates = false;
    int32_t device = -1;
    SiteId site = 0;
    uint64_t address = 0;
    uint64_t size = 0;
  };
  struct GraphExecutable {
    std::vector<GraphNode> nodes;
    bool free_on_launch = false;
  };

  DeviceBook& Book(int32_t device) {
    const size_t index = static_cast<size_t>(device + int64_t{1});
    if (index < book_of_device_.size() && book_of_device_[index] != nullptr) return *book_of_device_[index];
    return AddBook(device);
  }
  DeviceBook& AddBook(int32_t device);
  void OnBlockEvent(const TraceEvent& event, const SiteInfo& site);
  void OnSegmentEvent(const TraceEvent& event, const SiteInfo& site);
  void AllocateSegment(const TraceEvent& event, const SiteInfo& site);
  void FreeSegment(const TraceEvent& event, const SiteInfo& site);
  void CreatePhysical(const TraceEvent& event, const SiteInfo& site);
  void RetainPhysical(const TraceEvent& event);
  void ReleasePhysical(const TraceEvent& event, const SiteInfo& site);
  void Map(const TraceEvent& event, const SiteInfo& site);
  void Unmap(const TraceEvent& event, const SiteInfo& site);
  void Import(const TraceEvent& event, const SiteInfo& site);
  void Instantiate(const TraceEvent& event);
  void Launch(const TraceEvent& event);
  void DestroyContext(const TraceEvent& event);
  void Failed(const TraceEvent& event, const SiteInfo& site);
  // A change that concerns no allocation of ours.
  Change& AddFreeStanding(const TraceEvent& event, const SiteInfo& site, ChangeKind kind, Level level);

  // The slot of the object that `event` ends, kNoSlot when it is not known by reference.
  uint32_t SlotOfObject(const TraceEvent& event) const;
  uint32_t NewSlot();
  uint32_t Birth(const TraceEvent& event, SiteId site, int32_t device, Level level, Space space,
                 uint64_t address, uint64_t size, uint8_t flags);
  void Death(uint32_t slot, const TraceEvent& event, uint8_t flags);
  void UnknownFree(const TraceEvent& event, const SiteInfo& site, Level level, uint8_t flags);
  void AddChange(const TraceEvent& event, ChangeKind kind, uint32_t slot, uint8_t flags);
  void DropIfUnreferenced(uint32_t slot, const TraceEvent& event);
  // Ends what the trace still thinks to be live in a range that was given out again.
  void EvictRange(uint64_t start, uint64_t end, const TraceEvent& event);
  void EraseRange(absl::btree_map<uint64_t, AddressRange>::iterator range, const TraceEvent& event);
  void RangesChanged() { range_cache_.fill({}); }
  const AddressRange* FindRangeCached(uint64_t address) const;
  // Finds the segment of a block and notes that it belongs to a caching allocator.
  uint32_t ClaimSegments(DeviceBook& book, uint64_t start, uint64_t size);
  void CheckBlock(DeviceBook& book, const TraceEvent& event, uint64_t size_change);
  void Deliver();
  uint64_t BlockBirths() const;

  const TraceModel& model_;
  std::vector<LedgerObserver*> observers_;
  ChangeBuffer changes_;
  std::vector<Allocation> allocations_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> slot_of_object_;
  absl::btree_map<uint64_t, AddressRange> ranges_;
  // Copies of ranges, by bits of the address, so that most block events need no search.
  mutable std::array<AddressRange, 512> range_cache_;
  AddressMap blocks_;
  AddressMap segments_;                                   // ordinary ones, by address; arrays, by handle
  AddressMap reservations_;                               // by address
  AddressMap physical_;                                   // by handle; imported memory, too
  AddressMap handles_;                                    // by handle
  absl::flat_hash_map<uint32_t, References> references_;  // by slot
  absl::flat_hash_map<uint64_t, std::vector<GraphNode>> graphs_;
  absl::flat_hash_map<uint64_t, GraphExecutable> executables_;
  // Addresses of segments that were freed and not given out since; cleared when it grows large.
  absl::flat_hash_set<uint64_t> freed_;
  // Addresses given out again while the trace thought them live: sequence of the new allocation.
  absl::flat_hash_map<uint64_t, uint64_t> displaced_;
  std::vector<std::unique_ptr<DeviceBook>> books_;
  std::array<DeviceBook*, 65> book_of_device_{};  // device + 1, for small numbers
  std::map<int32_t, SelfCheck> self_checks_;
  Anomalies anomalies_;
  uint64_t events_ = 0;
  uint64_t block_events_ = 0;
  uint64_t position_ = 0;
  const FoldedWindow* folded_ = nullptr;
  // Blocks born in the window that is being read.
  uint64_t blocks_before_folded_ = 0;
  uint64_t folded_windows_ = 0;
  uint64_t folded_events_ = 0;
  uint64_t folded_until_us_ = 0;
  uint64_t first_time_us_ = 0;
  uint64_t last_time_us_ = 0;
};

}  // namespace gpumemtrace::analyzer
