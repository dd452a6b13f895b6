// Who keeps device memory alive: the censuses that were taken, the peak by role, and the largest holders.
#include <algorithm>
#include <cmath>

#include "analyzer/report/findings_text.h"
#include "analyzer/report/frameworks.h"
#include "analyzer/report/holders_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

std::string_view TriggerName(Census::Trigger trigger) {
  switch (trigger) {
    case Census::EXIT:
      return "exit";
    case Census::OUT_OF_MEMORY:
      return "out of memory";
    case Census::GROWTH:
      return "growth";
    case Census::SIGNAL:
      return "signal";
    case Census::REQUEST:
      return "request";
    case Census::COLLECTION:
      return "before a garbage collection";
    case Census::RETURN:
      return "the outermost function returned";
    default:
      return "unknown";
  }
}

void RolesText(const AnalyzedTrace& trace, TextWriter& out) {
  for (const PeakRoles& peak : trace.holders.peak_roles()) {
    if (peak.bytes == 0 || peak.from_census + peak.from_birth_place == 0) continue;
    const uint64_t seen = peak.from_census + peak.from_birth_place;
    std::vector<std::pair<uint64_t, std::string_view>> roles;
    for (int i = 0; i < kMemoryRoleCount; ++i) {
      const uint64_t bytes = peak.by_role[static_cast<size_t>(i)];
      if (bytes != 0) roles.emplace_back(bytes, MemoryRoleName(static_cast<MemoryRole>(i)));
    }
    std::stable_sort(roles.begin(), roles.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string line = "  Peak of " + DeviceText(peak.device) + " by role:";
    for (const auto& [bytes, name] : roles)
      line += (&name == &roles.front().second ? " " : ", ") + FormatBytes(bytes) + " " + std::string(name);
    // What a census met without a role, and nothing else tells, is unknown: told by nobody.
    const uint64_t rest = peak.bytes - std::min(peak.bytes, seen);
    const uint64_t inferred = rest - std::min(rest, peak.by_role[static_cast<size_t>(MemoryRole::kUnknown)]);
    line += "; a census tells " + FormatPercent(peak.from_census, peak.bytes) + " of it";
    if (peak.from_birth_place != 0)
      line += ", " + FormatPercent(peak.from_birth_place, peak.bytes) +
              " are inferred from others born at the same place";
    if (inferred != 0)
      line += ", " + FormatPercent(inferred, peak.bytes) + " from when it was born and who freed it";
    if (rest > inferred) line += ", " + FormatPercent(rest - inferred, peak.bytes) + " are not known";
    out.Line(line);
  }
}

// "4 MiB of 4 MiB live, and 160 MiB of 160 MiB on the host": what has an object, of all.
std::string LiveText(const CensusSummary& census) {
  uint64_t host = 0;
  uint64_t host_held = 0;
  for (const HeldGroup& group : census.groups) {
    if (group.device >= 0) continue;
    host += group.bytes;
    if (group.tensors != 0) host_held += group.bytes;
  }
  std::string text = FormatBytes(census.held_bytes - std::min(host_held, census.held_bytes)) + " of " +
                     FormatBytes(census.allocation_bytes - std::min(host, census.allocation_bytes)) + " live";
  if (host_held != 0) text += ", and " + FormatBytes(host_held) + " of " + FormatBytes(host) + " on the host";
  return text;
}

// The census that the headline's holder is from; null = no leak, or none met it.
const CensusSummary* OfTheLeak(const AnalyzedTrace& trace) {
  const std::vector<GrowthFinding>& growth = trace.analyses.findings().growth;
  for (size_t i = 0; i < growth.size(); ++i) {
    if (IsLeak(growth[i].kind) && !growth[i].suppressed) return trace.holders.CensusOf(i);
  }
  return nullptr;
}

void HoldersText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Holders& holders = trace.holders;
  if (holders.censuses().empty() && holders.incomplete() == 0 && holders.faults().empty()) return;
  out.Heading("Who holds it");
  const std::vector<CensusSummary>& censuses = holders.censuses();
  const CensusSummary* leak = OfTheLeak(trace);
  for (size_t i = 0; i < censuses.size(); ++i) {
    const CensusSummary& census = censuses[i];
    // The last one says most, except of what is gone by then.
    if (detail == 0 && i + 1 < censuses.size() && &census != leak) continue;
    std::string line =
        "census " + std::to_string(census.number) + " (" + std::string(TriggerName(census.trigger)) + ", " +
        FormatDuration(SinceStart(trace, census.time_us)) +
        " after the start): " + Plural(census.tensors, "device " + std::string(TensorNoun(trace.model))) +
        ", " + LiveText(census);
    if (detail > 0)
      line += "; took " + FormatDuration(census.duration_us) + " for " + Plural(census.objects, "object");
    if (census.memory_bytes != 0 && detail > 0)
      line += ", " + FormatBytes(census.memory_bytes) + " of memory meanwhile";
    if (!census.partial.empty()) line += "; partial: " + census.partial;
    if (!census.collector_enabled) line += "; the cyclic garbage collector is switched off";
    out.Line("  " + Printable(line));
  }
  if (holders.incomplete() != 0) {
    out.Line("  " + Plural(holders.incomplete(), "census") +
             " incomplete: the process ended before it was written");
  }
  for (const std::string& fault : holders.faults()) out.Line("  " + out.Yellow(fault));
  RolesText(trace, out);
  // Of a healthy run the largest holders are its model.
  const bool healthy = trace.analyses.findings().verdict.kind == VerdictKind::kClean && detail == 0;
  const CensusSummary* of = holders.OfLargest();
  if (of != nullptr && !holders.largest().empty() && !healthy) {
    out.Line("  Largest holders at census " + std::to_string(of->number) + ":");
    std::vector<std::vector<std::string>> rows;
    for (const HeldBy& held : JoinHolders(holders.largest())) {
      if (rows.size() >= (detail > 0 ? 40u : 5u)) break;
      rows.push_back({FormatBytes(held.bytes), CountText(trace, held),
                      Shorten(Printable(held.Describe()), detail > 0 ? 400 : 100)});
    }
    out.Table(rows, {true, true, false}, 4);
  }
}

void HoldersJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const Holders& holders = trace.holders;
  nlohmann::ordered_json& list = out["censuses"] = nlohmann::ordered_json::array();
  for (const CensusSummary& census : holders.censuses()) {
    list.push_back({{"number", census.number},
                    {"trigger", std::string(TriggerName(census.trigger))},
                    {"seconds", static_cast<double>(SinceStart(trace, census.time_us)) / 1e6},
                    {"duration_seconds", static_cast<double>(census.duration_us) / 1e6},
                    {"memory_bytes", census.memory_bytes},
                    {"partial", Printable(census.partial)},
                    {"objects", census.objects},
                    {"collector_enabled", census.collector_enabled},
                    {"tensors", census.tensors},
                    {"matched", census.matched},
                    {"allocations", census.allocations},
                    {"allocation_bytes", census.allocation_bytes},
                    {"held_allocations", census.held_allocations},
                    {"held_bytes", census.held_bytes}});
  }
  out["censuses_incomplete"] = holders.incomplete();
  nlohmann::ordered_json& largest = out["holders"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < holders.largest().size() && i < 100; ++i)
    largest.push_back(HeldJson(holders.largest()[i]));
  nlohmann::ordered_json& peaks = out["peak_roles"] = nlohmann::ordered_json::array();
  for (const PeakRoles& peak : holders.peak_roles()) {
    nlohmann::ordered_json roles;
    for (int i = 0; i < kMemoryRoleCount; ++i) {
      roles[std::string(MemoryRoleName(static_cast<MemoryRole>(i)))] = peak.by_role[static_cast<size_t>(i)];
    }
    peaks.push_back({{"device", peak.device},
                     {"bytes", peak.bytes},
                     {"from_census", peak.from_census},
                     {"from_birth_place", peak.from_birth_place},
                     {"roles", roles}});
  }
}

}  // namespace

const Section kHoldersSection = {"holders", HoldersText, HoldersJson};

}  // namespace gpumemtrace::analyzer
