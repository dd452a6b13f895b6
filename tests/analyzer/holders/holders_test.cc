// The census joined with a live set made of a few events.
#include "analyzer/analyses/holders.h"

#include <gtest/gtest.h>

#include <vector>

#include "analyzer/analyses/census_bytes.h"
#include "tests/analyzer/holders/census_builder.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class HoldersTest : public ::testing::Test {
 protected:
  HoldersTest() : ledger_(model_), holders_(ledger_), symbols_(model_, {}) {
    model_.stack_nodes.resize(10);
    model_.has_header = true;
  }

  SiteId Site(EventKind kind, Space space, uint64_t size, StackId python) {
    SiteInfo site;
    site.kind = kind;
    site.space = space;
    site.device = 0;
    site.size = size;
    site.python_stack = python;
    model_.sites.push_back(site);
    return static_cast<SiteId>(model_.sites.size() - 1);
  }

  void Event(SiteId site, uint64_t address, uint64_t time_us, uint64_t birth = kNoIndex,
             uint32_t object = kNoSlot) {
    TraceEvent event;
    event.index = next_;
    event.sequence = next_;
    event.time_us = time_us;
    event.address = address;
    event.site = site;
    event.kind = model_.sites[site].kind;
    event.size = model_.sites[site].size;
    event.birth_index = birth;
    event.object = object;
    ++next_;
    if (event.kind == EventKind::kBlockAllocate) allocated_ += event.size;
    if (event.kind == EventKind::kBlockFree) allocated_ -= event.size;
    event.argument[0] = allocated_;
    event.argument[1] = 64 * kMiB;
    ledger_.OnEvents({&event, 1});
  }

  void Give(const CensusBuilder& census, uint64_t sequence, uint64_t time_us) {
    Content content;
    for (const CensusPart& part : census.Parts(2, sequence, sequence, time_us))
      *content.add_census_part() = part;
    ledger_.OnContent(content);
  }

  // Blocks of 1 MiB at 0x1000000 · i, born at Python stack 1.
  void AllocateBlocks(int count) {
    if (block_site_ == 0) block_site_ = Site(EventKind::kBlockAllocate, Space::kDevice, kMiB, 1);
    for (int i = 1; i <= count; ++i) {
      Event(block_site_, static_cast<uint64_t>(i) << 24, static_cast<uint64_t>(i) * 1000, kNoIndex,
            object_++);
    }
  }

  Findings LeakOf(SiteId site) {
    Findings findings;
    OriginSummary origin;
    origin.site = site;
    origin.level = Level::kBlock;
    origin.space = Space::kDevice;
    origin.device = 0;
    findings.origins.push_back(origin);
    GrowthFinding growth;
    growth.origins.push_back(0);
    findings.growth.push_back(growth);
    PeakFinding peak;
    peak.device = 0;
    peak.bytes = 10 * kMiB;
    peak.by_origin.push_back({0, 9 * kMiB, 9});
    findings.peaks.push_back(peak);
    return findings;
  }

  TraceModel model_;
  Ledger ledger_;
  Holders holders_;
  Symbolizer symbols_;
  SiteId block_site_ = 0;
  uint32_t object_ = 0;
  uint64_t next_ = 0;
  uint64_t allocated_ = 0;
};

TEST_F(HoldersTest, NamesWhoKeepsALeak) {
  AllocateBlocks(8);
  CensusBuilder census;
  for (uint64_t i = 1; i <= 7; ++i) census.Tensor(i << 24, kMiB, "train.losses[…]");
  census.Tensor(uint64_t{8} << 24, kMiB, "train.loss");
  census.HolderEntry(0).set_container(census.Text("train.losses"));
  census.HolderEntry(0).set_container_type(census.Text("list"));
  census.HolderEntry(0).set_items(7);
  census.HolderEntry(0).add_store_file(census.Text("/home/user/train.py"));
  census.HolderEntry(0).add_store_line(27);
  Give(census, 8, 9000);
  ledger_.Finish();
  holders_.Conclude(LeakOf(block_site_), symbols_);
  ASSERT_EQ(holders_.HoldersOf(0).size(), 2u);
  const HeldBy& held = holders_.HoldersOf(0)[0];
  EXPECT_EQ(held.Describe(), "train.losses[…] (list, 7 items)");
  EXPECT_EQ(held.tensors, 7u);
  EXPECT_EQ(held.bytes, 7 * kMiB);
  EXPECT_EQ(held.file, "/home/user/train.py");
  EXPECT_EQ(held.line, 27u);
  EXPECT_EQ(held.shape, "float32 (262144,)");
  EXPECT_EQ(holders_.censuses()[0].matched, 8u);
}

