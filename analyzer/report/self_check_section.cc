// Whether our sums agree with what the caching allocator says about itself, event by event.
#include <string>

#include "absl/strings/str_cat.h"
#include "analyzer/analyzed_trace.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

struct Sums {
  uint64_t checked = 0;
  uint64_t disagree = 0;
};

Sums AllDevices(const Ledger& ledger) {
  Sums sums;
  for (const auto& [device, check] : ledger.self_checks()) {
    sums.checked += check.allocated_checked + check.reserved_checked;
    sums.disagree += check.allocated_disagree + check.reserved_disagree;
  }
  return sums;
}

// An address cannot be given out twice: what the trace holds at that place is then not the whole story.
void ReusedText(const Anomalies& anomalies, TextWriter& out) {
  if (anomalies.address_reused_while_live <= anomalies.late_frees) return;
  const uint64_t missing = anomalies.address_reused_while_live - anomalies.late_frees;
  out.Field("self-check",
            out.Red(absl::StrCat(missing == 1 ? "1 address was" : FormatCount(missing) + " addresses were",
                                 " given out again while live by this trace: a release was not seen, and"
                                 " counts as made then")));
}

void SelfCheckText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Ledger& ledger = trace.ledger;
  ReusedText(ledger.anomalies(), out);
  if (ledger.self_checks().empty()) {
    if (detail > 0) out.Field("self-check", "no allocator reported totals to check against");
    return;
  }
  uint64_t allocated = 0;
  uint64_t reserved = 0;
  for (const auto& [device, check] : ledger.self_checks()) {
    allocated += check.allocated_checked;
    reserved += check.reserved_checked;
  }
  const Sums sums = AllDevices(ledger);
  if (sums.disagree == 0) {
    std::string text = absl::StrCat(FormatCount(allocated), " of ", FormatCount(allocated),
                                    " tensor events agree with the allocator's own total");
    if (reserved == allocated) {
      absl::StrAppend(&text, "s");
    } else if (reserved != 0) {
      absl::StrAppend(&text, ", ", FormatCount(reserved), " of ", FormatCount(reserved),
                      " with its reserved total");
    }
    out.Field("self-check", text);
  }
  for (const auto& [device, check] : ledger.self_checks()) {
    if (check.allocated_disagree + check.reserved_disagree == 0) continue;
    out.Field("self-check",
              out.Red(absl::StrCat("device ", device, ": ", FormatCount(check.allocated_disagree), " of ",
                                   FormatCount(check.allocated_checked),
                                   " events disagree with the allocator's allocated total, ",
                                   FormatCount(check.reserved_disagree), " of ",
                                   FormatCount(check.reserved_checked), " with its reserved total")));
    out.Field("", absl::StrCat("first at event ", FormatCount(check.first_index), ": ",
                               check.first_is_reserved ? "reserved " : "allocated ",
                               FormatExactBytes(check.first_reported), " said the allocator, ",
                               FormatExactBytes(check.first_computed), " by the events"));
  }
}

void SelfCheckJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const Ledger& ledger = trace.ledger;
  const Sums sums = AllDevices(ledger);
  nlohmann::ordered_json& check = out["self_check"];
  uint64_t events = 0;
  for (const auto& [device, device_check] : ledger.self_checks()) events += device_check.allocated_checked;
  check["events_checked"] = events;
  check["disagreements"] = sums.disagree;
  nlohmann::ordered_json& devices = check["devices"] = nlohmann::ordered_json::array();
  for (const auto& [device, c] : ledger.self_checks()) {
    nlohmann::ordered_json entry = {{"ordinal", device},
                                    {"allocated",
                                     {{"checked", c.allocated_checked},
                                      {"disagree", c.allocated_disagree},
                                      {"computed", c.computed_allocated},
                                      {"reported", c.reported_allocated},
                                      {"reported_peak", c.reported_allocated_peak}}},
                                    {"reserved",
                                     {{"checked", c.reserved_checked},
                                      {"disagree", c.reserved_disagree},
                                      {"computed", c.computed_reserved},
                                      {"reported", c.reported_reserved},
                                      {"reported_peak", c.reported_reserved_peak}}}};
    if (c.allocated_disagree + c.reserved_disagree != 0) {
      entry["first"] = {{"event", c.first_index},
                        {"of", c.first_is_reserved ? "reserved" : "allocated"},
                        {"computed", c.first_computed},
                        {"reported", c.first_reported}};
    }
    devices.push_back(entry);
  }
  const Anomalies& anomalies = ledger.anomalies();
  out["anomalies"] = {{"unknown_frees", anomalies.unknown_frees},
                      {"double_frees", anomalies.double_frees},
                      {"other_device_frees", anomalies.other_device_frees},
                      {"address_reused_while_live", anomalies.address_reused_while_live},
                      {"late_frees", anomalies.late_frees},
                      {"partial_unmaps", anomalies.partial_unmaps},
                      {"gaps", anomalies.gaps}};
  nlohmann::ordered_json& spaces = out["spaces"] = nlohmann::ordered_json::array();
  for (int i = 1; i < kSpaceCount; ++i) {
    const Space space = static_cast<Space>(i);
    Totals all;
    // Peaks of different devices need not be at the same time: "peaks" is their sum, an upper bound.
    for (const int32_t device : ledger.devices()) {
      const Totals& totals = space == Space::kAlias ? ledger.totals(Level::kAlias, device)
                                                    : ledger.segment_totals(space, device);
      all.bytes += totals.bytes;
      all.count += totals.count;
      all.peak_bytes += totals.peak_bytes;
      all.births += totals.births;
    }
    if (all.births == 0) continue;
    std::string name(SpaceName(space));
    for (char& c : name) c = c == ' ' || c == '-' ? '_' : c;
    spaces.push_back({{"space", name},
                      {"live_bytes", all.bytes},
                      {"live", all.count},
                      {"peak_bytes", all.peak_bytes},
                      {"allocations", all.births}});
  }
}

}  // namespace

const Section kSelfCheckSection = {"self-check", SelfCheckText, SelfCheckJson};

}  // namespace gpumemtrace::analyzer
