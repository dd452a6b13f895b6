// The roles of a peak's blocks: what a census saw, what is inferred, and that the sums stay exact.
#include "analyzer/analyses/peak_roles.h"

#include <gtest/gtest.h>

#include "analyzer/analyses/unheld.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;
constexpr ThreadId kMain = 1;
constexpr ThreadId kAutograd = 2;

class PeakRolesTest : public ::testing::Test {
 protected:
  PeakRolesTest() : symbols_(model_, {}) {
    model_.has_header = true;
    findings_.steps.source = StepSource::kOptimizer;
    findings_.steps.count = 10;
    for (uint64_t step = 0; step < 10; ++step) findings_.steps.begin_index.push_back(100 + 100 * step);
    findings_.steps.end_index = 1100;
    findings_.peaks.emplace_back();
    free_on_main_ = Site(kMain);
    free_on_autograd_ = Site(kAutograd);
  }

  SiteId Site(ThreadId thread) {
    SiteInfo site;
    site.thread = thread;
    model_.sites.push_back(site);
    return static_cast<SiteId>(model_.sites.size() - 1);
  }

  OriginId Origin(Phase phase, uint64_t births = 10) {
    OriginSummary origin;
    origin.site = Site(phase == Phase::kBackward ? kAutograd : kMain);
    origin.phase = phase;
    origin.births = births;
    findings_.origins.push_back(origin);
    return static_cast<OriginId>(findings_.origins.size() - 1);
  }

  // A block of the peak; `death` = kNoIndex: alive at the end.
  void Block(OriginId origin, uint64_t bytes, uint64_t birth, uint64_t death = kNoIndex,
             SiteId freed_by = 0) {
    PeakFinding& peak = findings_.peaks[0];
    peak.blocks.push_back({origin, bytes, 0, birth, 0, death, freed_by});
    peak.bytes += bytes;
    for (ShareOrigin& share : peak.by_origin) {
      if (share.origin == origin) {
        share.bytes += bytes;
        return;
      }
    }
    peak.by_origin.push_back({origin, bytes, 1});
  }

  PeakRoles Roles() {
    const std::vector<PeakRoles> all = FindPeakRoles(findings_, model_, seen_, by_origin_, symbols_);
    EXPECT_EQ(all.size(), 1u);
    uint64_t sum = 0;
    for (const uint64_t bytes : all[0].by_role) sum += bytes;
    EXPECT_EQ(sum, findings_.peaks[0].bytes);
    return all[0];
  }

  uint64_t BytesOf(MemoryRole role) { return Roles().by_role[static_cast<size_t>(role)]; }

  TraceModel model_;
  Symbolizer symbols_;
  Findings findings_;
  SeenByCensus seen_;
  absl::flat_hash_map<OriginId, BytesByRole> by_origin_;
  SiteId free_on_main_ = 0;
  SiteId free_on_autograd_ = 0;
};

TEST_F(PeakRolesTest, GradientsThatAreGoneAtEveryCensus) {
  seen_.parameter_sizes = {4 * kMebibyte};
  const OriginId backward = Origin(Phase::kBackward);
  Block(backward, 4 * kMebibyte, 350, 390, free_on_main_);      // zero_grad(set_to_none=True)
  Block(backward, 4 * kMebibyte, 351, 352, free_on_autograd_);  // backward's own
  Block(backward, 3 * kMebibyte, 353, 391, free_on_main_);      // no parameter is so large
  EXPECT_EQ(BytesOf(MemoryRole::kGradient), 4 * kMebibyte);
  EXPECT_EQ(BytesOf(MemoryRole::kTemporary), 4 * kMebibyte);
  EXPECT_EQ(BytesOf(MemoryRole::kUnknown), 3 * kMebibyte);
  EXPECT_EQ(Roles().from_census + Roles().from_birth_place, 0u);
}

TEST_F(PeakRolesTest, GradientInABlockThatWasNotCut) {
  seen_.parameter_sizes = {4 * kMebibyte, 512};
  const OriginId backward = Origin(Phase::kBackward);
  Block(backward, 4 * kMebibyte + kMebibyte / 2, 350, 390, free_on_main_);
  Block(backward, 1024, 351, 390, free_on_main_);
  EXPECT_EQ(BytesOf(MemoryRole::kGradient), 4 * kMebibyte + kMebibyte / 2);
  EXPECT_EQ(BytesOf(MemoryRole::kUnknown), 1024u);
}

TEST_F(PeakRolesTest, GradientsBornWhereACensusSawSome) {
  const OriginId backward = Origin(Phase::kBackward);
  by_origin_[backward] = {};
  by_origin_[backward][static_cast<size_t>(MemoryRole::kGradient)] = 8 * kMebibyte;
  by_origin_[backward][0] = 100 * kMebibyte;  // objects of which nothing is known say nothing
  Block(backward, 4 * kMebibyte, 350, 390, free_on_main_);
  const PeakRoles roles = Roles();
  EXPECT_EQ(roles.by_role[static_cast<size_t>(MemoryRole::kGradient)], 4 * kMebibyte);
  EXPECT_EQ(roles.from_census, 0u);
  EXPECT_EQ(roles.from_birth_place, 4 * kMebibyte);
}

