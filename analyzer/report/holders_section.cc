// Who keeps device memory alive: the censuses that were taken, the peak by role, and the largest holders.
#include <algorithm>
#include <cmath>

#include "analyzer/report/findings_text.h"
#include "analyzer/report/holders_text.h"
#include "analyzer/report/sections.h"
#include "analyzer/symbols/names.h"

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

std::string Age(const HeldBy& held) {
  if (held.oldest_steps < 0) return "";
  const auto oldest = static_cast<uint64_t>(std::lround(held.oldest_steps));
  const auto youngest = static_cast<uint64_t>(std::lround(std::max(held.youngest_steps, 0.0)));
  if (oldest == youngest) return Plural(oldest, "step") + " old";
  return FormatCount(youngest) + " to " + Plural(oldest, "step") + " old";
}

std::string Stores(const HeldBy& held) {
  if (held.file.empty() || held.line == 0) return "";
  std::string result = std::string(BaseName(held.file)) + ":" + std::to_string(held.line);
  for (size_t i = 0; i < held.lines.size() && i < 3; ++i) result += ", " + std::to_string(held.lines[i]);
  return result;
}

std::string Facts(const HeldBy& held) {
  std::string facts =
      held.tensors == 0 ? Plural(held.allocations, "allocation") : Plural(held.tensors, "tensor");
  facts += ", " + FormatBytes(held.bytes);
  if (!held.shape.empty()) {
    facts += ", " + held.shape;
    if (held.shapes > 1) facts += " and " + Plural(held.shapes - 1, "other shape");
  }
  if (!held.grad_fn.empty()) facts += ", grad_fn " + held.grad_fn;
  if (const std::string age = Age(held); !age.empty()) facts += ", " + age;
  if (held.views) {
    facts += "; views of " + FormatBytes(held.tensor_bytes) + " keep " + FormatBytes(held.bytes) + " alive";
  }
  return facts;
}

std::string Row(const HeldBy& held) {
  std::string row = "kept by " + held.Describe();
  if (held.out_of_reach()) {
    constexpr std::string_view kMeaning = " (neither del nor gc.collect() frees it)";
    row.insert(std::string_view("kept by ").size() + HeldBy::kNoObject.size(), kMeaning);
  }
  if (const std::string stores = Stores(held); !stores.empty()) {
    row += (held.kind == "frame" ? ", running at " : ", stored at ") + stores;
  }
  row += ": " + Facts(held);
  return Printable(row);
}

nlohmann::ordered_json HeldJson(const HeldBy& held) {
  nlohmann::ordered_json json;
  json["text"] = Printable(held.Describe());
  json["path"] = Printable(held.text);
  if (!held.example.empty()) json["example"] = Printable(held.example);
  json["kind"] = held.kind;
  json["file"] = Printable(held.file);
  json["line"] = held.line;
  if (!held.lines.empty()) json["more_lines"] = held.lines;
  if (!held.container.empty()) json["container"] = Printable(held.container);
  if (!held.container_type.empty()) json["container_type"] = Printable(held.container_type);
  if (held.items >= 0) json["items"] = held.items;
  if (!held.owner.empty()) json["owner"] = Printable(held.owner);
  if (!held.detail.empty()) json["detail"] = Printable(held.detail);
  if (!held.reason.empty()) json["reason"] = held.reason;
  json["tensors"] = held.tensors;
  json["allocations"] = held.allocations;
  json["bytes"] = held.bytes;
  json["tensor_bytes"] = held.tensor_bytes;
  if (!held.shape.empty()) json["shape"] = Printable(held.shape);
  json["shapes"] = held.shapes;
  if (!held.grad_fn.empty()) json["grad_fn"] = Printable(held.grad_fn);
  json["views"] = held.views;
  if (held.oldest_steps >= 0) json["oldest_steps"] = held.oldest_steps;
  if (held.youngest_steps >= 0) json["youngest_steps"] = held.youngest_steps;
  return json;
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
    line += "; " + FormatPercent(peak.from_census, peak.bytes) + " told by a census";
    if (peak.from_birth_place != 0)
      line += ", " + FormatPercent(peak.from_birth_place, peak.bytes) +
              " inferred from others born at the same place";
    if (inferred != 0)
      line += ", " + FormatPercent(inferred, peak.bytes) + " from when it was born and who freed it";
    out.Line(line);
  }
}

