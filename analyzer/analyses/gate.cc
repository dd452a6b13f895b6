#include "analyzer/analyses/gate.h"

#include <algorithm>

namespace gpumemtrace::analyzer {
namespace {

// Fewer steps than this say nothing about growth.
constexpr uint64_t kFewestStepsToJudge = 5;
// Between two runs of one program the peak moves by the allocator's rounding; growth below this is none.
constexpr double kLeastGrowth = 1;

class Gate {
 public:
  explicit Gate(GateResult& result) : result_(result) {}

  void Limit(const char* what, double found, double limit, bool per_step, const std::string& place,
             const char* source) {
    if (found <= limit) return;
    result_.violations.push_back(
        {what, found, limit, per_step, place, source, limit > 0 ? found / limit : 1e9});
  }

 private:
  GateResult& result_;
};

}  // namespace

GateFigures Figures(const Findings& findings) {
  GateFigures figures;
  for (const PeakFinding& peak : findings.peaks) {
    if (peak.device < 0) continue;
    const bool has_blocks =
        std::any_of(findings.peaks.begin(), findings.peaks.end(), [&](const PeakFinding& other) {
          return other.device == peak.device && other.level == Level::kBlock;
        });
    if (peak.level == Level::kSegment && has_blocks) continue;
    if (peak.bytes > figures.peak) {
      figures.peak = peak.bytes;
      figures.peak_place = peak.by_line.empty() ? "" : peak.by_line.front().place.Short();
    }
  }
  for (const DeviceAccount& account : findings.accounts) {
    if (!account.at_end.measured) continue;
    figures.used_measured = true;
    figures.used = std::max(figures.used, account.max_used);
    figures.unattributed = std::max(figures.unattributed, account.at_end.unattributed);
  }
  for (const FragmentationFinding& fragmentation : findings.fragmentation) {
    figures.reserved = std::max(figures.reserved, fragmentation.reserved_peak);
    figures.fragmentation = std::max(figures.fragmentation, fragmentation.worst.gap_bytes);
  }
  for (const GrowthFinding& growth : findings.growth) {
    if (!IsLeak(growth.kind) || growth.suppressed || growth.confidence < 0.3) continue;
    figures.growth += growth.bytes_per_step;
    if (figures.growth_place.empty()) figures.growth_place = growth.place.Short();
  }
  figures.out_of_memory = findings.out_of_memory_count;
  figures.growth_judged = findings.steps.real() && findings.steps.count >= kFewestStepsToJudge;
  return figures;
}

GateResult Check(const GateFigures& figures, const Findings& findings, const Limits& limits,
                 const GateFigures* baseline) {
  GateResult result;
  Gate gate(result);
  const bool growth_wanted = limits.growth.has_value() || limits.no_leak;
  if (growth_wanted && !figures.growth_judged) {
    result.unjudged.push_back(findings.steps.real() ? "growth: " + std::to_string(findings.steps.count) +
                                                          " steps are too few to judge"
                                                    : "growth: no steps were found in this trace");
  }
  if (limits.used && !figures.used_measured)
    result.unjudged.push_back("used: the device itself was never asked");
  if (limits.unattributed && !figures.used_measured) {
    result.unjudged.push_back("unattributed: the device itself was never asked");
  }
  const auto check = [&](const char* what, const std::optional<uint64_t>& limit, double found, bool per_step,
                         const std::string& place) {
    if (limit) gate.Limit(what, found, static_cast<double>(*limit), per_step, place, "limit");
  };
  check("peak", limits.peak, static_cast<double>(figures.peak), false, figures.peak_place);
  check("reserved", limits.reserved, static_cast<double>(figures.reserved), false, "");
  if (figures.used_measured) {
    check("used", limits.used, static_cast<double>(figures.used), false, "");
    check("unattributed", limits.unattributed, static_cast<double>(figures.unattributed), false, "");
  }
  check("fragmentation", limits.fragmentation, static_cast<double>(figures.fragmentation), false, "");
  if (figures.growth_judged) check("growth", limits.growth, figures.growth, true, figures.growth_place);
  if (limits.no_leak && figures.growth_judged && findings.verdict.kind == VerdictKind::kLeak) {
    result.violations.push_back({"leak", figures.growth, 0, true, figures.growth_place, "limit", 1e9});
  }
  if (limits.no_out_of_memory && figures.out_of_memory != 0) {
    result.violations.push_back(
        {"out of memory", static_cast<double>(figures.out_of_memory), 0, false, "", "limit", 1e9});
  }
  if (baseline != nullptr) {
    const double above = 1 + limits.tolerance;
    gate.Limit("peak", static_cast<double>(figures.peak), static_cast<double>(baseline->peak) * above, false,
               figures.peak_place, "baseline");
    gate.Limit("reserved", static_cast<double>(figures.reserved),
               static_cast<double>(baseline->reserved) * above, false, "", "baseline");
    // Not the device's own figure: other programs on the card are in it.
    if (figures.growth_judged && baseline->growth_judged) {
      gate.Limit("growth", figures.growth, baseline->growth * above + kLeastGrowth, true,
                 figures.growth_place, "baseline");
    }
    if (figures.out_of_memory > baseline->out_of_memory) {
      gate.Limit("out of memory", static_cast<double>(figures.out_of_memory),
                 static_cast<double>(baseline->out_of_memory), false, "", "baseline");
    }
  }
  std::stable_sort(result.violations.begin(), result.violations.end(),
                   [](const Violation& a, const Violation& b) { return a.excess > b.excess; });
  return result;
}

}  // namespace gpumemtrace::analyzer
