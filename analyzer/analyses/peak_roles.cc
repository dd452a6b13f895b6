#include "analyzer/analyses/peak_roles.h"

#include <algorithm>

#include "analyzer/analyses/unheld.h"

namespace gpumemtrace::analyzer {
namespace {

// From this size on PyTorch leaves up to so much of a free block unused rather than cut it (kLargeBuffer and
// the rounding of large requests in c10/cuda/CUDACachingAllocator.cpp), so that equal tensors may lie in
// unequal blocks.
constexpr uint64_t kUncutBytes = uint64_t{1} << 20;
// What lives longer is no part of a step's own work.
constexpr double kLongLife = 2;
// A library's workspace is made once for each handle and stream, not in every step.
constexpr uint64_t kWorkspaceBirths = 2;
constexpr uint64_t kFewestStepsToTell = 4;

class RoleFinder {
 public:
  RoleFinder(const Findings& findings, const TraceModel& model, const SeenByCensus& seen,
             const absl::flat_hash_map<OriginId, BytesByRole>& by_origin, Symbolizer& symbols)
      : findings_(findings), model_(model), seen_(seen), by_origin_(by_origin), symbols_(symbols) {}

  PeakRoles Of(const PeakFinding& peak) {
    PeakRoles result;
    result.device = peak.device;
    result.bytes = peak.bytes;
    absl::flat_hash_map<OriginId, uint64_t> left;
    uint64_t sum = 0;
    for (const ShareOrigin& share : peak.by_origin) {
      left[share.origin] += share.bytes;
      sum += share.bytes;
    }
    for (const PeakBlock& block : peak.blocks) {
      // What a folded window only counted has a share, but no block of its own.
      uint64_t& rest = left[block.origin];
      const uint64_t bytes = std::min(rest, block.bytes);
      rest -= bytes;
      Add(result, RoleOfBlock(block), bytes);
    }
    for (const ShareOrigin& share : peak.by_origin) {
      uint64_t& rest = left[share.origin];
      if (rest != 0) Add(result, RoleOfPlace(share.origin), rest);
      rest = 0;
    }
    if (sum < peak.bytes) Add(result, {MemoryRole::kUnknown, Source::kRule}, peak.bytes - sum);
    return result;
  }

 private:
  enum class Source : uint8_t { kCensus, kBirthPlace, kRule };
  struct Told {
    MemoryRole role;
    Source source;
  };
  // What the stack of a birth place says.
  struct PlaceRole {
    MemoryRole seen = MemoryRole::kUnknown;
    bool workspace = false;
  };

  static void Add(PeakRoles& result, Told told, uint64_t bytes) {
    result.by_role[static_cast<size_t>(told.role)] += bytes;
    if (told.source == Source::kCensus) result.from_census += bytes;
    if (told.source == Source::kBirthPlace) result.from_birth_place += bytes;
  }

  const PlaceRole& PlaceOf(OriginId origin) {
    const auto [entry, added] = places_.try_emplace(origin);
    PlaceRole& place = entry->second;
    if (!added) return place;
    const auto found = by_origin_.find(origin);
    if (found != by_origin_.end()) {
      const BytesByRole& bytes = found->second;
      const auto most = std::max_element(bytes.begin() + 1, bytes.end());
      if (*most > 0) place.seen = static_cast<MemoryRole>(most - bytes.begin());
    }
    if (place.seen == MemoryRole::kUnknown && origin < findings_.origins.size()) {
      place.workspace = WhyNoObject(model_, findings_.origins[origin].site, false, symbols_).workspace;
    }
    return place;
  }

  Phase PhaseOf(OriginId origin) const {
    return origin < findings_.origins.size() ? findings_.origins[origin].phase : Phase::kUnknown;
  }

  // In steps; negative when there are none.
  double LifeOf(const PeakBlock& block) const {
    const Steps& steps = findings_.steps;
    if (!steps.real()) return -1;
    const double born = std::max(steps.StepAt(block.birth_index), -1.0);
    const double died =
        block.death_index == kNoIndex ? static_cast<double>(steps.count) : steps.StepAt(block.death_index);
    return std::max(died - born, 0.0);
  }

  bool FitsParameter(uint64_t bytes) const {
    if (seen_.parameter_sizes.contains(bytes)) return true;
    if (bytes < kUncutBytes) return false;
    return std::any_of(seen_.parameter_sizes.begin(), seen_.parameter_sizes.end(), [&](uint64_t size) {
      return size >= kUncutBytes && (size > bytes ? size - bytes : bytes - size) < kUncutBytes;
    });
  }