TEST_F(HoldersTest, JoinsAtTheMomentOfTheCensus) {
  AllocateBlocks(2);
  CensusBuilder census;
  census.Tensor(uint64_t{1} << 24, kMiB, "train.a");
  census.Tensor(uint64_t{2} << 24, kMiB, "train.b");
  // The parts arrive before the event that follows the census; there, the first address is given out anew.
  Give(census, next_, 2500);
  const SiteId freed = Site(EventKind::kBlockFree, Space::kDevice, kMiB, 1);
  ++next_;
  Event(freed, uint64_t{1} << 24, 3000, 0, 0);
  ledger_.Finish();
  ASSERT_EQ(holders_.censuses().size(), 1u);
  EXPECT_EQ(holders_.censuses()[0].matched, 2u);
}

TEST_F(HoldersTest, YoungerMemoryAtTheSameAddressIsNotTheCensuss) {
  AllocateBlocks(1);
  CensusBuilder census;
  census.Tensor(uint64_t{1} << 24, kMiB, "train.a");
  census.Tensor(uint64_t{7} << 24, kMiB, "train.gone");
  Give(census, 0, 500);  // before the first event's successor
  Event(block_site_, uint64_t{7} << 24, 9000, kNoIndex, object_++);
  ledger_.Finish();
  EXPECT_EQ(holders_.censuses()[0].matched, 1u);
}

// A pool of XLA is mapped memory, and a process that ends unmaps it right after the census, often in the same
// batch.
TEST_F(HoldersTest, MemoryUnmappedAfterTheCensusIsTheCensuss) {
  constexpr uint64_t kHandle = 0x50;
  constexpr uint64_t kStart = uint64_t{3} << 32;
  constexpr uint64_t kSize = 32 * kMiB;
  const SiteId create = Site(EventKind::kPhysicalCreate, Space::kVirtual, kSize, 1);
  const SiteId map = Site(EventKind::kMap, Space::kVirtual, kSize, 1);
  const SiteId release = Site(EventKind::kPhysicalRelease, Space::kVirtual, 0, 1);
  const SiteId unmap = Site(EventKind::kUnmap, Space::kVirtual, kSize, 1);
  Event(create, kHandle, 1000, kNoIndex, object_++);
  TraceEvent mapped;
  mapped.index = mapped.sequence = next_++;
  mapped.time_us = 1100;
  mapped.address = kStart;
  mapped.size = kSize;
  mapped.site = map;
  mapped.kind = EventKind::kMap;
  mapped.argument[0] = kHandle;
  ledger_.OnEvents({&mapped, 1});
  Event(release, kHandle, 1200);
  CensusBuilder census;
  for (uint64_t i = 0; i < 8; ++i) census.Tensor(kStart + i * 4 * kMiB, 4 * kMiB, "train.history[…]");
  Give(census, next_++, 2000);
  Event(unmap, kStart, 3000);
  ledger_.Finish();
  const CensusSummary& summary = holders_.censuses().back();
  EXPECT_EQ(summary.tensors, 8u);
  EXPECT_EQ(summary.matched, 8u);
}

TEST_F(HoldersTest, MemoryWithoutAnObjectSaysWhatIsLikely) {
  AllocateBlocks(3);
  CensusBuilder census;
  Give(census, 3, 9000);
  ledger_.Finish();
  holders_.Conclude(LeakOf(block_site_), symbols_);
  ASSERT_EQ(holders_.HoldersOf(0).size(), 1u);
  EXPECT_EQ(holders_.HoldersOf(0)[0].kind, "none");
  EXPECT_FALSE(holders_.HoldersOf(0)[0].reason.empty());
}

TEST_F(HoldersTest, SmallViewKeepsALargeStorage) {
  AllocateBlocks(4);
  CensusBuilder census;
  for (uint64_t i = 1; i <= 4; ++i) {
    census.Tensor(i << 24, 4096, "train.headers[…]", Census::ROLE_UNKNOWN, Holder::NAME, Census::VIEW);
  }
  Give(census, 4, 9000);
  ledger_.Finish();
  holders_.Conclude(LeakOf(block_site_), symbols_);
  const HeldBy& held = holders_.HoldersOf(0)[0];
  EXPECT_TRUE(held.views);
  EXPECT_EQ(held.tensor_bytes, 4 * 4096u);
  EXPECT_EQ(held.bytes, 4 * kMiB);
}

