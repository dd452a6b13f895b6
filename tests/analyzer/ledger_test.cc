// The ledger: each rule of CUDA's memory by itself, then all of them against a naive second opinion.
#include "analyzer/ledger/ledger.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/analyzer/support/collecting_sink.h"
#include "tests/analyzer/support/naive_ledger.h"
#include "tests/analyzer/support/random_events.h"
#include "tests/analyzer/support/trace_builder.h"

namespace gpumemtrace::tests {
namespace {

using analyzer::Change;
using analyzer::ChangeKind;
using analyzer::Ledger;
using analyzer::Level;
using analyzer::Totals;
using analyzer::TraceModel;

constexpr uint64_t kMiB = 1u << 20;

class Collector : public analyzer::LedgerObserver {
 public:
  void OnChanges(const Ledger&, std::span<const Change> batch) override {
    changes.insert(changes.end(), batch.begin(), batch.end());
  }
  std::vector<Change> changes;
};

// A ledger fed through a real trace.
struct Bench {
  TraceModel model;
  Ledger ledger{model};
  Collector collector;
  TraceBuilder builder{{.events_per_packet = 1}};

  Bench() { ledger.AddObserver(&collector); }
  void Add(const BuiltEvent& event) { builder.Add(event); }
  void Run() {
    builder.Finish();
    const analyzer::ReadResult result =
        analyzer::ReadTraceBytes(builder.bytes(), "test.pb", WithoutRings(), model, ledger);
    EXPECT_EQ(result.message, "");
    EXPECT_FALSE(result.damage.any()) << result.damage.first_fault;
    ledger.Finish();
  }
  uint64_t Bytes(Level level, int32_t device = 0) const { return ledger.totals(level, device).bytes; }
  std::vector<ChangeKind> Kinds() const {
    std::vector<ChangeKind> kinds;
    for (const Change& change : collector.changes) kinds.push_back(change.kind);
    return kinds;
  }
};

BuiltEvent Create(uint64_t handle, uint64_t size) {
  return {.kind = EventKind::kPhysicalCreate, .space = Space::kVirtual, .address = handle, .size = size};
}
BuiltEvent Release(uint64_t handle) {
  return {.kind = EventKind::kPhysicalRelease, .space = Space::kVirtual, .address = handle};
}
BuiltEvent Map(uint64_t address, uint64_t size, uint64_t handle) {
  return {.kind = EventKind::kMap,
          .space = Space::kVirtual,
          .address = address,
          .size = size,
          .argument = {handle, 0}};
}
BuiltEvent Unmap(uint64_t address, uint64_t size) {
  return {.kind = EventKind::kUnmap, .space = Space::kVirtual, .address = address, .size = size};
}
BuiltEvent Block(uint64_t address, uint64_t size, uint64_t allocated, uint64_t reserved) {
  return {
      .kind = EventKind::kBlockAllocate, .address = address, .size = size, .argument = {allocated, reserved}};
}
BuiltEvent Unblock(uint64_t address, uint64_t size, uint64_t allocated, uint64_t reserved) {
  return {.kind = EventKind::kBlockFree, .address = address, .size = size, .argument = {allocated, reserved}};
}

TEST(Ledger, FailedCallsChangeNothing) {
  Bench bench;
  bench.Add({.address = 0x7000, .size = kMiB});
  bench.Add({.address = 0x0, .size = 8 * kMiB, .result = 2});
  bench.Add({.kind = EventKind::kFree, .address = 0x7000, .result = 1});
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), kMiB);
  EXPECT_EQ(bench.Kinds(), (std::vector{ChangeKind::kBirth, ChangeKind::kFailed, ChangeKind::kFailed}));
  EXPECT_EQ(bench.collector.changes[1].size, 8 * kMiB);
}

TEST(Ledger, PhysicalMemoryLivesUntilHandlesAndMappingsAreGone) {
  Bench bench;
  bench.Add(Create(0x50, 2 * kMiB));
  bench.Add(Map(0x600000000000, 2 * kMiB, 0x50));
  bench.Add(Release(0x50));           // still mapped
  bench.Add(Create(0x50, 4 * kMiB));  // the number again, other memory
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 6 * kMiB);
  Bench more;
  more.Add(Create(0x50, 2 * kMiB));
  more.Add(Map(0x600000000000, 2 * kMiB, 0x50));
  more.Add(Map(0x600000800000, 2 * kMiB, 0x50));
  more.Add(Release(0x50));
  more.Add(Unmap(0x600000000000, 2 * kMiB));
  more.Add(Unmap(0x600000800000, 2 * kMiB));
  more.Run();
  EXPECT_EQ(more.Bytes(Level::kSegment), 0u);
  EXPECT_EQ(more.Kinds().back(), ChangeKind::kDeath);
  EXPECT_EQ(more.collector.changes.back().index, 5u);
}