  // Freed by another thread than made it: what backward itself is done with, its own thread frees.
  bool OutlivedBackward(const PeakBlock& block) const {
    if (block.death_index == kNoIndex) return true;
    if (block.freed_by == 0 || block.origin >= findings_.origins.size()) return false;
    return model_.Site(block.freed_by).thread != model_.Site(findings_.origins[block.origin].site).thread;
  }

  bool LooksLikeWorkspace(const PeakBlock& block, const SeenByCensus::Allocation* seen) const {
    if (seen == nullptr || seen->has_object || block.origin >= findings_.origins.size()) return false;
    const OriginSummary& origin = findings_.origins[block.origin];
    return findings_.steps.count >= kFewestStepsToTell && origin.births <= kWorkspaceBirths &&
           LifeOf(block) >= kLongLife;
  }

  Told RoleOfPlace(OriginId origin) {
    const PlaceRole& place = PlaceOf(origin);
    if (place.seen != MemoryRole::kUnknown) return {place.seen, Source::kBirthPlace};
    if (place.workspace) return {MemoryRole::kWorkspace, Source::kRule};
    switch (PhaseOf(origin)) {
      case Phase::kForward:
        return {MemoryRole::kActivation, Source::kRule};
      case Phase::kBackward:
      case Phase::kOptimizer:
      case Phase::kEvaluation:
        return {MemoryRole::kTemporary, Source::kRule};
      default:
        return {MemoryRole::kUnknown, Source::kRule};
    }
  }

  Told RoleOfBlock(const PeakBlock& block) {
    const auto found = seen_.allocations.find(block.birth_index);
    const SeenByCensus::Allocation* seen = found == seen_.allocations.end() ? nullptr : &found->second;
    if (seen != nullptr && seen->role != MemoryRole::kUnknown) return {seen->role, Source::kCensus};
    const Told place = RoleOfPlace(block.origin);
    if (place.source == Source::kBirthPlace || place.role == MemoryRole::kWorkspace) return place;
    if (LooksLikeWorkspace(block, seen)) return {MemoryRole::kWorkspace, Source::kRule};
    const double life = LifeOf(block);
    switch (PhaseOf(block.origin)) {
      case Phase::kForward:
      case Phase::kEvaluation:
        // Kept over steps without being the result of a recorded operation: data, a cache, a copy.
        return life < kLongLife ? place : Told{MemoryRole::kUnknown, Source::kRule};
      case Phase::kBackward:
        if (!OutlivedBackward(block)) return place;
        return {FitsParameter(block.bytes) ? MemoryRole::kGradient : MemoryRole::kUnknown, Source::kRule};
      case Phase::kOptimizer:
        return life < kLongLife ? place : Told{MemoryRole::kOptimizerState, Source::kRule};
      default:
        return place;
    }
  }

  const Findings& findings_;
  const TraceModel& model_;
  const SeenByCensus& seen_;
  const absl::flat_hash_map<OriginId, BytesByRole>& by_origin_;
  Symbolizer& symbols_;
  absl::flat_hash_map<OriginId, PlaceRole> places_;
};

}  // namespace

std::string_view MemoryRoleName(MemoryRole role) {
  switch (role) {
    case MemoryRole::kUnknown:
      return "unknown";
    case MemoryRole::kParameter:
      return "parameters";
    case MemoryRole::kBuffer:
      return "buffers";
    case MemoryRole::kGradient:
      return "gradients";
    case MemoryRole::kOptimizerState:
      return "optimizer state";
    case MemoryRole::kActivation:
      return "activations";
    case MemoryRole::kWorkspace:
      return "workspaces";
    case MemoryRole::kTemporary:
      return "temporaries";
  }
  return "unknown";
}

std::vector<PeakRoles> FindPeakRoles(const Findings& findings, const TraceModel& model,
                                     const SeenByCensus& seen,
                                     const absl::flat_hash_map<OriginId, BytesByRole>& by_origin,
                                     Symbolizer& symbols) {
  RoleFinder finder(findings, model, seen, by_origin, symbols);
  std::vector<PeakRoles> result;
  for (const PeakFinding& peak : findings.peaks) result.push_back(finder.Of(peak));
  return result;
}

}  // namespace gpumemtrace::analyzer
