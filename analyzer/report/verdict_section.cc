// The headline: what is wrong with this run, in one line, and what was looked at to say so.
#include <algorithm>
#include <cmath>

#include "analyzer/analyses/verdict.h"
#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/holders_text.h"
#include "analyzer/report/remedies.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr size_t kNone = SIZE_MAX;

// The growth that the headline is about.
size_t OfHeadline(const Findings& findings) {
  const Verdict& verdict = findings.verdict;
  if (verdict.culprits.empty()) return kNone;
  const Culprit& worst = verdict.culprits.front();
  for (size_t i = 0; i < findings.growth.size(); ++i) {
    const GrowthFinding& growth = findings.growth[i];
    if (IsLeak(growth.kind) && !growth.suppressed && growth.device == worst.device &&
        growth.level == worst.level && growth.bytes_per_step == worst.bytes_per_step &&
        growth.place.Short() == worst.place.Short()) {
      return i;
    }
  }
  return kNone;
}

// With who keeps the leak before where it was made: the line to edit is mostly the one that stores. All that
// the keeper keeps is one leak.
std::string Headline(const AnalyzedTrace& trace, size_t number) {
  const Findings& findings = trace.analyses.findings();
  const Verdict& verdict = findings.verdict;
  if (number == kNone || verdict.kind != VerdictKind::kLeak) return Printable(verdict.headline);
  const std::vector<size_t> together = SameKeeper(trace, number);
  const HolderParts keeper = KeeperOf(trace, together);
  if (keeper.who.empty()) return Printable(verdict.headline);
  LeakOfHeadline leak;
  leak.keeper = keeper.who;
  leak.stores = keeper.stores;
  for (const size_t growth : together) {
    leak.bytes_per_step += findings.growth[growth].bytes_per_step;
    leak.places.push_back(findings.growth[growth].place.Short());
  }
  return Printable(LeakHeadline(verdict, findings, leak));
}

// "in about 2,200 steps, 230 ms at this rate". Of a leak that would take longer than most trainings last it
// is said that it is small.
std::string UntilFull(const Findings& findings) {
  const Verdict& verdict = findings.verdict;
  const auto lines = std::ranges::count_if(findings.growth, [](const GrowthFinding& growth) {
    return IsLeak(growth.kind) && !growth.suppressed && growth.microseconds_until_full != 0;
  });
  std::string text = verdict.rate_rises ? "at the latest in " : "in ";
  if (verdict.steps_until_full >= 1) {
    // An estimate of two digits.
    double unit = 1;
    while (verdict.steps_until_full / unit >= 100) unit *= 10;
    const auto steps = static_cast<uint64_t>(std::floor(verdict.steps_until_full / unit) * unit);
    text += "about " + Plural(steps, "step") + ", ";
  }
  constexpr double kSmallLeak = 1e7;
  return text + RoughDuration(verdict.microseconds_until_full) +
         (lines > 1 ? " at the rates of all lines together" : " at this rate") +
         (verdict.rate_rises ? ", which rises itself" : "") +
         (verdict.steps_until_full >= kSmallLeak ? ": a small leak" : "");
}

// The highest moment of a run that has nothing else to tell, in one sentence; empty without device memory.
std::string HighestMoment(const Findings& findings) {
  const PeakFinding* most = nullptr;
  size_t devices = 0;
  for (const PeakFinding& peak : findings.peaks) {
    if (peak.device < 0 || peak.by_line.empty()) continue;
    // The first of a device is of its tensors, where an allocator reports them.
    if (most != nullptr && peak.device == most->device) continue;
    ++devices;
    if (most == nullptr || peak.bytes > most->bytes) most = &peak;
  }
  if (most == nullptr) return "";
  std::string text = FormatBytes(most->bytes) + (most->level == Level::kBlock ? " of tensors" : "");
  if (devices > 1) text += " on " + DeviceText(most->device);
  if (most->moment.step >= 0) text += " in step " + FormatCount(static_cast<uint64_t>(most->moment.step));
  const SharePlace& line = most->by_line.front();
  text += (line.bytes == most->bytes ? ", all of it" : ", " + FormatBytes(line.bytes) + " of it") +
          " made at " + Printable(line.place.Short());
  const auto account = std::ranges::find(findings.accounts, most->device, &DeviceAccount::device);
  if (account != findings.accounts.end() && account->at_peak.measured) {
    const Account& then = account->at_peak;
    text += "; that is " + FormatPercent(most->bytes, then.total) +
            " of the card; in use by all programs then: " + FormatPercent(then.used, then.total);
  }
  return text;
}

// What is kept, and what to do about it.
void AboutTheLeak(const AnalyzedTrace& trace, size_t number, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  const HolderParts holder = KeeperOf(trace, SameKeeper(trace, number));
  if (findings.verdict.kind == VerdictKind::kLeak && !holder.facts.empty()) {
    out.Field("kept", holder.facts);
  } else {
    const std::vector<std::string> rows = HolderRows(trace, number, 1);
    if (!rows.empty()) out.Line("  " + rows.front());
  }
  std::string todo;
  if (findings.growth[number].remedy != Remedy::kUnknown) todo = WhatFrees(trace, number);
  if (!todo.empty()) out.Field("freed by", todo);
  if (findings.growth[number].on_host())
    out.Field("host is full", "when is not known: a trace does not tell how much memory the host has");
  if (findings.verdict.microseconds_until_full != 0) out.Field("card is full", UntilFull(findings));
}

