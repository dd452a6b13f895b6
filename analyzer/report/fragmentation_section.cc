// How much of what caching allocators hold cannot be used: holes, what pins them, and segments that were
// taken although enough was free.
#include <algorithm>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr uint64_t kWorthTelling = 64u << 20;

void FragmentationText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  for (const FragmentationFinding& finding : findings.fragmentation) {
    const uint64_t above = finding.reserved_peak - std::min(finding.reserved_peak, finding.allocated_peak);
    // A healthy pool needs no lines, and neither does a small one.
    const auto large = [&](uint64_t bytes, uint64_t part) {
      return bytes >= kWorthTelling && bytes * part >= finding.reserved_peak;
    };
    const bool worth =
        finding.headline || large(finding.needless_bytes, 10) || large(finding.worst.gap_bytes, 5);
    // A clean run says it in a hint, a headline why free memory did not serve.
    const VerdictKind verdict = findings.verdict.kind;
    if (detail == 0 && (!worth || !findings.verdict.hint.empty())) continue;
    out.Heading("Fragmentation on " + DeviceText(finding.device));
    out.Field("reserved", FormatBytes(finding.reserved_peak) + " at most, " + FormatBytes(above) +
                              " above the peak of tensors");
    if (finding.needless_segments != 0) {
      std::string text = FormatBytes(finding.needless_bytes) + " were taken from the driver in " +
                         Plural(finding.needless_segments, "request") +
                         " while the allocator had at least as much free";
      if (finding.needless_place_bytes != 0) {
        text += "; most of it at " + Printable(finding.needless_place.Short());
      }
      out.Field("needless", text);
    }
    const std::string why = WhyNotServed(findings, finding.device);
    if (!why.empty() && (verdict != VerdictKind::kFragmentation || detail > 0)) out.Field("why", why);
    for (const auto& [name, moment] :
         {std::pair<const char*, const FragmentationMoment*>{"worst", &finding.worst},
          {"at the end", &finding.last}}) {
      if (moment->reserved == 0) continue;
      // Of a pool that is no reason to worry, how it stands at the end is enough.
      if (detail == 0 && !finding.headline && moment == &finding.worst) continue;
      out.Field(name, FormatBytes(moment->gap_bytes) + " in holes beside live tensors, " +
                          FormatBytes(moment->empty_segments_bytes) + " in empty segments, of " +
                          FormatBytes(moment->reserved) +
                          "; largest request that fits: " + FormatBytes(moment->largest_fit));
    }
    if (finding.last.rounding != 0) {
      out.Field("rounding", FormatBytes(finding.last.rounding) + " inside live blocks at the end");
    }
    std::vector<std::vector<std::string>> rows;
    for (const Pin& pin : finding.worst.pins) {
      if (rows.size() >= (detail > 0 ? 20u : finding.headline ? 3u : 0u) || pin.pinned_bytes == 0) break;
      rows.push_back({FormatBytes(pin.pinned_bytes), "pinned by", FormatBytes(pin.block_bytes),
                      "in " + Plural(pin.blocks, "tensor"), Printable(pin.place.Short())});
    }
    if (!rows.empty()) out.Table(rows, {true, false, true, false, false});
  }
}

nlohmann::ordered_json MomentToJson(const AnalyzedTrace& trace, const FragmentationMoment& moment) {
  nlohmann::ordered_json json;
  json["moment"] = MomentJson(moment.moment, trace);
  json["reserved_bytes"] = moment.reserved;
  json["allocated_bytes"] = moment.allocated;
  json["empty_segments_bytes"] = moment.empty_segments_bytes;
  json["gap_bytes"] = moment.gap_bytes;
  json["largest_fit_bytes"] = moment.largest_fit;
  nlohmann::ordered_json& segments = json["segments"] = nlohmann::ordered_json::array();
  for (const SegmentPicture& segment : moment.segments) {
    segments.push_back({{"address", segment.address},
                        {"bytes", segment.size},
                        {"live_bytes", segment.live_bytes},
                        {"live_blocks", segment.live_blocks},
                        {"gaps", segment.gaps},
                        {"largest_gap_bytes", segment.largest_gap},
                        {"stream", segment.stream},
                        {"made_by", PlaceJson(segment.made_by)}});
  }
  nlohmann::ordered_json& pins = json["pins"] = nlohmann::ordered_json::array();
  for (const Pin& pin : moment.pins) {
    nlohmann::ordered_json entry = PlaceJson(pin.place);
    entry["blocks"] = pin.blocks;
    entry["block_bytes"] = pin.block_bytes;
    entry["pinned_bytes"] = pin.pinned_bytes;
    pins.push_back(std::move(entry));
  }
  return json;
}

nlohmann::ordered_json RefusalToJson(const AnalyzedTrace& trace, const Refusal& why) {
  if (why.asked == 0) return nullptr;
  return {{"moment", MomentJson(why.moment, trace)},
          {"at", PlaceJson(why.place)},
          {"asked_bytes", why.asked},
          {"free_bytes", why.free},
          {"free_pieces", why.pieces},
          {"of_other_streams_bytes", why.other_streams},
          {"too_small_bytes", why.too_small},
          {"largest_too_small_bytes", why.largest},
          {"of_other_pools_bytes", why.other_pool}};
}

void FragmentationJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  nlohmann::ordered_json& list = out["fragmentation"] = nlohmann::ordered_json::array();
  for (const FragmentationFinding& finding : trace.analyses.findings().fragmentation) {
    list.push_back({{"device", finding.device},
                    {"reserved_peak_bytes", finding.reserved_peak},
                    {"allocated_peak_bytes", finding.allocated_peak},
                    {"needless_segments", finding.needless_segments},
                    {"needless_bytes", finding.needless_bytes},
                    {"needless_at", PlaceJson(finding.needless_place)},
                    {"streams", finding.streams},
                    {"not_served", RefusalToJson(trace, finding.why)},
                    {"headline", finding.headline},
                    {"worst", MomentToJson(trace, finding.worst)},
                    {"at_end", MomentToJson(trace, finding.last)}});
    // A census tells it of what is live at the end alone.
    list.back()["at_end"]["rounding_bytes"] = finding.last.rounding;
  }
}

}  // namespace

const Section kFragmentationSection = {"fragmentation", FragmentationText, FragmentationJson};

}  // namespace gpumemtrace::analyzer
