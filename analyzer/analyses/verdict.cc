#include "analyzer/analyses/verdict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "analyzer/report/text.h"

namespace gpumemtrace::analyzer {
namespace {

std::string Bytes(double bytes) {
  return FormatBytes(static_cast<uint64_t>(std::llround(std::max(0.0, bytes))));
}

// Of memory that an account of the device cannot show.
std::string_view HostWords(Space space) {
  switch (space) {
    case Space::kPinnedHost:
      return " of pinned HOST memory";
    case Space::kRegisteredHost:
      return " of registered HOST memory";
    default:
      return " of HOST memory";
  }
}

std::string PerStep(const Culprit& culprit, double bytes_per_step, bool real_steps) {
  const std::string unit = real_steps ? "/step" : "/slice";
  if (culprit.bytes_known) return Bytes(bytes_per_step) + unit;
  char count[64];
  std::snprintf(count, sizeof count, "%.3g", culprit.count_per_step);
  const std::string number = count;
  return number + (number == "1" ? " handle" : " handles") + unit + " (bytes not known)";
}

Culprit FromGrowth(const GrowthFinding& growth) {
  Culprit culprit;
  culprit.place = growth.place;
  culprit.bytes_per_step = growth.bytes_per_step;
  culprit.count_per_step = growth.count_per_step;
  culprit.bytes_known = growth.bytes_known;
  culprit.since_step = growth.since_step;
  culprit.confidence = growth.confidence;
  culprit.bytes = growth.grown_bytes;
  culprit.kind = std::string(GrowthKindName(growth.kind));
  culprit.level = growth.level;
  culprit.space = growth.space;
  culprit.device = growth.device;
  culprit.loop = growth.loop;
  return culprit;
}

bool Suspicious(const GrowthFinding& growth) {
  return !growth.suppressed && growth.confidence >= 0.3 &&
         (growth.kind == GrowthKind::kLeak || growth.kind == GrowthKind::kUnattributed);
}

// Growth that is there for the user to see and has an explanation: the run is then clean, whatever its peak.
bool ExplainedGrowth(const Findings& findings) {
  uint64_t peak = 0;
  for (const PeakFinding& finding : findings.peaks) peak = std::max(peak, finding.bytes);
  for (const GrowthFinding& growth : findings.growth) {
    if (growth.kind == GrowthKind::kOneOff && growth.until_step < 3) continue;  // warm-up
    if (growth.grown_bytes * 20 >= peak && peak != 0) return true;
  }
  return false;
}

// The curve bends upwards: its rate of the whole run is less than that of the last steps, so that a forecast
// by it is the latest moment.
bool RisesEverFaster(const GrowthFinding& growth) {
  std::vector<double> bytes;
  for (const CurvePoint& point : growth.curve) {
    if (point.step >= growth.since_step && point.step <= growth.until_step)
      bytes.push_back(static_cast<double>(point.bytes));
  }
  if (bytes.size() < 12) return false;
  // By quarters, so that no single jump decides.
  const size_t quarter = (bytes.size() - 1) / 4;
  double before = bytes[quarter] - bytes.front();
  for (int i = 1; i < 4; ++i) {
    const double rise = bytes[(i + 1) * quarter] - bytes[i * quarter];
    if (rise < 1.15 * before) return false;
    before = rise;
  }
  return before > 0;
}

// At the rates of all leaks of one device together, of the device that is full first.
void UntilFull(const Findings& findings, Verdict& verdict) {
  struct Rates {  // parts of what is free
    double per_microsecond = 0;
    double per_step = 0;
  };
  std::map<int32_t, Rates> devices;
  const GrowthFinding* largest = nullptr;
  for (const GrowthFinding& growth : findings.growth) {
    if (!IsLeak(growth.kind) || growth.suppressed || growth.microseconds_until_full == 0) continue;
    if (largest == nullptr || growth.bytes_per_step > largest->bytes_per_step) largest = &growth;
    Rates& rates = devices[growth.device];
    rates.per_microsecond += 1.0 / static_cast<double>(growth.microseconds_until_full);
    if (growth.steps_until_full > 0) rates.per_step += 1.0 / growth.steps_until_full;
  }
  Rates most;
  for (const auto& [device, rates] : devices) {
    if (rates.per_microsecond > most.per_microsecond) most = rates;
  }
  if (most.per_microsecond > 0)
    verdict.microseconds_until_full = static_cast<uint64_t>(1.0 / most.per_microsecond);
  if (most.per_step > 0) verdict.steps_until_full = 1.0 / most.per_step;
  verdict.rate_rises = largest != nullptr && RisesEverFaster(*largest);
}

// Of a pool that took far more from the driver than its tensors ever needed.
std::string CacheHint(const Findings& findings) {
  constexpr uint64_t kWorthAHint = 256u << 20;
  for (const FragmentationFinding& pool : findings.fragmentation) {
    const uint64_t above = pool.reserved_peak - std::min(pool.reserved_peak, pool.allocated_peak);
    if (above < kWorthAHint || above * 3 < pool.reserved_peak || pool.needless_bytes * 2 < above) continue;
    return "the allocator of device " + std::to_string(pool.device) + " held " +
           FormatBytes(pool.reserved_peak) + " for at most " + FormatBytes(pool.allocated_peak) +
           " of tensors; most of the rest was taken at " + pool.needless_place.Short() +
           (pool.why.other_streams * 2 > pool.why.free
                ? ", where what lay free was of other streams: fewer streams, made once, would spare it"
                : " for want of a fitting piece: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may spare "
                  "it");
  }
  return "";
}

// "no leak in 50 steps; …": why this peak is worth a headline.
std::string PeakHeadline(const Findings& findings, const PeakAdvice& advice) {
  const std::string place = advice.place.Short();
  std::string headline =
      "PEAK: " + (findings.steps.real() ? "no leak in " + Plural(findings.steps.count, "step")
                                        : std::string("no steps to tell a leak by"));
  if (advice.kind == PeakAdvice::Kind::kDriverInternal) {
    return headline + "; the driver took " + FormatBytes(advice.bytes) +
           " by itself when a kernel was first launched at " + place +
           ", most likely for the arrays on the kernel's stack";
  }
  if (advice.kind == PeakAdvice::Kind::kWrongDevice) {
    return "WRONG DEVICE: " + FormatBytes(advice.bytes) + " made at " + place + " lie on device " +
           std::to_string(advice.device) + ", which the program no longer used by then" +
           headline.replace(0, std::string_view("PEAK:").size(), ";");
  }
  // Another moment may be nearly as high.
  uint64_t saved = advice.bytes;
  size_t devices = 0;
  const PeakFinding* reduced = nullptr;
  for (const PeakFinding& peak : findings.peaks) {
    if (reduced == nullptr && peak.device == advice.device) reduced = &peak;
    devices += peak.device >= 0 && peak.level == Level::kBlock ? 1u : 0u;
  }
  if (reduced != nullptr && reduced->bytes > advice.peak_without)
    saved = std::min(saved, reduced->bytes - advice.peak_without);
  return headline + "; " + FormatBytes(saved) + " of the peak" +
         (reduced != nullptr ? " of " + FormatBytes(reduced->bytes) : "") +
         (devices > 1 ? " on device " + std::to_string(advice.device) : "") + " are avoidable at " + place +
         " (" + std::string(PeakAdviceName(advice.kind)) + ")";
}

// What was looked at, whatever came of it.
std::vector<std::string> Checked(const Findings& findings) {
  std::set<GroupId> tensors;
  std::set<GroupId> driver;
  std::set<GroupId> host;
  std::set<GroupId> handles;
  for (const OriginSummary& origin : findings.origins) {
    if (origin.births == 0) continue;
    switch (origin.level) {
      case Level::kBlock:
        tensors.insert(origin.group);
        break;
      case Level::kSegment:
        if (!origin.allocator_segment) (origin.device < 0 ? host : driver).insert(origin.group);
        break;
      case Level::kHandle:
        handles.insert(origin.group);
        break;
      default:
        break;
    }
  }
  std::vector<std::string> details;
  const auto add = [&](const std::set<GroupId>& groups, const std::string& what) {
    if (!groups.empty()) details.push_back(what + " of " + Plural(groups.size(), "line"));
  };
  add(tensors, "tensors");
  add(driver, "driver memory");
  add(host, "pinned memory");
  add(handles, "handles");
  if (!findings.fragmentation.empty()) details.push_back("the allocator's cache");
  for (const DeviceAccount& account : findings.accounts) {
    if (!account.at_end.measured) continue;
    details.push_back("what the card itself says is used");
    break;
  }
  return details;
}

void Clean(const Findings& findings, Verdict& verdict) {
  verdict.kind = VerdictKind::kClean;
  verdict.confidence =
      findings.steps.real() ? std::min(0.99, 1.0 - std::pow(0.8, findings.steps.count)) : 0.3;
  verdict.headline = "no leak found";
  if (findings.steps.real()) {
    verdict.headline += " in " + Plural(findings.steps.count, "step");
  } else {
    verdict.headline += "; no steps were found, so growth was looked for over equal parts of the run";
  }
  size_t suppressed = 0;
  for (const GrowthFinding& growth : findings.growth) {
    suppressed += IsLeak(growth.kind) && growth.suppressed ? 1u : 0u;
  }
  verdict.hint = CacheHint(findings);
  if (suppressed != 0) verdict.headline += ", " + Plural(suppressed, "known leak") + " suppressed";
}

}  // namespace

Verdict MakeVerdict(const Findings& findings, uint64_t changes, uint64_t gaps) {
  Verdict verdict;
  verdict.details = Checked(findings);
  if (changes == 0) {
    verdict.kind = VerdictKind::kUnjudged;
    verdict.headline = "nothing was recorded";
    return verdict;
  }
  const bool real = findings.steps.real();
  double leaked = 0;
  double estimated = 0;
  double stranded = 0;
  const GrowthFinding* cache = nullptr;
  for (const GrowthFinding& growth : findings.growth) {
    if (Suspicious(growth)) {
      // Bytes of handles and of what no call accounts for are estimates from the device's own figure.
      const bool estimate = growth.level == Level::kHandle || growth.kind == GrowthKind::kUnattributed;
      (estimate ? estimated : leaked) += growth.bytes_per_step;
      verdict.culprits.push_back(FromGrowth(growth));
      verdict.confidence = std::max(verdict.confidence, growth.confidence);
    }
    if (growth.kind == GrowthKind::kStrandedCache && !growth.suppressed && growth.bytes_per_step > stranded) {
      stranded = growth.bytes_per_step;
      cache = &growth;
    }
  }
  UntilFull(findings, verdict);
  // Memory with a line before handles and estimates.
  std::stable_partition(verdict.culprits.begin(), verdict.culprits.end(), [](const Culprit& culprit) {
    return culprit.level != Level::kHandle && culprit.kind != GrowthKindName(GrowthKind::kUnattributed);
  });
  // A cache that is stranded as the requests grow comes with the work; what leaks beside it does not.
  const bool by_the_way = cache != nullptr && cache->larger_requests && leaked >= 0.5;
  if (cache != nullptr && stranded > leaked && !by_the_way) {
    verdict.kind = VerdictKind::kFragmentation;
    verdict.culprits.insert(verdict.culprits.begin(), FromGrowth(*cache));
    verdict.bytes_per_step = stranded;
    verdict.confidence = cache->confidence;
    verdict.headline = "FRAGMENTATION: the allocator's cache grows by " + Bytes(stranded) +
                       (real ? "/step" : "/slice") + ", first asked for at " + cache->place.Short() +
                       (cache->larger_requests ? "; each request is larger than the one before"
                        : leaked < 0.5         ? "; what is allocated does not grow"
                                               : "");
    if (leaked >= 0.5) {
      verdict.headline += "; beside it " + Bytes(leaked) + (real ? "/step" : "/slice") +
                          " leak, most of it born at " + verdict.culprits[1].place.Short();
    }
    return verdict;
  }
  if (!verdict.culprits.empty()) {
    verdict.kind = VerdictKind::kLeak;
    const Culprit& worst = verdict.culprits.front();
    verdict.bytes_per_step = leaked >= 0.5 ? leaked : estimated;
    verdict.bytes_known = verdict.bytes_per_step >= 0.5;
    verdict.headline = LeakHeadline(verdict, findings, {worst.bytes_per_step, {worst.place.Short()}, "", ""});
    return verdict;
  }
  for (const FragmentationFinding& fragmentation : findings.fragmentation) {
    if (!fragmentation.headline) continue;
    verdict.kind = VerdictKind::kFragmentation;
    Culprit culprit;
    culprit.kind = "fragmentation";
    culprit.device = fragmentation.device;
    culprit.confidence = 0.8;
    culprit.bytes = fragmentation.worst.gap_bytes;
    if (!fragmentation.worst.pins.empty()) {
      culprit.place = fragmentation.worst.pins.front().place;
      verdict.culprits.push_back(culprit);
    }
    if (fragmentation.needless_place_bytes != 0) {
      culprit.place = fragmentation.needless_place;
      culprit.bytes = fragmentation.needless_place_bytes;
      verdict.culprits.push_back(culprit);
    }
    verdict.confidence = 0.8;
    verdict.headline = "FRAGMENTATION: " + FormatBytes(fragmentation.worst.gap_bytes) + " of " +
                       FormatBytes(fragmentation.worst.reserved) + " lie in holes";
    if (!verdict.culprits.empty()) verdict.headline += " pinned by " + verdict.culprits.front().place.Short();
    return verdict;
  }
  if (!ExplainedGrowth(findings)) {
    const PeakAdvice* first = nullptr;
    for (const PeakAdvice& advice : findings.advice) {
      if (!advice.headline) continue;
      if (first == nullptr) first = &advice;
      Culprit culprit;
      culprit.place = advice.place;
      culprit.bytes = advice.bytes;
      culprit.kind = std::string(PeakAdviceName(advice.kind));
      culprit.device = advice.device;
      culprit.confidence = 0.7;
      verdict.culprits.push_back(std::move(culprit));
    }
    if (first != nullptr) {
      verdict.kind = VerdictKind::kPeak;
      verdict.confidence = verdict.culprits.front().confidence;
      verdict.headline = PeakHeadline(findings, *first);
      return verdict;
    }
  }
  Clean(findings, verdict);
  if (gaps != 0) {
    verdict.headline += ", but parts of the trace are missing";
    verdict.confidence /= 2;
  }
  return verdict;
}

std::string LeakHeadline(const Verdict& verdict, const Findings& findings, const LeakOfHeadline& leak) {
  const Culprit& worst = verdict.culprits.front();
  const bool real = findings.steps.real();
  const std::string unit = real ? "/step" : "/slice";
  std::string headline = "LEAK: " + PerStep(worst, leak.bytes_per_step, real);
  double host = 0;
  double device = 0;
  for (const Culprit& culprit : verdict.culprits) {
    const bool estimate =
        culprit.level == Level::kHandle || culprit.kind == GrowthKindName(GrowthKind::kUnattributed);
    if (!estimate) (culprit.on_host() ? host : device) += culprit.bytes_per_step;
  }
  const bool only_host =
      std::ranges::all_of(verdict.culprits, [](const Culprit& culprit) { return culprit.on_host(); });
  if (worst.on_host()) {
    headline += HostWords(worst.space);
    if (only_host) headline += " (device memory does not grow)";
  }
  if (!leak.keeper.empty()) headline += ", kept by " + leak.keeper;
  const std::string_view first = leak.places.front();
  // Made where it is stored.
  const bool same = !leak.keeper.empty() && !leak.stores.empty() && first.starts_with(leak.stores) &&
                    first.substr(leak.stores.size()).find_first_of("0123456789") != 0;
  if (!leak.keeper.empty() && !same && !leak.stores.empty()) headline += ", stored at " + leak.stores;
  headline += same ? ", born and stored at " : leak.keeper.empty() ? " born at " : "; born at ";
  std::set<std::string> told;
  for (const std::string& place : leak.places) {
    // A screen is not filled with one leak's lines.
    if (told.size() == 3 || !told.insert(place).second) continue;
    headline += (told.size() > 1 ? " and " : "") + place;
  }
  if (worst.since_step >= 1) {
    headline += ", since step " + std::to_string(static_cast<uint64_t>(worst.since_step));
  }
  if (!worst.loop.empty()) headline += ", in the later loop that begins at " + worst.loop;
  std::set<std::string> others;
  for (const Culprit& culprit : verdict.culprits) {
    if (!told.contains(culprit.place.Short())) others.insert(culprit.place.Short());
  }
  const double leaked = host + device;
  const std::string all = host >= 1 && device >= 1 ? Bytes(device) + unit + " of device memory and " +
                                                         Bytes(host) + unit + " of host memory in all"
                                                   : Bytes(leaked) + unit + " in all";
  if (!others.empty()) {
    headline += ", and " + Plural(others.size(), "more line");
    if (leaked >= 1) headline += " (" + all + ")";
  } else if (leaked >= leak.bytes_per_step + 1) {
    // One line on several devices.
    headline += ", " + all;
  }
  return headline;
}

std::string_view VerdictName(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::kClean:
      return "clean";
    case VerdictKind::kLeak:
      return "leak";
    case VerdictKind::kFragmentation:
      return "fragmentation";
    case VerdictKind::kPeak:
      return "peak";
    case VerdictKind::kUnjudged:
      return "unjudged";
  }
  return "";
}

}  // namespace gpumemtrace::analyzer
