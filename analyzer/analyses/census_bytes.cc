#include "analyzer/analyses/census_bytes.h"

#include <algorithm>
#include <cmath>

#include "analyzer/analyses/verdict.h"

namespace gpumemtrace::analyzer {
namespace {

// Fewer tensors than this in one place are no collection that grew with the steps.
constexpr uint64_t kFewestTensors = 5;

// The collection of about `count` tensors that is likely to have grown with the handles; null when none is.
const HeldBy* Match(const Holders& holders, uint64_t count) {
  const HeldBy* best = nullptr;
  uint64_t nearest = UINT64_MAX;
  for (const HeldBy& held : holders.largest()) {
    if (held.tensors < kFewestTensors || held.kind == "none" || held.items < 0) continue;
    const uint64_t distance = held.tensors > count ? held.tensors - count : count - held.tensors;
    // The first and the last steps may differ: a compilation, the step that was not finished.
    if (distance > std::max<uint64_t>(4, count / 10) || distance >= nearest) continue;
    nearest = distance;
    best = &held;
  }
  return best;
}

}  // namespace

void TellBytesByCensus(const Holders& holders, Findings& findings) {
  bool told = false;
  for (GrowthFinding& growth : findings.growth) {
    const bool handles = growth.kind == GrowthKind::kLeak || growth.kind == GrowthKind::kHandles;
    if (!handles || growth.bytes_known || growth.count_per_step <= 0) continue;
    const HeldBy* held = Match(holders, growth.grown_count);
    if (held == nullptr) continue;
    const double each = static_cast<double>(held->bytes) / static_cast<double>(held->tensors);
    growth.kind = GrowthKind::kLeak;
    growth.explanation = "survives step after step until the end";
    growth.bytes_known = true;
    growth.bytes_from = "the census: " + held->Describe();
    growth.bytes_per_step = each * growth.count_per_step;
    growth.grown_bytes = static_cast<uint64_t>(std::llround(each * static_cast<double>(growth.grown_count)));
    growth.remedy = Remedy::kReference;
    told = true;
  }
  if (told) findings.verdict = MakeVerdict(findings, findings.changes, findings.gaps);
}

}  // namespace gpumemtrace::analyzer
