// What grows over the steps: leaks with their evidence, then growth that has a harmless explanation.
#include <cmath>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/holders_text.h"
#include "analyzer/report/remedies.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

std::string What(const GrowthFinding& growth) {
  // What the pool of a framework does not show, counted by a handle that is made with each.
  if (growth.level == Level::kHandle && !growth.bytes_from.empty()) {
    return "arrays of a pool, counted by " + Printable(growth.api);
  }
  if (growth.level == Level::kHandle) return Printable(growth.api);
  if (growth.kind == GrowthKind::kStrandedCache) return "allocator cache";
  if (growth.level == Level::kBlock) return "tensors";
  return std::string(SpaceName(growth.space)) + (growth.on_host() ? " memory" : "") +
         (growth.library.empty() ? "" : ", " + Printable(growth.library));
}

std::string Percent(double part) {
  return std::to_string(static_cast<int>(std::lround(part * 100))) + " %";
}

void GrowthText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  if (!findings.concluded || findings.growth.empty()) return;
  const bool real = findings.steps.real();
  bool heading = false;
  size_t shown = 0;
  size_t suppressed = 0;
  size_t first_leak = SIZE_MAX;
  for (const GrowthFinding& growth : findings.growth) {
    if (!IsLeak(growth.kind)) continue;
    if (growth.suppressed) {
      ++suppressed;
      continue;
    }
    if (growth.told_by_memory && detail == 0) continue;
    if (!heading) out.Heading("What grows");
    heading = true;
    if (++shown > (detail > 0 ? 100 : 5)) continue;
    out.Line("  " + out.Bold(RateText(growth.bytes_per_step, growth.count_per_step, real)) + "  " +
             Printable(growth.place.Short()) + "  (" + What(growth) + ", " + DeviceText(growth.device) + ")");
    std::string evidence = growth.explanation + "; rose in " + FormatCount(growth.rises) + " of " +
                           FormatCount(growth.steps_seen) + " steps since step " +
                           FormatCount(static_cast<uint64_t>(growth.since_step)) +
                           (growth.loop.empty() ? "" : " of the loop at " + Printable(growth.loop)) + ", " +
                           (growth.bytes_known ? FormatBytes(growth.grown_bytes) : "") +
                           (growth.bytes_known && growth.grown_count != 0 ? " in " : "") +
                           (growth.grown_count != 0 ? Plural(growth.grown_count, "object") : "") +
                           (growth.bytes_known ? "" : ", what each costs is not known") +
                           (growth.bytes_from.empty() ? "" : " (bytes by " + growth.bytes_from + ")") +
                           " in all, confidence " + Percent(growth.confidence);
    if (growth.once_bytes != 0) {
      evidence += "; beside it the line made " + FormatBytes(growth.once_bytes) + " once, which stay";
    }
    out.Line("      " + evidence);
    const auto number = static_cast<size_t>(&growth - findings.growth.data());
    if (first_leak == SIZE_MAX) first_leak = number;
    for (const std::string& row : HolderRows(trace, number, detail > 0 ? 20 : 3)) out.Line("      " + row);
    const std::string curve = Sparkline(growth.curve, 60);
    if (!curve.empty()) out.Line("      " + curve);
    if (growth.remedy != Remedy::kUnknown) {
      const size_t with = FreedWith(trace, number);
      std::string remedy = "freed by: " + WhatFrees(trace, number);
      if (with != number) {
        remedy = "goes with the fix above" +
                 (with == first_leak ? "" : ", of " + Printable(findings.growth[with].place.Short()));
      }
      // Of one leak alone; the headline says it of all.
      if (growth.microseconds_until_full != 0 && detail > 0) {
        remedy +=
            "; by this line alone the card is full in about " + RoughDuration(growth.microseconds_until_full);
      }
      out.Line("      " + remedy);
    }
    if (detail > 0 && !growth.origins.empty()) {
      for (const std::string& row : StackRows(trace, growth.origins.front(), detail > 1 ? 1000 : 20)) {
        out.Line("        " + out.Dim(row));
      }
    }
  }
  if (shown > 5 && detail == 0) out.Line("  … " + Plural(shown - 5, "more line") + " (-v)");
  if (suppressed != 0) {
    if (!heading) out.Heading("What grows");
    heading = true;
    for (const GrowthFinding& growth : findings.growth) {
      if (!IsLeak(growth.kind) || !growth.suppressed) continue;
      out.Line("  suppressed: " + RateText(growth.bytes_per_step, growth.count_per_step, real) + "  " +
               Printable(growth.place.Short()) + "  by leak:" + Printable(growth.suppressed_by));
    }
  }

  std::vector<std::vector<std::string>> rows;
  for (const GrowthFinding& growth : findings.growth) {
    if (IsLeak(growth.kind)) continue;
    const bool handles = growth.kind == GrowthKind::kHandles;
    if (growth.grown_bytes == 0 && !handles && detail == 0) continue;
    if (rows.size() >= (detail > 0 ? 50u : 4u)) break;
    const std::string amount = growth.level == Level::kHandle ? Plural(growth.grown_count, "object")
                                                              : FormatBytes(growth.grown_bytes);
    std::string note =
        (growth.level == Level::kHandle || growth.api == "allocator cache" ? Printable(growth.api) + ": "
                                                                           : "") +
        growth.explanation;
    if (growth.remedy != Remedy::kUnknown && detail > 0)
      note += "; freed by: " + std::string(RemedyText(growth.remedy));
    rows.push_back({std::string(GrowthKindName(growth.kind)), amount,
                    Shorten(Printable(growth.place.Short()), 50), std::move(note)});
  }
  if (!rows.empty()) {
    if (!heading) {
      out.Heading("What grew and is no leak");
    } else {
      out.Line("  No leak:");
    }
    out.Table(rows, {false, true, false, false});
  }
}