TEST(Ledger, RetainedHandlesCount) {
  Bench bench;
  bench.Add(Create(0x50, 2 * kMiB));
  bench.Add(Map(0x600000000000, 2 * kMiB, 0x50));
  bench.Add({.kind = EventKind::kPhysicalRetain,
             .space = Space::kVirtual,
             .address = 0x60,
             .argument = {0x600000001000, 0}});
  bench.Add(Release(0x50));
  bench.Add(Unmap(0x600000000000, 2 * kMiB));
  bench.Add({.kind = EventKind::kHandleCreate, .address = 0x1});
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 2 * kMiB);
  Bench gone;
  gone.Add(Create(0x50, 2 * kMiB));
  gone.Add(Map(0x600000000000, 2 * kMiB, 0x50));
  gone.Add({.kind = EventKind::kPhysicalRetain,
            .space = Space::kVirtual,
            .address = 0x60,
            .argument = {0x600000000000, 0}});
  gone.Add(Release(0x60));
  gone.Add(Release(0x50));
  gone.Add(Unmap(0x600000000000, 2 * kMiB));
  gone.Run();
  EXPECT_EQ(gone.Bytes(Level::kSegment), 0u);
}

TEST(Ledger, OneUnmapMayCoverSeveralMappings) {
  Bench bench;
  for (uint64_t i = 0; i < 4; ++i) {
    bench.Add(Create(0x50 + i, 2 * kMiB));
    bench.Add(Map(0x600000000000 + i * 2 * kMiB, 2 * kMiB, 0x50 + i));
    bench.Add(Release(0x50 + i));
  }
  bench.Add(Unmap(0x600000000000 + 2 * kMiB, 4 * kMiB));
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 4 * kMiB);
  EXPECT_EQ(bench.ledger.ranges().size(), 2u);
  EXPECT_EQ(bench.ledger.anomalies().partial_unmaps, 0u);
}

TEST(Ledger, AnUnmapOfNothingInsideAMappingEnds) {
  Bench bench;
  bench.Add(Create(0x50, 4 * kMiB));
  bench.Add(Map(0x600000000000, 4 * kMiB, 0x50));
  bench.Add(Unmap(0x600000000000 + 2 * kMiB, 0));
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 4 * kMiB);
  EXPECT_EQ(bench.ledger.ranges().size(), 1u);
  EXPECT_EQ(bench.ledger.anomalies().unknown_frees, 1u);
}

TEST(Ledger, GraphMemoryIsBornAtLaunchAndOutlivesItsGraph) {
  Bench bench;
  bench.Add({.kind = EventKind::kGraphAllocateNode,
             .space = Space::kGraph,
             .address = 0x70000000,
             .size = 8 * kMiB,
             .argument = {0x900, 0xa1},
             .api = "cudaMallocAsync"});
  bench.Add({.kind = EventKind::kGraphInstantiate, .address = 0xa00, .argument = {0x900, 1}});
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 0u);  // captured is not allocated

  Bench launched;
  launched.Add({.kind = EventKind::kGraphAllocateNode,
                .space = Space::kGraph,
                .address = 0x70000000,
                .size = 8 * kMiB,
                .argument = {0x900, 0xa1},
                .api = "cudaMallocAsync"});
  launched.Add({.kind = EventKind::kGraphInstantiate, .address = 0xa00, .argument = {0x900, 1}});
  for (int i = 0; i < 3; ++i) launched.Add({.kind = EventKind::kGraphLaunch, .address = 0xa00});
  launched.Add({.kind = EventKind::kGraphDestroy, .address = 0xa00});
  launched.Add({.kind = EventKind::kHandleDestroy, .address = 0x900});
  launched.Run();
  EXPECT_EQ(launched.Bytes(Level::kSegment), 8 * kMiB);
  const Totals& graph = launched.ledger.segment_totals(Space::kGraph, 0);
  EXPECT_EQ(graph.births, 3u);  // auto-free on each launch
  EXPECT_EQ(graph.peak_bytes, 8 * kMiB);
  const Change& birth = launched.collector.changes.front();
  EXPECT_EQ(launched.model.String(launched.model.Site(birth.site).api), "cudaMallocAsync");
}

