// The account of each device: tensors + cache + other libraries + the rest = what nvidia-smi shows.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

std::string Signed(int64_t bytes) {
  return bytes < 0 ? FormatSignedBytes(bytes) : FormatBytes(static_cast<uint64_t>(bytes));
}

// What no call of this program accounts for, in the parts that readings of the device can tell apart.
template <typename Row>
void Unattributed(const DeviceAccount& account, bool clean, int detail, const Row& row) {
  constexpr int64_t kSmall = 16 << 20;
  const Account& p = account.at_peak;
  const Account& e = account.at_end;
  const int64_t before = e.unattributed_before;
  const int64_t since = e.unattributed - before;
  const bool moved = std::abs(since) >= kSmall || std::abs(p.unattributed - before) >= kSmall || detail > 0;
  const bool less = before > 0 && account.context_at_most < static_cast<uint64_t>(before) / 10 * 9;
  const std::string context =
      "its CUDA context" +
      (less ? " (" + FormatBytes(account.context_at_most) + " at most)" : std::string()) + ", other programs";
  // A healthy run is told in few lines.
  if (!moved || (clean && detail == 0)) {
    row("unattributed", Signed(p.unattributed), Signed(e.unattributed),
        (moved ? "at the start " + Signed(before) : "as at the start") + ": " + context);
    return;
  }
  row("unattributed", Signed(p.unattributed), Signed(e.unattributed), "asked for by no call of this program");
  row("  at the start", Signed(before), Signed(before), context);
  std::string note = "code, other programs";
  if (e.launches != 0) note = FormatBytes(e.launches) + " taken as kernels were first launched (estimate)";
  if (account.others_gave_back >= static_cast<uint64_t>(kSmall))
    note += "; others gave back " + FormatBytes(account.others_gave_back);
  row("  since then", Signed(p.unattributed - before), Signed(since), note);
}

void AccountText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  for (const DeviceAccount& account : findings.accounts) {
    out.Heading("Account of " + DeviceText(account.device));
    std::vector<std::vector<std::string>> rows;
    rows.push_back({"", "at the peak", "at the end", ""});
    const auto row = [&](std::string name, const std::string& peak, const std::string& end,
                         std::string note) {
      rows.push_back({std::move(name), peak, end, std::move(note)});
    };
    const Account& p = account.at_peak;
    const Account& e = account.at_end;
    if (p.blocks + e.blocks != 0) {
      row("tensors", FormatBytes(p.blocks - p.rounding), FormatBytes(e.blocks - e.rounding),
          p.rounding_known + e.rounding_known != 0 ? "" : "with the allocator's rounding");
    }
    if (p.rounding + e.rounding != 0) {
      row("rounding", FormatBytes(p.rounding), FormatBytes(e.rounding),
          "inside blocks; a census tells it of " + FormatPercent(p.rounding_known, p.blocks) +
              " at the peak");
    }
    if (p.cache + e.cache != 0) {
      row("allocator cache", FormatBytes(p.cache), FormatBytes(e.cache), "reserved and free");
    }
    std::map<std::string, std::pair<uint64_t, uint64_t>> libraries;
    for (const NamedShare& share : p.libraries) libraries[share.name].first = share.bytes;
    for (const NamedShare& share : e.libraries) libraries[share.name].second = share.bytes;
    std::vector<std::pair<std::string, std::pair<uint64_t, uint64_t>>> sorted(libraries.begin(),
                                                                              libraries.end());
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return std::max(a.second.first, a.second.second) > std::max(b.second.first, b.second.second);
    });
    std::pair<uint64_t, uint64_t> rest;
    size_t shown = 0;
    for (const auto& [name, bytes] : sorted) {
      if (++shown > (detail > 0 ? 50u : 6u)) {
        rest.first += bytes.first;
        rest.second += bytes.second;
        continue;
      }
      row(Printable(name), FormatBytes(bytes.first), FormatBytes(bytes.second), "");
    }
    if (rest.first + rest.second != 0) {
      row("other libraries", FormatBytes(rest.first), FormatBytes(rest.second), "");
    }
    if (p.measured || e.measured) {
      Unattributed(account, findings.verdict.kind == VerdictKind::kClean, detail, row);
      row("used", FormatBytes(p.used), FormatBytes(e.used),
          "of " + FormatBytes(e.total != 0 ? e.total : p.total) + "; what nvidia-smi shows for the card");
    } else {
      row("sum", FormatBytes(p.used), FormatBytes(e.used), "the device itself was not asked");
    }
    out.Table(rows, {false, true, true, false});
    if (p.managed + e.managed != 0) {
      out.Field("managed", FormatBytes(p.managed) + " at the peak, " + FormatBytes(e.managed) +
                               " at the end: may live on the host, not in the sum");
    }
  }
}

