// The headline: what is wrong with this run, in one line, and what was looked at to say so.
#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/holders_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

// Who keeps the leak of the headline: the line to edit is mostly there, not where the memory was made.
void KeptBy(const AnalyzedTrace& trace, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  for (size_t i = 0; i < findings.growth.size(); ++i) {
    const GrowthFinding& growth = findings.growth[i];
    if (!IsLeak(growth.kind) || growth.suppressed) continue;
    const std::vector<std::string> rows = HolderRows(trace, i, 1);
    if (!rows.empty()) out.Line("  " + rows.front());
    return;
  }
}

void VerdictText(const AnalyzedTrace& trace, int, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  if (!findings.concluded) return;
  const Verdict& verdict = findings.verdict;
  const std::string headline = Printable(verdict.headline);
  switch (verdict.kind) {
    case VerdictKind::kLeak:
      out.Line(out.Bold(out.Red(headline)));
      KeptBy(trace, out);
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
  if (findings.out_of_memory_count != 0) {
    out.Line(out.Red(Plural(findings.out_of_memory_count, "allocation") +
                     " failed for lack of memory, see below"));
  }
  if (verdict.kind == VerdictKind::kClean || verdict.kind == VerdictKind::kPeak) {
    std::string checked;
    for (const std::string& what : verdict.details) checked += (checked.empty() ? "" : ", ") + what;
    if (!checked.empty()) out.Field("checked", checked);
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
  out["headline"] = Printable(verdict.headline);
  out["confidence"] = verdict.confidence;
  out["bytes_per_step"] =
      verdict.bytes_known ? nlohmann::ordered_json(verdict.bytes_per_step) : nlohmann::ordered_json(nullptr);
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