TEST(Ledger, GraphFreeNodesFreeAtLaunch) {
  Bench bench;
  bench.Add({.kind = EventKind::kGraphAllocateNode,
             .space = Space::kGraph,
             .address = 0x70000000,
             .size = kMiB,
             .argument = {0x900, 0xa1}});
  bench.Add({.kind = EventKind::kGraphFreeNode,
             .space = Space::kGraph,
             .address = 0x70000000,
             .argument = {0x900, 0xa2}});
  bench.Add({.kind = EventKind::kGraphInstantiate, .address = 0xa00, .argument = {0x900, 0}});
  bench.Add({.kind = EventKind::kGraphLaunch, .address = 0xa00});
  bench.Add({.kind = EventKind::kGraphLaunch, .address = 0xa00});
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 0u);
  EXPECT_EQ(bench.ledger.segment_totals(Space::kGraph, 0).births, 2u);
}

TEST(Ledger, AContextTakesItsMemoryAlong) {
  Bench bench;
  bench.Add({.space = Space::kDevice, .address = 0x7000, .size = 1, .argument = {0, 0xc1}});
  bench.Add({.space = Space::kManaged, .address = 0x8000, .size = 2, .argument = {0, 0xc1}});
  bench.Add({.space = Space::kStreamOrdered, .address = 0x9000, .size = 4});  // of a pool: stays
  bench.Add({.space = Space::kDevice, .address = 0xa000, .size = 8});         // of the primary context: stays
  bench.Add(Create(0x50, 16));                                                // stays
  bench.Add({.kind = EventKind::kContextDestroy, .address = 0xc1});
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 4u + 8u + 16u);
  EXPECT_TRUE((bench.collector.changes.back().flags & analyzer::kChangeImplicit) != 0);
}

TEST(Ledger, ResettingTheDeviceTakesThePrimaryContextsMemory) {
  Bench bench;
  bench.Add({.space = Space::kDevice, .device = 0, .address = 0x7000, .size = 1});
  bench.Add({.space = Space::kDevice, .device = 1, .address = 0x8000, .size = 2});
  bench.Add({.kind = EventKind::kHandleCreate, .device = 0, .address = 0x99});
  bench.Add({.kind = EventKind::kContextDestroy, .device = 0, .address = 0});
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment, 0), 0u);
  EXPECT_EQ(bench.Bytes(Level::kSegment, 1), 2u);
  EXPECT_EQ(bench.ledger.totals(Level::kHandle, 0).count, 0u);
}

TEST(Ledger, ImportedMemoryIsCountedOnceAndApart) {
  Bench bench;
  const BuiltEvent import{
      .kind = EventKind::kImport, .space = Space::kAlias, .address = 0x7000, .size = kMiB};
  const BuiltEvent close{.kind = EventKind::kImportClose, .space = Space::kAlias, .address = 0x7000};
  bench.Add(import);
  bench.Add(import);
  bench.Add(close);
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), 0u);
  EXPECT_EQ(bench.Bytes(Level::kAlias), kMiB);
  Bench closed;
  closed.Add(import);
  closed.Add(import);
  closed.Add(close);
  closed.Add(close);
  closed.Run();
  EXPECT_EQ(closed.Bytes(Level::kAlias), 0u);
}

TEST(Ledger, FreesOfTheUnknownAndDoubleFreesAreTold) {
  Bench bench;
  bench.Add({.kind = EventKind::kFree, .address = 0x7000});
  bench.Add({.address = 0x8000, .size = 1});
  bench.Add({.kind = EventKind::kFree, .address = 0x8000});
  bench.Add({.kind = EventKind::kFree, .address = 0x8000, .result = 1});  // the driver refuses
  bench.Run();
  EXPECT_EQ(bench.ledger.anomalies().unknown_frees, 2u);
  EXPECT_EQ(bench.ledger.anomalies().double_frees, 1u);
  EXPECT_EQ(bench.collector.changes.back().flags & analyzer::kChangeDoubleFree, analyzer::kChangeDoubleFree);
}

TEST(Ledger, AnAddressGivenOutAgainEndsWhatWasThere) {
  Bench bench;
  bench.Add({.address = 0x700000000000, .size = 4 * kMiB, .sequence = 10});
  bench.Add({.address = 0x700000200000, .size = kMiB, .sequence = 20});  // inside of it: its free was lost
  bench.Run();
  EXPECT_EQ(bench.Bytes(Level::kSegment), kMiB);
  EXPECT_EQ(bench.ledger.anomalies().address_reused_while_live, 1u);
}