nlohmann::ordered_json AccountJson(const AnalyzedTrace& trace, const Account& account) {
  nlohmann::ordered_json json;
  json["moment"] = MomentJson(account.moment, trace);
  json["blocks_bytes"] = account.blocks;
  json["cache_bytes"] = account.cache;
  json["rounding_bytes"] = account.rounding;
  json["rounding_known_bytes"] = account.rounding_known;
  nlohmann::ordered_json& libraries = json["libraries"] = nlohmann::ordered_json::array();
  for (const NamedShare& share : account.libraries) {
    libraries.push_back({{"name", Printable(share.name)}, {"bytes", share.bytes}, {"count", share.count}});
  }
  json["managed_bytes"] = account.managed;
  json["unattributed_bytes"] = account.unattributed;
  json["unattributed_before_bytes"] = account.unattributed_before;
  json["kernel_launches_bytes"] = account.launches;
  json["used_bytes"] = account.used;
  json["total_bytes"] = account.total;
  json["measured"] = account.measured;
  json["reading_age_seconds"] = static_cast<double>(account.reading_age_us) / 1e6;
  return json;
}

void AccountJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const Findings& findings = trace.analyses.findings();
  const Ledger& ledger = trace.ledger;
  // Not references into `out`: the next key moves what is there.
  nlohmann::ordered_json accounts = nlohmann::ordered_json::array();
  nlohmann::ordered_json devices = nlohmann::ordered_json::array();
  for (const DeviceAccount& account : findings.accounts) {
    accounts.push_back({{"device", account.device},
                        {"others_gave_back_bytes", account.others_gave_back},
                        {"context_at_most_bytes", account.context_at_most},
                        {"at_peak", AccountJson(trace, account.at_peak)},
                        {"at_end", AccountJson(trace, account.at_end)}});
    const Totals& blocks = ledger.totals(Level::kBlock, account.device);
    const Totals& segments = ledger.totals(Level::kSegment, account.device);
    uint64_t reserved_peak = 0;
    uint64_t reserved_last = 0;
    const auto check = ledger.self_checks().find(account.device);
    if (check != ledger.self_checks().end()) {
      reserved_peak = check->second.reported_reserved_peak;
      reserved_last = check->second.reported_reserved;
    }
    // What the program's tensors take, whatever the allocator: its blocks, else what PyTorch asked of the
    // driver.
    uint64_t tensors = blocks.peak_bytes;
    if (blocks.births == 0) {
      for (const PeakFinding& peak : findings.peaks) {
        if (peak.device != account.device || peak.level != Level::kSegment) continue;
        for (const NamedShare& share : peak.by_library) {
          if (share.name == "libc10_cuda" || share.name.starts_with("libtorch")) tensors += share.bytes;
        }
      }
    }
    devices.push_back({{"ordinal", account.device},
                       {"blocks",
                        {{"peak_bytes", blocks.peak_bytes},
                         {"live_bytes", blocks.bytes},
                         {"live", blocks.count},
                         {"allocations", blocks.births}}},
                       {"tensors", {{"peak_bytes", tensors}}},
                       {"reserved", {{"peak_bytes", reserved_peak}, {"last_bytes", reserved_last}}},
                       {"segments",
                        {{"peak_bytes", segments.peak_bytes},
                         {"live_bytes", segments.bytes},
                         {"live", segments.count},
                         {"allocations", segments.births}}},
                       {"driver",
                        {{"used_bytes", account.at_end.used},
                         {"max_used_bytes", account.max_used},
                         {"total_bytes", account.at_end.total},
                         {"measured", account.at_end.measured}}},
                       {"unattributed_bytes", account.at_end.unattributed}});
  }
  out["accounts"] = std::move(accounts);
  out["devices"] = std::move(devices);
  // By who asked the driver, over all devices; each peak is that library's share at the device's driver peak.
  std::map<std::string, std::pair<uint64_t, uint64_t>> libraries;
  for (const PeakFinding& peak : findings.peaks) {
    if (peak.level != Level::kSegment) continue;
    for (const NamedShare& share : peak.by_library) libraries[share.name].first += share.bytes;
  }
  for (const OriginSummary& origin : findings.origins) {
    if (origin.level != Level::kSegment || origin.live_bytes == 0) continue;
    libraries[origin.library.empty() ? "unknown" : origin.library].second += origin.live_bytes;
  }
  nlohmann::ordered_json& list = out["libraries"] = nlohmann::ordered_json::array();
  for (const auto& [name, bytes] : libraries) {
    list.push_back({{"name", Printable(name)}, {"peak_bytes", bytes.first}, {"live_bytes", bytes.second}});
  }
}

}  // namespace

const Section kAccountSection = {"account", AccountText, AccountJson};

}  // namespace gpumemtrace::analyzer