TEST_F(PeakRolesTest, TheCensusSpeaksForTheVeryBlock) {
  const OriginId place = Origin(Phase::kForward);
  by_origin_[place][static_cast<size_t>(MemoryRole::kParameter)] = 90 * kMebibyte;
  seen_.allocations[350] = {MemoryRole::kBuffer, true};
  Block(place, kMebibyte, 350);
  Block(place, kMebibyte, 351);
  const PeakRoles roles = Roles();
  EXPECT_EQ(roles.by_role[static_cast<size_t>(MemoryRole::kBuffer)], kMebibyte);
  EXPECT_EQ(roles.by_role[static_cast<size_t>(MemoryRole::kParameter)], kMebibyte);
  EXPECT_EQ(roles.from_census, kMebibyte);
  EXPECT_EQ(roles.from_birth_place, kMebibyte);
}

TEST_F(PeakRolesTest, OptimizerStateLivesOnAndTemporariesDoNot) {
  const OriginId optimizer = Origin(Phase::kOptimizer);
  Block(optimizer, 2 * kMebibyte, 180);
  Block(optimizer, 5 * kMebibyte, 181, 600, free_on_main_);
  Block(optimizer, 3 * kMebibyte, 182, 190, free_on_main_);
  EXPECT_EQ(BytesOf(MemoryRole::kOptimizerState), 7 * kMebibyte);
  EXPECT_EQ(BytesOf(MemoryRole::kTemporary), 3 * kMebibyte);
}

TEST_F(PeakRolesTest, ActivationsEndWithTheirStep) {
  const OriginId forward = Origin(Phase::kForward);
  Block(forward, 2 * kMebibyte, 310, 380, free_on_main_);
  Block(forward, 3 * kMebibyte, 311, 790, free_on_main_);  // data, a cache, a copy: nothing says what
  EXPECT_EQ(BytesOf(MemoryRole::kActivation), 2 * kMebibyte);
  EXPECT_EQ(BytesOf(MemoryRole::kUnknown), 3 * kMebibyte);
}

TEST_F(PeakRolesTest, WorkspaceIsMadeOnceAndNoObjectRefersToIt) {
  const OriginId once = Origin(Phase::kForward, 1);
  const OriginId often = Origin(Phase::kForward, 10);
  const OriginId held = Origin(Phase::kBackward, 1);
  seen_.allocations[120] = {MemoryRole::kUnknown, false};
  seen_.allocations[121] = {MemoryRole::kUnknown, false};
  seen_.allocations[122] = {MemoryRole::kUnknown, true};
  Block(once, 32 * kMebibyte, 120);
  Block(often, kMebibyte, 121);
  Block(held, 2 * kMebibyte, 122);
  EXPECT_EQ(BytesOf(MemoryRole::kWorkspace), 32 * kMebibyte);
  EXPECT_EQ(BytesOf(MemoryRole::kUnknown), 3 * kMebibyte);
}

TEST_F(PeakRolesTest, WhatHasNoBlocksIsToldByItsPlace) {
  const OriginId forward = Origin(Phase::kForward);
  Block(forward, kMebibyte, 310, 380, free_on_main_);
  findings_.peaks[0].by_origin[0].bytes += 5 * kMebibyte;  // counted in a folded window
  findings_.peaks[0].bytes += 7 * kMebibyte;               // and 2 MiB of nobody's
  EXPECT_EQ(BytesOf(MemoryRole::kActivation), 6 * kMebibyte);
  EXPECT_EQ(BytesOf(MemoryRole::kUnknown), 2 * kMebibyte);
}

UnheldReason Reason(std::initializer_list<NativePlace> stack) {
  return ReasonOfStack({stack.begin(), stack.size()});
}

TEST(ReasonOfStackTest, WorkspaceOfALibraryAndTheResultOfItsOperation) {
  const NativePlace allocator = {"c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc",
                                 "libc10_cuda.so"};
  const NativePlace empty = {"at::detail::empty_generic", "libtorch_cpu.so"};
  const NativePlace convolution = {"at::native::cudnn_convolution", "libtorch_cuda.so"};
  EXPECT_TRUE(Reason({allocator, convolution}).workspace);
  EXPECT_FALSE(Reason({allocator, empty, convolution}).workspace);
  EXPECT_FALSE(Reason({allocator, empty, convolution}).certain);
  EXPECT_TRUE(Reason({allocator, {"?", "libcublasLt.so.13"}}).workspace);
  // Names of its own say more than the way.
  EXPECT_TRUE(Reason({allocator, empty, {"at::native::DropoutState::lock", "libtorch_cuda.so"}}).certain);
  EXPECT_TRUE(Reason({allocator, {"at::cuda::getCUDABlasLtWorkspace", "libtorch_cuda.so"}}).workspace);
  EXPECT_FALSE(Reason({}).certain);
}

}  // namespace
}  // namespace gpumemtrace::analyzer