nlohmann::ordered_json GrowthJson(const AnalyzedTrace& trace, const GrowthFinding& growth) {
  nlohmann::ordered_json json;
  json["kind"] = IsLeak(growth.kind) ? (growth.kind == GrowthKind::kStrandedCache ? "fragmentation" : "leak")
                                     : std::string(GrowthKindName(growth.kind));
  json["growth"] = std::string(GrowthKindName(growth.kind));
  json["space"] = growth.level == Level::kHandle ? "handle"
                  : growth.level == Level::kBlock || growth.kind == GrowthKind::kStrandedCache
                      ? "device"
                      : SpaceKey(growth.space);
  json["device"] = growth.device;
  const nlohmann::ordered_json bytes_per_step =
      growth.bytes_known ? nlohmann::ordered_json(growth.bytes_per_step) : nlohmann::ordered_json(nullptr);
  json["bytes_per_step"] = bytes_per_step;
  if (!growth.bytes_from.empty()) json["bytes_from"] = growth.bytes_from;
  json["count_per_step"] = growth.count_per_step;
  json["confidence"] = growth.confidence;
  json["culprit"] = PlaceJson(growth.place);
  json["born_at"] = nlohmann::ordered_json::array();
  nlohmann::ordered_json born = PlaceJson(growth.place);
  born["bytes_per_step"] = bytes_per_step;
  json["born_at"].push_back(std::move(born));
  if (!growth.library.empty()) json["library"] = Printable(growth.library);
  if (!growth.api.empty()) json["api"] = Printable(growth.api);
  json["grown_bytes"] = growth.grown_bytes;
  json["grown_count"] = growth.grown_count;
  json["once_bytes"] = growth.once_bytes;
  json["once_count"] = growth.once_count;
  json["live_bytes"] = growth.live_bytes;
  json["live_bytes_at_end"] = growth.live_bytes_at_end;
  json["since_step"] = growth.since_step;
  json["until_step"] = growth.until_step;
  json["still_growing"] = growth.still_growing;
  json["rises"] = growth.rises;
  json["steps_seen"] = growth.steps_seen;
  if (!growth.loop.empty()) json["loop"] = Printable(growth.loop);
  if (growth.microseconds_until_full != 0) {
    json["seconds_until_full"] = static_cast<double>(growth.microseconds_until_full) / 1e6;
  }
  if (growth.steps_until_full > 0) json["steps_until_full"] = growth.steps_until_full;
  json["remedy"] = std::string(RemedyName(growth.remedy));
  json["remedy_text"] =
      WhatFrees(trace, static_cast<size_t>(&growth - trace.analyses.findings().growth.data()));
  json["explanation"] = growth.explanation;
  if (growth.suppressed) json["suppressed_by"] = Printable(growth.suppressed_by);
  nlohmann::ordered_json& curve = json["curve"] = nlohmann::ordered_json::array();
  for (const CurvePoint& point : growth.curve) curve.push_back({point.step, point.bytes, point.count});
  nlohmann::ordered_json& stacks = json["stacks"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < growth.origins.size() && i < 3; ++i)
    stacks.push_back(StackJson(trace, growth.origins[i]));
  return json;
}

void GrowthJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const Findings& findings = trace.analyses.findings();
  nlohmann::ordered_json& list = out["findings"];
  if (!list.is_array()) list = nlohmann::ordered_json::array();
  nlohmann::ordered_json growth = nlohmann::ordered_json::array();
  for (const GrowthFinding& finding : findings.growth) {
    nlohmann::ordered_json json = GrowthJson(trace, finding);
    AddHolders(trace, static_cast<size_t>(&finding - findings.growth.data()), json);
    if (IsLeak(finding.kind) && !finding.suppressed) list.push_back(json);
    growth.push_back(std::move(json));
  }
  for (const PeakAdvice& advice : findings.advice) {
    list.push_back({{"kind", "peak"},
                    {"advice", std::string(PeakAdviceName(advice.kind))},
                    {"space", "device"},
                    {"device", advice.device},
                    {"bytes", advice.bytes},
                    {"peak_without", advice.peak_without},
                    {"headline", advice.headline},
                    {"culprit", PlaceJson(advice.place)},
                    {"text", advice.text},
                    {"remedy", advice.remedy}});
  }
  // Last: a new key moves the others, and `list` is one of them.
  out["growth"] = std::move(growth);
}

}  // namespace

const Section kGrowthSection = {"growth", GrowthText, GrowthJson};

}  // namespace gpumemtrace::analyzer
