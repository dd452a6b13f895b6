#include "analyzer/analyses/census_bytes.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "analyzer/analyses/verdict.h"

namespace gpumemtrace::analyzer {
namespace {

// Fewer tensors than this in one place are no collection that grew with the steps.
constexpr uint64_t kFewestTensors = 5;

// The collections of about `count` tensors that are likely to have grown with the handles, largest first.
// Several when a step keeps several arrays: what one execution makes shares one event.
std::vector<HeldBy> Match(const Holders& holders, uint64_t count) {
  // The first and the last steps may differ: a compilation, the step that was not finished.
  const uint64_t slack = std::max<uint64_t>(4, count / 10);
  const auto near = [&](uint64_t value) { return (value > count ? value - count : count - value) <= slack; };
  std::vector<HeldBy> result;
  for (const HeldBy& held : holders.largest()) {
    if (!held.pooled || held.tensors < kFewestTensors || held.kind == "none" || held.items < 0) continue;
    if (near(held.tensors) && near(static_cast<uint64_t>(held.items))) result.push_back(held);
  }
  return result;
}

}  // namespace

void TellBytesByCensus(Holders& holders, Findings& findings) {
  bool told = false;
  for (GrowthFinding& growth : findings.growth) {
    const bool handles = growth.kind == GrowthKind::kLeak || growth.kind == GrowthKind::kHandles;
    if (!handles || growth.bytes_known || growth.count_per_step <= 0) continue;
    std::vector<HeldBy> held = Match(holders, growth.grown_count);
    if (held.empty()) continue;
    double each = 0;
    for (HeldBy& one : held) {
      each += static_cast<double>(one.bytes) / static_cast<double>(one.tensors);
      one.reason =
          "inferred: a pool does not show its single arrays, and the census found as many here as grew";
    }
    growth.bytes_from = "the census";
    growth.kind = GrowthKind::kLeak;
    growth.explanation = "survives step after step until the end";
    growth.bytes_known = true;
    growth.bytes_per_step = each * growth.count_per_step;
    growth.grown_bytes = static_cast<uint64_t>(std::llround(each * static_cast<double>(growth.grown_count)));
    holders.Tell(static_cast<size_t>(&growth - findings.growth.data()), std::move(held));
    growth.remedy = Remedy::kReference;
    told = true;
  }
  if (told) findings.verdict = MakeVerdict(findings, findings.changes, findings.gaps);
}

}  // namespace gpumemtrace::analyzer