void AboutTheLines(const Verdict& verdict, TextWriter& out) {
  if (verdict.culprits.empty()) return;
  const Place& place = verdict.culprits.front().place;
  if (place.line == 0 && !place.python && !place.module.empty()) {
    out.Field("no lines", Printable(place.module) +
                              " has no debug information that was found: build it with -g, or name a folder "
                              "with its debug file (--symbols)");
  }
}

void VerdictText(const AnalyzedTrace& trace, int, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  if (!findings.concluded) return;
  const Verdict& verdict = findings.verdict;
  const size_t about = OfHeadline(findings);
  const std::string headline = Headline(trace, about);
  switch (verdict.kind) {
    case VerdictKind::kLeak:
      out.Line(out.Bold(out.Red(headline)));
      break;
    case VerdictKind::kFragmentation:
    case VerdictKind::kPeak:
    case VerdictKind::kUnjudged:
      out.Line(out.Bold(out.Yellow(headline)));
      break;
    case VerdictKind::kClean:
      out.Line(out.Bold(out.Green(headline)));
      break;
  }
  if (about != kNone) AboutTheLeak(trace, about, out);
  if (verdict.kind == VerdictKind::kFragmentation && !verdict.culprits.empty()) {
    const std::string why = WhyNotServed(findings, verdict.culprits.front().device);
    if (!why.empty()) out.Field("why", why);
  }
  if (verdict.kind == VerdictKind::kPeak) {
    const auto advice = std::ranges::find(findings.advice, true, &PeakAdvice::headline);
    if (advice != findings.advice.end()) out.Field("lowered by", advice->remedy);
  }
  AboutTheLines(verdict, out);
  if (verdict.kind == VerdictKind::kClean) {
    const std::string peak = HighestMoment(findings);
    if (!peak.empty()) out.Field("peak", peak);
    if (!verdict.hint.empty()) out.Field("hint", Printable(verdict.hint));
  }
  if (findings.out_of_memory_count != 0) {
    out.Line(out.Red(Plural(findings.out_of_memory_count, "allocation") +
                     " failed for lack of memory, see below"));
  }
  if (verdict.kind == VerdictKind::kClean || verdict.kind == VerdictKind::kPeak) {
    std::string checked;
    for (const std::string& what : verdict.details) checked += (checked.empty() ? "" : ", ") + what;
    if (!checked.empty()) out.Field("checked", "for growth: " + checked);
  }
  const Steps& steps = findings.steps;
  if (steps.count != 0) {
    out.Field("steps", (steps.real() ? FormatCount(steps.count) + ": " : "") + Printable(steps.description));
  }
}

void VerdictJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const Findings& findings = trace.analyses.findings();
  const Verdict& verdict = findings.verdict;
  out["verdict"] = std::string(VerdictName(verdict.kind));
  out["headline"] = Headline(trace, OfHeadline(findings));
  out["confidence"] = verdict.confidence;
  out["bytes_per_step"] =
      verdict.bytes_known ? nlohmann::ordered_json(verdict.bytes_per_step) : nlohmann::ordered_json(nullptr);
  if (verdict.microseconds_until_full != 0) {
    out["seconds_until_full"] = static_cast<double>(verdict.microseconds_until_full) / 1e6;
  }
  if (verdict.steps_until_full > 0) out["steps_until_full"] = verdict.steps_until_full;
  if (verdict.rate_rises) out["rate_rises"] = true;
  nlohmann::ordered_json& culprits = out["culprits"] = nlohmann::ordered_json::array();
  for (const Culprit& culprit : verdict.culprits) {
    nlohmann::ordered_json json = PlaceJson(culprit.place);
    json["kind"] = culprit.kind;
    json["space"] = culprit.level == Level::kHandle  ? "handle"
                    : culprit.level == Level::kBlock ? "device"
                                                     : SpaceKey(culprit.space);
    json["device"] = culprit.device;
    json["bytes"] = culprit.bytes;
    if (culprit.bytes_known) {
      json["bytes_per_step"] = culprit.bytes_per_step;
    } else {
      json["bytes_per_step"] = nullptr;
    }
    json["count_per_step"] = culprit.count_per_step;
    json["since_step"] = culprit.since_step;
    json["confidence"] = culprit.confidence;
    culprits.push_back(std::move(json));
  }
  out["checked"] = verdict.details;
  if (!verdict.hint.empty()) out["hint"] = Printable(verdict.hint);
  const Steps& steps = findings.steps;
  out["steps"] = {{"count", steps.real() ? steps.count : 0},
                  {"source", std::string(StepSourceName(steps.source))},
                  {"description", Printable(steps.description)},
                  {"optimizer_calls", steps.optimizer_calls},
                  {"place", PlaceJson(steps.place)}};
}

}  // namespace

const Section kVerdictSection = {"verdict", VerdictText, VerdictJson};

}  // namespace gpumemtrace::analyzer