TEST(Ledger, ALateFreeEndsTheOlderAllocation) {
  TraceModel model;
  Ledger ledger(model);
  // As it would come out of a trace whose writer could not order it: the free took its number (15) before the
  // second allocation (20), but stands after it.
  model.sites.resize(3);
  model.sites[1] = {.kind = EventKind::kAllocate, .space = Space::kDevice, .device = 0};
  model.sites[2] = {.kind = EventKind::kFree, .space = Space::kDevice, .device = 0};
  const analyzer::TraceEvent first{.index = 0,
                                   .sequence = 10,
                                   .address = 0x7000,
                                   .size = 1,
                                   .object = 0,
                                   .site = 1,
                                   .kind = EventKind::kAllocate};
  const analyzer::TraceEvent second{.index = 1,
                                    .sequence = 20,
                                    .address = 0x7000,
                                    .size = 2,
                                    .object = 1,
                                    .site = 1,
                                    .kind = EventKind::kAllocate};
  const analyzer::TraceEvent late{
      .index = 2, .sequence = 15, .address = 0x7000, .site = 2, .kind = EventKind::kFree};
  const analyzer::TraceEvent events[] = {first, second, late};
  ledger.OnEvents(events);
  EXPECT_EQ(ledger.totals(Level::kSegment, 0).bytes, 2u);
  EXPECT_EQ(ledger.anomalies().late_frees, 1u);
  EXPECT_EQ(ledger.anomalies().unknown_frees, 0u);
}

TEST(SelfCheck, AgreesWithAnHonestAllocator) {
  Bench bench;
  bench.Add({.address = 0x700000000000, .size = 2 * kMiB});
  bench.Add(Block(0x700000000000, 1024, 1024, 2 * kMiB));
  bench.Add(Block(0x700000000400, 512, 1536, 2 * kMiB));
  bench.Add(Unblock(0x700000000000, 1024, 512, 2 * kMiB));
  // Expandable: one block over two mappings.
  bench.Add(Create(0x50, 2 * kMiB));
  bench.Add(Map(0x600000000000, 2 * kMiB, 0x50));
  bench.Add(Create(0x51, 2 * kMiB));
  bench.Add(Map(0x600000200000, 2 * kMiB, 0x51));
  bench.Add(Block(0x600000000000, 3 * kMiB, 512 + 3 * kMiB, 6 * kMiB));
  bench.Add({.address = 0x710000000000, .size = kMiB});  // of somebody else
  bench.Add({.kind = EventKind::kBlockOutOfMemory, .size = 99, .argument = {512 + 3 * kMiB, 6 * kMiB}});
  bench.Run();
  const analyzer::SelfCheck& check = bench.ledger.self_checks().at(0);
  EXPECT_EQ(check.allocated_checked, 5u);
  EXPECT_EQ(check.allocated_disagree, 0u);
  EXPECT_EQ(check.reserved_checked, 5u);
  EXPECT_EQ(check.reserved_disagree, 0u);
  EXPECT_EQ(check.reported_allocated_peak, 512 + 3 * kMiB);
  EXPECT_EQ(bench.ledger.totals(Level::kBlock, 0).peak_bytes, 512 + 3 * kMiB);
  EXPECT_EQ(bench.Kinds().back(), ChangeKind::kOutOfMemory);
}

TEST(SelfCheck, DisagreesWhenAnEventIsMissing) {
  Bench bench;
  bench.Add({.address = 0x700000000000, .size = 2 * kMiB});
  bench.Add(Block(0x700000000000, 1024, 1024, 2 * kMiB));
  bench.Add(Block(0x700000000400, 512, 2048, 2 * kMiB));     // 512 bytes came from nowhere
  bench.Add(Unblock(0x700000000000, 1024, 1024, 4 * kMiB));  // and 2 MiB of segments
  bench.Run();
  const analyzer::SelfCheck& check = bench.ledger.self_checks().at(0);
  EXPECT_EQ(check.allocated_disagree, 2u);
  EXPECT_EQ(check.reserved_disagree, 1u);
  EXPECT_EQ(check.first_index, 2u);
  EXPECT_EQ(check.first_computed, 1536u);
  EXPECT_EQ(check.first_reported, 2048u);
}

