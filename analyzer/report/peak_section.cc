// The highest moment of each device: what it is made of, exactly, and what would lower it.
#include <algorithm>
#include <set>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

bool HasBlockPeak(const Findings& findings, int32_t device) {
  return std::any_of(findings.peaks.begin(), findings.peaks.end(), [device](const PeakFinding& peak) {
    return peak.device == device && peak.level == Level::kBlock;
  });
}

// Handles or a library's own memory, which no tensor stands for, are much of what the driver gave.
bool OthersAreMuch(const Findings& findings, const PeakFinding& peak) {
  const auto account = std::ranges::find(findings.accounts, peak.device, &DeviceAccount::device);
  if (account == findings.accounts.end() || !account->at_fullest) return false;
  uint64_t others = 0;
  for (const NamedShare& share : account->at_fullest->libraries) others += share.bytes;
  return others * 4 >= peak.bytes;
}

std::string_view LevelText(Level level) {
  return level == Level::kBlock ? "tensors" : "driver allocations";
}

// What would lower the peak of one device; `left` = how many more may be shown.
void AdviceText(const Findings& findings, int32_t device, int detail, size_t& left, TextWriter& out) {
  for (const PeakAdvice& advice : findings.advice) {
    const bool internal = advice.kind == PeakAdvice::Kind::kDriverInternal;
    if (advice.device != device || left == 0) continue;
    // What the driver takes for itself concerns the peak of a program only where it is much of it.
    if (internal && detail == 0 && (!advice.headline || findings.verdict.kind != VerdictKind::kPeak))
      continue;
    // The headline says better what to do about this line.
    if (advice.kind == PeakAdvice::Kind::kDominantTemporary && detail == 0 &&
        findings.verdict.kind == VerdictKind::kFragmentation && !findings.verdict.culprits.empty() &&
        findings.verdict.culprits.front().place.Short() == advice.place.Short()) {
      continue;
    }
    // Often another moment is the highest then, and less is saved than this place holds.
    const auto peak = std::ranges::find(findings.peaks, advice.device, &PeakFinding::device);
    const bool another = !internal && peak != findings.peaks.end() &&
                         advice.peak_without + advice.bytes > peak->bytes + advice.bytes / 100;
    const uint64_t saved =
        peak == findings.peaks.end() ? 0 : peak->bytes - std::min(peak->bytes, advice.peak_without);
    // Memory that lies on the wrong device is in the way of others, whatever the peak; else no advice that
    // gains nothing.
    const bool misplaced = advice.kind == PeakAdvice::Kind::kWrongDevice;
    if (another && !misplaced && saved * 100 < peak->bytes) continue;
    --left;
    std::string gain = (internal ? " (used without it: about " : " (peak without it: about ") +
                       FormatBytes(advice.peak_without) +
                       (another ? ", of another moment: " + FormatBytes(saved) + " less)" : ")");
    if (misplaced && saved * 100 < advice.bytes) gain.clear();
    out.Field("advice", FormatBytes(advice.bytes) + " at " + Printable(advice.place.Short()) + ": " +
                            advice.text + "; lowered by " + advice.remedy + gain);
  }
}

