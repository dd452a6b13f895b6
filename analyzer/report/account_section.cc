// The account of each device: tensors + cache + other libraries + the rest = what nvidia-smi shows.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

// The rows of one device's table: a figure for each moment of it.
class Rows {
 public:
  explicit Rows(const DeviceAccount& account) {
    Add(account.at_peak, account.at_fullest ? "tensors' peak" : "at the peak");
    if (account.at_fullest) Add(*account.at_fullest, "at its fullest");
    Add(account.at_end, "at the end");
    rows_.front().emplace_back();
  }

  // `figure` of each moment; no row when it is 0 everywhere.
  template <typename Figure>
  void Add(const std::string& name, const std::string& note, const Figure& figure) {
    std::vector<std::string> row{name};
    bool any = false;
    for (const Account* moment : moments_) {
      const auto bytes = static_cast<int64_t>(figure(*moment));
      any |= bytes != 0;
      row.push_back(bytes < 0 ? FormatSignedBytes(bytes) : FormatBytes(static_cast<uint64_t>(bytes)));
    }
    row.push_back(note);
    if (any) rows_.push_back(std::move(row));
  }

  const std::vector<const Account*>& moments() const { return moments_; }
  void Print(TextWriter& out) const {
    std::vector<bool> right(moments_.size() + 2, true);
    right.front() = right.back() = false;
    out.Table(rows_, right);
  }

 private:
  void Add(const Account& moment, const char* title) {
    moments_.push_back(&moment);
    rows_.front().emplace_back(title);
  }

  std::vector<const Account*> moments_;
  std::vector<std::vector<std::string>> rows_{{""}};
};

// What no call of this program accounts for, in the parts that readings of the device can tell apart.
void Unattributed(const DeviceAccount& account, bool clean, int detail, Rows& rows) {
  constexpr int64_t kSmall = 16 << 20;
  const int64_t before = account.at_end.unattributed_before;
  bool moved = detail > 0;
  for (const Account* moment : rows.moments()) moved |= std::abs(moment->unattributed - before) >= kSmall;
  const bool less = before > 0 && account.context_at_most < static_cast<uint64_t>(before) / 10 * 9;
  const std::string context =
      "its CUDA context" +
      (less ? " (" + FormatBytes(account.context_at_most) + " at most)" : std::string()) + ", other programs";
  const auto all = [](const Account& moment) { return moment.unattributed; };
  // A healthy run is told in few lines.
  if (!moved || (clean && detail == 0)) {
    const std::string then =
        before < 0 ? FormatSignedBytes(before) : FormatBytes(static_cast<uint64_t>(before));
    rows.Add("unattributed", (moved ? "at the start " + then : "as at the start") + ": " + context, all);
    return;
  }
  rows.Add("unattributed", "asked for by no call of this program", all);
  rows.Add("  at the start", context, [&](const Account&) { return before; });
  std::string note = "code, other programs";
  if (account.at_end.launches != 0)
    note = FormatBytes(account.at_end.launches) + " taken as kernels were first launched (estimate)";
  if (account.others_gave_back >= static_cast<uint64_t>(kSmall))
    note += "; others gave back " + FormatBytes(account.others_gave_back);
  rows.Add("  since then", note, [&](const Account& moment) { return moment.unattributed - before; });
}

// By who asked the driver, largest first.
void Libraries(int detail, Rows& rows) {
  const auto bytes_of = [](const Account& moment, const std::string& name) {
    const auto share = std::ranges::find(moment.libraries, name, &NamedShare::name);
    return share != moment.libraries.end() ? share->bytes : 0;
  };
  std::map<std::string, uint64_t> most;
  for (const Account* moment : rows.moments()) {
    for (const NamedShare& share : moment->libraries)
      most[share.name] = std::max(most[share.name], share.bytes);
  }
  std::vector<std::pair<std::string, uint64_t>> sorted(most.begin(), most.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(), &std::pair<std::string, uint64_t>::second);
  const size_t shown = std::min<size_t>(sorted.size(), detail > 0 ? 50 : 6);
  for (size_t i = 0; i < shown; ++i) {
    rows.Add(Printable(sorted[i].first), "",
             [&](const Account& moment) { return bytes_of(moment, sorted[i].first); });
  }
  rows.Add("other libraries", "", [&](const Account& moment) {
    uint64_t rest = 0;
    for (size_t i = shown; i < sorted.size(); ++i) rest += bytes_of(moment, sorted[i].first);
    return rest;
  });
}

void AccountText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  for (const DeviceAccount& account : findings.accounts) {
    out.Heading("Account of " + DeviceText(account.device));
    const Account& p = account.at_peak;
    const Account& e = account.at_end;
    Rows rows(account);
    rows.Add("tensors", p.rounding_known + e.rounding_known != 0 ? "" : "with the allocator's rounding",
             [](const Account& moment) { return moment.blocks - moment.rounding; });
    rows.Add("rounding",
             "beyond what tensors asked for; known of " + FormatPercent(p.rounding_known, p.blocks) +
                 " at the peak",
             [](const Account& moment) { return moment.rounding; });
    rows.Add("allocator cache", "reserved and free", [](const Account& moment) { return moment.cache; });
    Libraries(detail, rows);
    const bool measured = p.measured || e.measured;
    if (measured) Unattributed(account, findings.verdict.kind == VerdictKind::kClean, detail, rows);
    rows.Add(measured ? "used" : "sum",
             measured ? "of " + FormatBytes(e.total != 0 ? e.total : p.total) +
                            "; what nvidia-smi shows for the card"
                      : "the device itself was not asked",
             [](const Account& moment) { return moment.used; });
    rows.Print(out);
    if (account.at_fullest) {
      out.Field("fullest", "the program took most of the device " +
                               MomentText(account.at_fullest->moment, trace) +
                               ", another moment than the peak of its tensors");
    }
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
    if (account.at_fullest) accounts.back()["at_fullest"] = AccountJson(trace, *account.at_fullest);
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
