// What is live at the end of the trace. For a program without a framework this is the classic list of memory
// that was never freed; live memory at exit is not by itself a leak.
#include <algorithm>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

// Segments that a caching allocator holds say nothing beyond its tensors: what is left of a line without
// them.
ShareOrigin WithoutAllocator(const Findings& findings, const SharePlace& line) {
  ShareOrigin rest;
  for (const ShareOrigin& share : line.origins) {
    if (findings.origins[share.origin].allocator_segment) continue;
    rest.bytes += share.bytes;
    rest.count += share.count;
  }
  return rest;
}

void LiveText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  for (const LiveFinding& live : findings.live) {
    // Beside tensors the account says what libraries hold, unless it is what leaks; on the host a few bytes
    // say nothing.
    const bool tensors =
        std::any_of(findings.live.begin(), findings.live.end(), [&](const LiveFinding& other) {
          return other.device == live.device && other.level == Level::kBlock;
        });
    const bool leaks =
        std::any_of(findings.growth.begin(), findings.growth.end(), [&](const GrowthFinding& growth) {
          return growth.kind == GrowthKind::kLeak && growth.level == Level::kSegment &&
                 growth.device == live.device;
        });
    if (detail == 0 && live.level == Level::kSegment && !leaks &&
        (tensors || (live.device < 0 && live.bytes < kSmallOnHost))) {
      continue;
    }
    // The tensors of a healthy run are in the account; what a program without a framework leaves is not.
    if (detail == 0 && live.level == Level::kBlock && findings.verdict.kind == VerdictKind::kClean) continue;
    std::vector<std::vector<std::string>> rows;
    size_t hidden = 0;
    uint64_t bytes = 0;
    uint64_t count = 0;
    for (const SharePlace& line : live.by_line) {
      ShareOrigin share{.bytes = line.bytes, .count = line.count};
      if (live.level == Level::kSegment) share = WithoutAllocator(findings, line);
      if (share.count == 0) continue;
      bytes += share.bytes;
      count += share.count;
      if (rows.size() >= (detail > 0 ? 100u : 4u)) {
        ++hidden;
        continue;
      }
      rows.push_back(
          {FormatBytes(share.bytes), FormatCount(share.count), Shorten(Printable(line.place.Short()), 70)});
    }
    if (rows.empty()) continue;
    out.Heading("Live at the end on " + DeviceText(live.device) + ": " + FormatExactBytes(bytes) + " in " +
                (live.level == Level::kBlock ? Plural(count, "tensor") : Plural(count, "driver allocation")));
    out.Table(rows, {true, true, false});
    if (hidden != 0) out.Line("  … " + Plural(hidden, "other line") + (detail > 0 ? "" : " (-v)"));
  }
}

void LiveJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const Findings& findings = trace.analyses.findings();
  nlohmann::ordered_json& list = out["live_at_end"] = nlohmann::ordered_json::array();
  for (const LiveFinding& live : findings.live) {
    nlohmann::ordered_json lines = nlohmann::ordered_json::array();
    for (const SharePlace& line : live.by_line) {
      nlohmann::ordered_json entry = PlaceJson(line.place);
      entry["bytes"] = line.bytes;
      entry["count"] = line.count;
      entry["allocator_segments"] =
          live.level == Level::kSegment && WithoutAllocator(findings, line).count == 0;
      if (!line.origins.empty() && lines.size() < 50)
        entry["stack"] = StackJson(trace, line.origins.front().origin);
      lines.push_back(std::move(entry));
    }
    list.push_back({{"device", live.device},
                    {"level", live.level == Level::kBlock ? "blocks" : "segments"},
                    {"bytes", live.bytes},
                    {"count", live.count},
                    {"by_line", std::move(lines)}});
  }
}

}  // namespace

const Section kLiveSection = {"live", LiveText, LiveJson};

}  // namespace gpumemtrace::analyzer