void PeakText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  size_t advice_left = detail > 0 ? 20 : 2;
  std::set<int32_t> advised;
  for (const PeakFinding& peak : findings.peaks) {
    // The driver's view of a device whose allocator reports tensors stands in the account.
    if (peak.level == Level::kSegment && HasBlockPeak(findings, peak.device) && detail == 0 &&
        !OthersAreMuch(findings, peak)) {
      continue;
    }
    if (peak.device < 0 && peak.bytes < kSmallOnHost && findings.peaks.size() > 1 && detail == 0) continue;
    out.Heading("Peak of " + std::string(LevelText(peak.level)) + " on " + DeviceText(peak.device) + ": " +
                FormatExactBytes(peak.bytes) + " " + MomentText(peak.moment, trace));
    std::vector<std::vector<std::string>> rows;
    const size_t most = detail > 0 ? 40 : 8;
    uint64_t rest = 0;
    uint64_t rest_count = 0;
    for (const SharePlace& line : peak.by_line) {
      // What is less than a hundredth of it does not explain a peak.
      if (rows.size() >= most || (detail == 0 && rows.size() >= 3 && line.bytes * 100 < peak.bytes)) {
        rest += line.bytes;
        rest_count += line.count;
        continue;
      }
      rows.push_back({FormatBytes(line.bytes), FormatPercent(line.bytes, peak.bytes), FormatCount(line.count),
                      Shorten(Printable(line.place.Short()), 70)});
    }
    if (rest_count != 0) {
      rows.push_back({FormatBytes(rest), FormatPercent(rest, peak.bytes), FormatCount(rest_count),
                      Plural(peak.by_line.size() - rows.size(), "other line")});
    }
    out.Table(rows, {true, true, true, false});
    if (peak.born_last != kNoOrigin) {
      out.Field("reached by",
                FormatBytes(peak.born_last_bytes) + " at " + Printable(peak.born_last_place.Short()));
    }
    if (detail > 0) {
      for (const NamedShare& phase : peak.by_phase) {
        out.Field("phase", FormatBytes(phase.bytes) + "  " + phase.name);
      }
      for (const NamedShare& size : peak.by_size_class) {
        out.Field("sizes", FormatBytes(size.bytes) + " in " + FormatCount(size.count) + "  " + size.name);
      }
      for (size_t i = 0; i < peak.oldest.size() && i < 5; ++i) {
        const PeakBlock& block = peak.oldest[i];
        out.Field("oldest", FormatBytes(block.bytes) + ", alive for " +
                                FormatDuration(peak.moment.time_us -
                                               std::min(peak.moment.time_us, block.birth_time_us)) +
                                " at the peak, born at " +
                                Printable(findings.groups[findings.origins[block.origin].group].Short()));
      }
    }
    // Other moments are those of tensors, where there are any.
    const bool own_moments = peak.level == Level::kBlock || !HasBlockPeak(findings, peak.device);
    const size_t most_next = !own_moments ? 0 : detail > 0 ? 8 : 1;
    for (size_t i = 0; i < peak.next.size() && i < most_next; ++i) {
      const OtherPeak& next = peak.next[i];
      const std::string when = next.moment.step >= 0
                                   ? "in step " + FormatCount(static_cast<uint64_t>(next.moment.step))
                                   : MomentText(next.moment, trace);
      out.Field("next peak",
                FormatBytes(next.bytes) + " " + when + ", reached at " + Printable(next.born_last.Short()));
    }
    // Once for each device, under the first of its peaks that is shown.
    if (advised.insert(peak.device).second) AdviceText(findings, peak.device, detail, advice_left, out);
  }
  // A device on which only the driver took something.
  for (const PeakAdvice& advice : findings.advice) {
    if (!advised.insert(advice.device).second) continue;
    out.Heading("Peak of " + DeviceText(advice.device));
    AdviceText(findings, advice.device, detail, advice_left, out);
  }
}

nlohmann::ordered_json NamedJson(const std::vector<NamedShare>& shares) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const NamedShare& share : shares) {
    json.push_back({{"name", Printable(share.name)}, {"bytes", share.bytes}, {"count", share.count}});
  }
  return json;
}

nlohmann::ordered_json LinesJson(const std::vector<SharePlace>& lines) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const SharePlace& line : lines) {
    nlohmann::ordered_json entry = PlaceJson(line.place);
    entry["bytes"] = line.bytes;
    entry["count"] = line.count;
    entry["transient_bytes"] = line.transient_bytes;
    json.push_back(std::move(entry));
  }
  return json;
}

