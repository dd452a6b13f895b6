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
#include <span>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "analyzer/trace/model.h"
#include "analyzer/trace/reader.h"

namespace gpumemtrace::analyzer {

enum class Level : uint8_t {
  kBlock,        // tensors of a caching allocator
  kSegment,      // memory that the driver gave; for virtual memory: the physical memory, from its creation until
                 // the last reference and the last mapping are gone
  kAlias,        // memory owned elsewhere (IPC, external, imported handles): not part of this process's bytes
  kReservation,  // address space, no memory
  kHandle,       // streams, pools, contexts, graphs, library handles: bytes unknown (size 0)
};
constexpr int kLevelCount = 5;

enum class ChangeKind : uint8_t {
  kBirth,
  kDeath,
  // A caching allocator gave up: `size` is what was asked for. The batch ends after it.
  kOutOfMemory,
  // A driver call failed: `size` is what was asked for, the result stands in the site. The batch ends after it.
  kFailed,
  // Something was freed that is not live: a double free, or born before tracing or in a lost part.
  kUnknownFree,
  // Physical memory `slot` got or lost an address: `address`, `size` = the mapped range.
  kMap,
  kUnmap,
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
  // Dense number of the allocation, stable while it lives, reused afterwards; kNoSlot for failures and unknown
  // frees. Analyses can keep what they know about live allocations in vectors indexed by it.
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

struct Allocation {
  uint64_t birth_index = kNoIndex;
  uint64_t birth_sequence = 0;
  uint64_t birth_time_us = 0;
  // Blocks, ordinary segments, reservations: the start. Physical memory: the handle.
  uint64_t address = 0;
  uint64_t size = 0;
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

  uint64_t events() const { return events_; }
  uint64_t first_time_us() const { return first_time_us_; }
  uint64_t last_time_us() const { return last_time_us_; }

 private:
  const TraceModel& model_;
  std::vector<LedgerObserver*> observers_;
  std::vector<Allocation> allocations_;
  absl::btree_map<uint64_t, AddressRange> ranges_;
  std::map<int32_t, SelfCheck> self_checks_;
  Anomalies anomalies_;
  uint64_t events_ = 0;
  uint64_t first_time_us_ = 0;
  uint64_t last_time_us_ = 0;
};

}  // namespace gpumemtrace::analyzer