TEST_F(HoldersTest, TensorInTheMiddleOfABlockBelongsToIt) {
  AllocateBlocks(1);
  CensusBuilder census;
  census.Tensor((uint64_t{1} << 24) + 4096, 4096, "train.part");
  Give(census, 1, 9000);
  ledger_.Finish();
  EXPECT_EQ(holders_.censuses()[0].matched, 1u);
}

TEST_F(HoldersTest, PoolThatShowsOnlySegments) {
  const SiteId site = Site(EventKind::kAllocate, Space::kDevice, 16 * kMiB, 1);
  Event(site, uint64_t{1} << 32, 1000, kNoIndex, object_++);
  CensusBuilder census;
  for (uint64_t i = 0; i < 3; ++i) census.Tensor((uint64_t{1} << 32) + i * kMiB, kMiB, "train.history[…]");
  Give(census, 1, 9000);
  ledger_.Finish();
  Findings findings = LeakOf(site);
  findings.origins[0].level = Level::kSegment;
  holders_.Conclude(findings, symbols_);
  ASSERT_EQ(holders_.HoldersOf(0).size(), 1u);
  EXPECT_EQ(holders_.HoldersOf(0)[0].bytes, 3 * kMiB);
  EXPECT_EQ(holders_.HoldersOf(0)[0].tensors, 3u);
}

TEST_F(HoldersTest, RoleBeatsHolderWhenTensorsShareAStorage) {
  AllocateBlocks(1);
  CensusBuilder census;
  census.Tensor(uint64_t{1} << 24, kMiB, "train.alias");
  census.Tensor(uint64_t{1} << 24, kMiB, "train.model", Census::PARAMETER);
  Give(census, 1, 9000);
  ledger_.Finish();
  holders_.Conclude(LeakOf(block_site_), symbols_);
  EXPECT_EQ(holders_.HoldersOf(0)[0].text, "train.model");
}

TEST_F(HoldersTest, PeakByRoleSumsToThePeak) {
  AllocateBlocks(4);
  CensusBuilder census;
  for (uint64_t i = 1; i <= 4; ++i) census.Tensor(i << 24, kMiB, "train.model", Census::PARAMETER);
  Give(census, 4, 9000);
  ledger_.Finish();
  holders_.Conclude(LeakOf(block_site_), symbols_);
  ASSERT_EQ(holders_.peak_roles().size(), 1u);
  const PeakRoles& peak = holders_.peak_roles()[0];
  EXPECT_EQ(peak.by_role[static_cast<size_t>(MemoryRole::kParameter)], 9 * kMiB);
  // The finding has no single blocks: that all of the place are parameters is inferred from those that were
  // seen.
  EXPECT_EQ(peak.from_census, 0u);
  EXPECT_EQ(peak.from_birth_place, 9 * kMiB);
  uint64_t sum = 0;
  for (const uint64_t bytes : peak.by_role) sum += bytes;
  EXPECT_EQ(sum, peak.bytes);
}

TEST_F(HoldersTest, PeakByRoleTrustsTheCensusForTheVeryBlocks) {
  AllocateBlocks(4);
  CensusBuilder census;
  census.Tensor(uint64_t{1} << 24, kMiB, "train.model", Census::PARAMETER);
  census.Tensor(uint64_t{2} << 24, kMiB, "train.model", Census::BUFFER);
  census.Tensor(uint64_t{3} << 24, kMiB, "train.model", Census::PARAMETER);
  Give(census, 4, 9000);
  ledger_.Finish();
  Findings findings = LeakOf(block_site_);
  findings.peaks[0].bytes = 4 * kMiB;
  findings.peaks[0].by_origin = {{0, 4 * kMiB, 4}};
  for (uint64_t i = 1; i <= 4; ++i)
    findings.peaks[0].blocks.push_back({0, kMiB, i << 24, i - 1, i * 1000, kNoIndex, 0});
  holders_.Conclude(findings, symbols_);
  const PeakRoles& peak = holders_.peak_roles()[0];
  EXPECT_EQ(peak.by_role[static_cast<size_t>(MemoryRole::kParameter)], 3 * kMiB);
  EXPECT_EQ(peak.by_role[static_cast<size_t>(MemoryRole::kBuffer)], kMiB);
  EXPECT_EQ(peak.from_census, 3 * kMiB);
  EXPECT_EQ(peak.from_birth_place, kMiB);
}