nlohmann::ordered_json BlocksJson(const AnalyzedTrace& trace, const std::vector<PeakBlock>& blocks) {
  const Findings& findings = trace.analyses.findings();
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const PeakBlock& block : blocks) {
    nlohmann::ordered_json entry = PlaceJson(findings.groups[findings.origins[block.origin].group]);
    entry["bytes"] = block.bytes;
    entry["address"] = block.address;
    entry["born_seconds"] = static_cast<double>(SinceStart(trace, block.birth_time_us)) / 1e6;
    entry["alive_at_end"] = block.death_index == kNoIndex;
    json.push_back(std::move(entry));
  }
  return json;
}

nlohmann::ordered_json PeakJson(const AnalyzedTrace& trace, const PeakFinding& peak) {
  nlohmann::ordered_json json;
  json["device"] = peak.device;
  json["level"] = peak.level == Level::kBlock ? "blocks" : "segments";
  json["bytes"] = peak.bytes;
  json["moment"] = MomentJson(peak.moment, trace);
  json["reserved_bytes"] = peak.reserved;
  json["by_line"] = LinesJson(peak.by_line);
  json["by_library"] = NamedJson(peak.by_library);
  json["by_size_class"] = NamedJson(peak.by_size_class);
  json["by_phase"] = NamedJson(peak.by_phase);
  nlohmann::ordered_json& stacks = json["by_stack"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < peak.by_origin.size() && i < 50; ++i) {
    const ShareOrigin& share = peak.by_origin[i];
    stacks.push_back(
        {{"bytes", share.bytes}, {"count", share.count}, {"stack", StackJson(trace, share.origin)}});
  }
  if (peak.born_last != kNoOrigin) {
    json["reached_by"] = PlaceJson(peak.born_last_place);
    json["reached_by"]["bytes"] = peak.born_last_bytes;
  }
  json["setup_bytes"] = peak.setup_bytes;
  json["transient_bytes"] = peak.transient_bytes;
  json["oldest"] = BlocksJson(trace, peak.oldest);
  json["largest"] = BlocksJson(trace, peak.largest);
  nlohmann::ordered_json& next = json["next"] = nlohmann::ordered_json::array();
  for (const OtherPeak& other : peak.next) {
    next.push_back({{"bytes", other.bytes},
                    {"moment", MomentJson(other.moment, trace)},
                    {"reached_by", PlaceJson(other.born_last)},
                    {"by_line", LinesJson(other.by_line)}});
  }
  return json;
}

void PeakJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const Findings& findings = trace.analyses.findings();
  nlohmann::ordered_json& peaks = out["peaks"] = nlohmann::ordered_json::array();
  const PeakFinding* main = nullptr;
  for (const PeakFinding& peak : findings.peaks) {
    peaks.push_back(PeakJson(trace, peak));
    if (peak.device < 0 && main != nullptr) continue;
    const bool better = main == nullptr || (main->device < 0 && peak.device >= 0) ||
                        (peak.level == Level::kBlock && main->level != Level::kBlock) ||
                        (peak.level == main->level && peak.bytes > main->bytes);
    if (better) main = &peak;
  }
  if (main != nullptr) out["peak"] = PeakJson(trace, *main);
  nlohmann::ordered_json& timelines = out["timelines"] = nlohmann::ordered_json::array();
  for (const DeviceTimeline& timeline : findings.timelines) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    const size_t stride = std::max<size_t>(1, timeline.points.size() / 1000);
    for (size_t i = 0; i < timeline.points.size(); i += stride) {
      const TimelinePoint& point = timeline.points[i];
      points.push_back({static_cast<double>(SinceStart(trace, point.time_us)) / 1e6, point.allocated_min,
                        point.allocated_max, point.reserved, point.used});
    }
    timelines.push_back({{"device", timeline.device},
                         {"columns", {"seconds", "allocated_min", "allocated_max", "reserved", "used"}},
                         {"points", std::move(points)}});
  }
}

}  // namespace

const Section kPeakSection = {"peak", PeakText, PeakJson};

}  // namespace gpumemtrace::analyzer