void HoldersText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Holders& holders = trace.holders;
  if (holders.censuses().empty() && holders.incomplete() == 0 && holders.faults().empty()) return;
  out.Heading("Who holds it");
  const std::vector<CensusSummary>& censuses = holders.censuses();
  for (size_t i = 0; i < censuses.size(); ++i) {
    if (detail == 0 && i + 1 < censuses.size()) continue;  // the last one says most
    const CensusSummary& census = censuses[i];
    std::string line =
        "census " + std::to_string(census.number) + " (" + std::string(TriggerName(census.trigger)) + ", " +
        FormatDuration(SinceStart(trace, census.time_us)) +
        " after the start): " + Plural(census.tensors, "device tensor") + ", " +
        FormatBytes(census.held_bytes) + " of " + FormatBytes(census.allocation_bytes) + " live";
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
  const CensusSummary* last = nullptr;
  for (const CensusSummary& census : censuses) {
    if (census.held_bytes != 0) last = &census;
  }
  if (last != nullptr && !holders.largest().empty() && !healthy) {
    out.Line("  Largest holders at census " + std::to_string(last->number) + ":");
    std::vector<std::vector<std::string>> rows;
    for (const HeldBy& held : holders.largest()) {
      if (rows.size() >= (detail > 0 ? 40u : 5u)) break;
      rows.push_back({FormatBytes(held.bytes), Plural(held.tensors, "tensor"),
                      Shorten(Printable(held.Describe()), detail > 0 ? 200 : 70)});
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

HolderParts FirstHolder(const AnalyzedTrace& trace, size_t growth) {
  const std::vector<HeldBy>& list = trace.holders.HoldersOf(growth);
  if (list.empty() || list.front().out_of_reach()) return {};
  const HeldBy& held = list.front();
  return {Printable(held.Describe()), Printable(Stores(held)), Printable(Facts(held))};
}

std::string WhatFrees(const AnalyzedTrace& trace, size_t number) {
  const GrowthFinding& growth = trace.analyses.findings().growth[number];
  const std::vector<HeldBy>& holders = trace.holders.HoldersOf(number);
  if (growth.kind == GrowthKind::kStrandedCache && growth.other_streams && !growth.larger_requests) {
    return "one stream, or a few, made once and used again; torch.cuda.empty_cache() would only give back "
           "what "
           "was stranded so far";
  }
  if (growth.remedy == Remedy::kExit && !holders.empty() && !holders.front().next.empty())
    return holders.front().next;
  if (growth.remedy != Remedy::kReference || holders.empty()) return std::string(RemedyText(growth.remedy));
  const HeldBy& held = holders.front();
  const auto names = [&held](std::string_view part) {
    return held.text.find(part) != std::string::npos || held.detail.find(part) != std::string::npos;
  };
  if (held.kind == "autograd")
    return "keeping .detach() or .item() of it instead, which lets its autograd graph go";
  if (held.views) return "keeping a copy of the part (.clone()) instead of a view, so that the whole can go";
  if (names("__traceback__")) {
    return "keeping the text of the exception, not the exception: its traceback keeps the frames and what is "
           "in them";
  }
  if (held.container_type.find("lru_cache") != std::string::npos || names("cached value")) {
    return "a bound (maxsize) and keys that come again, such as shapes: a tensor as an argument is a new key "
           "each time";
  }
  // What a graph saves goes with the outputs that lead to the graph.
  if (held.kind == "native" && held.items > 1 && !held.container.empty()) {
    return "storing .detach() in " + Printable(held.container) + ": what it holds keeps its autograd graph";
  }
  if (held.kind == "name" && held.items > 1 && !held.container.empty()) {
    // A tensor of no dimension: a loss, a score.
    const bool scalar = held.shape.ends_with("()");
    const bool host = growth.space == Space::kPinnedHost || growth.space == Space::kRegisteredHost ||
                      growth.space == Space::kHostPool;
    std::string act = "a bound, or storing copies on the CPU (.cpu())";
    if (scalar) {
      act = "storing numbers (.item())";
    } else if (host) {
      act = "a bound, or a few buffers that are used again";
    } else if (!held.grad_fn.empty()) {
      act = "a bound, or storing .detach().cpu() (without .detach() the autograd graph stays)";
    }
    return act + ", in " + Printable(held.container);
  }
  return std::string(RemedyText(growth.remedy));
}

std::vector<std::string> HolderRows(const AnalyzedTrace& trace, size_t growth, size_t most) {
  const std::vector<HeldBy>& list = trace.holders.HoldersOf(growth);
  std::vector<std::string> rows;
  for (const HeldBy& held : list) {
    if (rows.size() == most) {
      rows.push_back("and by " + Plural(list.size() - most, "other holder"));
      break;
    }
    rows.push_back(Row(held));
  }
  return rows;
}

void AddHolders(const AnalyzedTrace& trace, size_t growth, nlohmann::ordered_json& json) {
  const std::vector<HeldBy>& list = trace.holders.HoldersOf(growth);
  if (list.empty()) return;
  json["held_by"] = HeldJson(list.front());
  nlohmann::ordered_json& all = json["holders"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < list.size() && i < 20; ++i) all.push_back(HeldJson(list[i]));
}

const Section kHoldersSection = {"holders", HoldersText, HoldersJson};

}  // namespace gpumemtrace::analyzer
