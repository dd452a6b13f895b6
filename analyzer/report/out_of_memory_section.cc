// Each failed allocation: what was asked, what stood in its way, what would have helped.
#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

void OutOfMemoryText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  if (findings.out_of_memory.empty()) return;
  out.Heading("Out of memory");
  size_t shown = 0;
  for (const OutOfMemoryFinding& finding : findings.out_of_memory) {
    if (++shown > (detail > 0 ? 20u : 3u)) break;
    out.Line("  " + FormatExactBytes(finding.asked) + " asked at " + Printable(finding.place.Short()) + " " +
             MomentText(finding.moment, trace) + (finding.driver ? " (" + Printable(finding.api) + ")" : ""));
    out.Field("  then", FormatBytes(finding.allocated) + " in tensors, " +
                            FormatBytes(finding.empty_segments_bytes) + " in empty segments, " +
                            FormatBytes(finding.gap_bytes) + " in holes (largest fit " +
                            FormatBytes(finding.largest_fit) + "), " + FormatBytes(finding.other_segments) +
                            " of other libraries");
    if (finding.measured) {
      out.Field("  device", FormatBytes(finding.device_free) + " free of " +
                                FormatBytes(finding.device_total) + ", " +
                                FormatSignedBytes(finding.unattributed) + " unattributed");
    }
    for (size_t i = 0; i < finding.largest.size() && i < (detail > 0 ? 12u : 3u); ++i) {
      out.Field("  held",
                FormatBytes(finding.largest[i].bytes) + "  " + Printable(finding.largest[i].place.Short()));
    }
    if (finding.shortfall != 0) {
      std::string fits = FormatBytes(finding.shortfall) + " were missing";
      for (size_t i = 0; i < finding.release.size(); ++i) {
        fits += (i == 0 ? "; it fits after releasing " : " and ") + FormatBytes(finding.release[i].bytes) +
                " of " + Printable(finding.release[i].place.Short());
      }
      if (finding.release.empty() && !finding.largest.empty()) fits += ", more than the largest holders have";
      out.Field("  fits after", fits);
    } else if (finding.fits_after_empty_cache) {
      out.Field("  fits after", "releasing the allocator's empty segments");
    } else if (finding.fits_without_fragmentation) {
      out.Field("  fits after", "nothing released: enough was free, but not in one piece");
    }
    if (!finding.advice.empty()) out.Field("  advice", finding.advice);
  }
  if (findings.out_of_memory_count > shown) {
    out.Line("  in all " + Plural(findings.out_of_memory_count, "failed request"));
  }
}

void OutOfMemoryJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  nlohmann::ordered_json& list = out["ooms"] = nlohmann::ordered_json::array();
  for (const OutOfMemoryFinding& finding : trace.analyses.findings().out_of_memory) {
    nlohmann::ordered_json json;
    json["moment"] = MomentJson(finding.moment, trace);
    json["device"] = finding.device;
    json["driver_call"] = finding.driver;
    json["api"] = Printable(finding.api);
    json["asked_bytes"] = finding.asked;
    json["culprit"] = PlaceJson(finding.place);
    json["allocated_bytes"] = finding.allocated;
    json["reserved_bytes"] = finding.reserved;
    json["gap_bytes"] = finding.gap_bytes;
    json["empty_segments_bytes"] = finding.empty_segments_bytes;
    json["largest_fit_bytes"] = finding.largest_fit;
    json["other_segments_bytes"] = finding.other_segments;
    json["measured"] = finding.measured;
    json["device_free_bytes"] = finding.device_free;
    json["device_total_bytes"] = finding.device_total;
    json["unattributed_bytes"] = finding.unattributed;
    json["fits_without_fragmentation"] = finding.fits_without_fragmentation;
    json["fits_after_empty_cache"] = finding.fits_after_empty_cache;
    json["shortfall_bytes"] = finding.shortfall;
    nlohmann::ordered_json& release = json["fits_after_releasing"] = nlohmann::ordered_json::array();
    for (const SharePlace& share : finding.release) {
      nlohmann::ordered_json entry = PlaceJson(share.place);
      entry["bytes"] = share.bytes;
      release.push_back(std::move(entry));
    }
    json["advice"] = finding.advice;
    nlohmann::ordered_json& held = json["held"] = nlohmann::ordered_json::array();
    for (const SharePlace& share : finding.largest) {
      nlohmann::ordered_json entry = PlaceJson(share.place);
      entry["bytes"] = share.bytes;
      held.push_back(std::move(entry));
    }
    json["stack"] = StackJson(trace, finding.origin);
    list.push_back(std::move(json));
  }
  out["oom_count"] = trace.analyses.findings().out_of_memory_count;
}

}  // namespace

const Section kOutOfMemorySection = {"oom", OutOfMemoryText, OutOfMemoryJson};

}  // namespace gpumemtrace::analyzer