TEST(Ledger, BlocksKnowTheirSegment) {
  Bench bench;
  bench.Add({.address = 0x700000000000, .size = 2 * kMiB});
  bench.Add({.address = 0x700000200000, .size = 2 * kMiB});
  bench.Add(Block(0x700000200200, 512, 512, 2 * kMiB));
  bench.Add(Block(0x7f0000000000, 512, 1024, 2 * kMiB));  // in no segment that we saw
  bench.Run();
  EXPECT_EQ(bench.collector.changes[2].segment, bench.collector.changes[1].slot);
  EXPECT_EQ(bench.collector.changes[3].segment, analyzer::kNoSlot);
}

class AgainstNaive : public testing::TestWithParam<int> {};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kEventsPerSeed = 20'000;
#else
constexpr size_t kEventsPerSeed = 200'000;
#endif

TEST_P(AgainstNaive, LiveSetAndPeaksAreEqualAfterEveryEvent) {
  const int seed = GetParam();
  const std::vector<BuiltEvent> events =
      RandomEvents(static_cast<uint64_t>(seed), kEventsPerSeed, seed % 2 == 1);
  TraceBuilder builder({.restart_every = 8, .events_per_packet = 5000});
  for (const BuiltEvent& event : events) builder.Add(event);
  builder.Finish();
  TraceModel model;
  CollectingSink sink;
  analyzer::ReadTraceBytes(builder.bytes(), "test.pb", WithoutRings(), model, sink);
  ASSERT_EQ(sink.events.size(), events.size());

  Ledger ledger(model);
  NaiveLedger naive;
  static constexpr Level kLevels[] = {Level::kBlock, Level::kSegment, Level::kAlias, Level::kReservation,
                                      Level::kHandle};
  for (size_t i = 0; i < events.size(); ++i) {
    ledger.OnEvents({&sink.events[i], 1});
    naive.Apply(events[i]);
    for (int32_t device = -1; device < 2; ++device) {
      for (const Level level : kLevels) {
        const Totals& ours = ledger.totals(level, device);
        const NaiveLedger::Sum theirs = naive.Of(level, device);
        ASSERT_EQ(ours.bytes, theirs.bytes) << "event " << i << " kind " << static_cast<int>(events[i].kind)
                                            << " level " << static_cast<int>(level) << " device " << device;
        ASSERT_EQ(ours.count, theirs.count) << "event " << i << " kind " << static_cast<int>(events[i].kind);
        ASSERT_EQ(ours.peak_bytes, theirs.peak) << "event " << i << " level " << static_cast<int>(level);
      }
      for (int space = 1; space < analyzer::kSpaceCount; ++space) {
        const Space which = static_cast<Space>(space);
        ASSERT_EQ(ledger.segment_totals(which, device).bytes, naive.Of(which, device).bytes) << "event " << i;
      }
    }
  }
  // The live set itself sums up to the totals.
  std::map<std::pair<Level, int32_t>, uint64_t> sums;
  std::set<uint64_t> seen;
  for (const analyzer::Allocation& allocation : ledger.allocations()) {
    if (allocation.live) sums[{allocation.level, allocation.device}] += allocation.size;
  }
  for (const auto& [key, bytes] : sums) EXPECT_EQ(ledger.totals(key.first, key.second).bytes, bytes);
}
INSTANTIATE_TEST_SUITE_P(Seeds, AgainstNaive, testing::Range(0, 10));

// Observers see births and deaths that lead to the ledger's state, whatever the batches.
TEST(Changes, AddUpToTheLiveSet) {
  Bench bench;
  for (const BuiltEvent& event : RandomEvents(4, 20000, true)) bench.Add(event);
  bench.Run();
  std::map<uint32_t, Change> live;
  for (const Change& change : bench.collector.changes) {
    if (change.kind == ChangeKind::kBirth) {
      ASSERT_TRUE(live.emplace(change.slot, change).second) << "slot " << change.slot << " born twice";
    } else if (change.kind == ChangeKind::kDeath) {
      const auto found = live.find(change.slot);
      ASSERT_NE(found, live.end()) << "slot " << change.slot << " died unborn";
      EXPECT_EQ(found->second.size, change.size);
      EXPECT_EQ(found->second.birth_index, change.birth_index);
      EXPECT_EQ(found->second.site, change.site);
      live.erase(found);
    }
  }
  std::set<uint32_t> slots;
  for (uint32_t slot = 0; slot < bench.ledger.allocations().size(); ++slot) {
    if (bench.ledger.allocation(slot).live) slots.insert(slot);
  }
  std::set<uint32_t> expected;
  for (const auto& [slot, change] : live) expected.insert(slot);
  EXPECT_EQ(slots, expected);
}

}  // namespace
}  // namespace gpumemtrace::tests
