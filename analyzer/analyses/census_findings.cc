#include "analyzer/analyses/census_findings.h"

#include <algorithm>

namespace gpumemtrace::analyzer {
namespace {

void AddRounding(const Holders& holders, OriginId origin, uint64_t bytes, Account& account) {
  const auto found = holders.rounding().find(origin);
  if (found == holders.rounding().end() || found->second.bytes == 0) return;
  const auto& [known, rounding] = found->second;
  // What the census did not meet of a birth place is taken to be rounded like the rest of it.
  const double part = static_cast<double>(rounding) / static_cast<double>(known);
  account.rounding += bytes == known ? rounding : static_cast<uint64_t>(part * static_cast<double>(bytes));
  account.rounding_known += std::min(known, bytes);
}

}  // namespace

void TellRounding(const Holders& holders, Findings& findings) {
  for (DeviceAccount& device : findings.accounts) {
    for (OriginId id = 0; id < findings.origins.size(); ++id) {
      const OriginSummary& origin = findings.origins[id];
      if (origin.level != Level::kBlock || origin.device != device.device) continue;
      AddRounding(holders, id, origin.live_bytes, device.at_end);
    }
    for (const auto& [id, bytes] : device.blocks_at_fullest)
      AddRounding(holders, id, bytes, *device.at_fullest);
    for (const PeakFinding& peak : findings.peaks) {
      if (peak.device != device.device || peak.level != Level::kBlock) continue;
      for (const ShareOrigin& share : peak.by_origin)
        AddRounding(holders, share.origin, share.bytes, device.at_peak);
    }
    for (FragmentationFinding& fragmentation : findings.fragmentation) {
      if (fragmentation.device == device.device) fragmentation.last.rounding = device.at_end.rounding;
    }
  }
}

void TellRemedies(const Holders& holders, Findings& findings) {
  for (size_t i = 0; i < findings.growth.size(); ++i) {
    GrowthFinding& growth = findings.growth[i];
    if (growth.kind != GrowthKind::kLeak && growth.kind != GrowthKind::kSawtooth) continue;
    const std::vector<HeldBy>& held = holders.HoldersOf(i);
    if (held.empty()) continue;
    const HeldBy& most = held.front();
    if (most.kind == "cycle") {
      growth.remedy = Remedy::kGarbageCollector;
    } else if (growth.kind == GrowthKind::kSawtooth || !most.out_of_reach()) {
      continue;
    } else if (most.reason.find("which PyTorch keeps for each handle and stream") != std::string::npos) {
      growth.remedy = Remedy::kClearWorkspaces;
    } else if (most.reason.starts_with("probably shared with another process")) {
      growth.remedy = Remedy::kReceiver;
    } else if (growth.remedy == Remedy::kReference) {
      // No Python object refers to it: there is no reference to drop.
      growth.remedy = Remedy::kExit;
    }
  }
}

}  // namespace gpumemtrace::analyzer