TEST_F(HoldersTest, ArraysOfAPoolHaveNoAge) {
  const SiteId site = Site(EventKind::kAllocate, Space::kDevice, 16 * kMiB, 1);
  Event(site, uint64_t{1} << 32, 1000, kNoIndex, object_++);
  CensusBuilder census;
  for (uint64_t i = 0; i < 3; ++i) census.Tensor((uint64_t{1} << 32) + i * kMiB, kMiB, "train.history[…]");
  Give(census, 1, 9000);
  ledger_.Finish();
  Findings findings = LeakOf(site);
  findings.origins[0].level = Level::kSegment;
  findings.steps.source = StepSource::kPythonLoop;
  findings.steps.begin_index = {0, 1};
  findings.steps.begin_time_us = {500, 2000};
  findings.steps.count = 2;
  holders_.Conclude(findings, symbols_);
  ASSERT_EQ(holders_.HoldersOf(0).size(), 1u);
  EXPECT_TRUE(holders_.HoldersOf(0)[0].pooled);
  EXPECT_LT(holders_.HoldersOf(0)[0].oldest_steps, 0);
}

TEST_F(HoldersTest, LeakOfHandlesIsHeldByTheCollectionsThatGrewWithIt) {
  const SiteId site = Site(EventKind::kAllocate, Space::kDevice, 64 * kMiB, 1);
  Event(site, uint64_t{1} << 32, 1000, kNoIndex, object_++);
  CensusBuilder census;
  const auto add = [&](const std::string& path, uint64_t count, uint64_t items, uint64_t bytes) {
    for (uint64_t i = 0; i < count; ++i)
      census.Tensor((uint64_t{1} << 32) + ++object_ * kMiB / 4, bytes, path);
    Holder& entry = census.HolderEntry(census.census().holder_entry_size() - 1);
    entry.set_container_type(census.Text("list"));
    entry.set_items(items);
  };
  add("train.history[…].act", 20, 20, kMiB / 4);
  add("train.history[…].loss", 20, 20, 256);
  add("train.params[…]", 20, 90, kMiB / 4);  // as many arrays, in a collection that is not as long
  add("train.other[…]", 60, 60, kMiB / 4);
  Give(census, 1, 9000);
  ledger_.Finish();
  Findings findings;
  GrowthFinding handles;
  handles.kind = GrowthKind::kHandles;
  handles.level = Level::kHandle;
  handles.bytes_known = false;
  handles.grown_count = 18;
  handles.count_per_step = 1;
  findings.growth.push_back(handles);
  holders_.Conclude(findings, symbols_);
  EXPECT_TRUE(holders_.HoldersOf(0).empty());
  TellBytesByCensus(holders_, findings);
  ASSERT_EQ(holders_.HoldersOf(0).size(), 2u);
  EXPECT_EQ(holders_.HoldersOf(0)[0].text, "train.history[…].act");
  EXPECT_EQ(holders_.HoldersOf(0)[1].text, "train.history[…].loss");
  EXPECT_FALSE(holders_.HoldersOf(0)[0].reason.empty());
  EXPECT_EQ(findings.growth[0].kind, GrowthKind::kLeak);
  EXPECT_EQ(findings.growth[0].bytes_per_step, static_cast<double>(kMiB / 4 + 256));
  EXPECT_EQ(findings.growth[0].bytes_from, "the census");
}

TEST_F(HoldersTest, TheCensusThatSawTheMostIsAsked) {
  AllocateBlocks(5);
  CensusBuilder during;
  for (uint64_t i = 1; i <= 5; ++i)
    during.Tensor(i << 24, kMiB, "frame train.py:8 in main 'kept'[…]", Census::ROLE_UNKNOWN, Holder::FRAME);
  Give(during, 5, 6000);
  const SiteId freed = Site(EventKind::kBlockFree, Space::kDevice, kMiB, 1);
  ++next_;
  for (uint64_t i = 1; i <= 4; ++i) Event(freed, i << 24, 7000, i - 1, static_cast<uint32_t>(i - 1));
  CensusBuilder at_exit;
  at_exit.Tensor(uint64_t{5} << 24, kMiB, "train.last");
  Give(at_exit, next_, 9000);
  ledger_.Finish();
  holders_.Conclude(LeakOf(block_site_), symbols_);
  ASSERT_EQ(holders_.censuses().size(), 2u);
  EXPECT_EQ(holders_.HoldersOf(0)[0].text, "frame train.py:8 in main 'kept'[…]");
  EXPECT_EQ(holders_.HoldersOf(0)[0].kind, "frame");
}

}  // namespace
}  // namespace gpumemtrace::analyzer
