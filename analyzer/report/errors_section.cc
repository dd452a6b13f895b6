// Misuse: double frees, frees of unknown addresses, frees on the wrong device, calls that failed.
#include "analyzer/analyzed_trace.h"
#include "analyzer/report/findings_text.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

void ErrorsText(const AnalyzedTrace& trace, int detail, TextWriter& out) {
  const Findings& findings = trace.analyses.findings();
  std::vector<std::vector<std::string>> rows;
  for (const ErrorFinding& error : findings.errors) {
    // Libraries probe: a call that fails is normal for them and shown only on request.
    if (error.kind == ErrorFinding::Kind::kFailedCall && detail == 0) continue;
    if (rows.size() >= (detail > 0 ? 50u : 5u)) break;
    rows.push_back({std::string(ErrorKindName(error.kind)), FormatCount(error.count) + "×",
                    Printable(error.api), error.result != 0 ? "error " + std::to_string(error.result) : "",
                    Printable(error.place.Short())});
  }
  if (rows.empty()) return;
  out.Heading("Errors");
  out.Table(rows, {false, true, false, false, false});
}

void ErrorsJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  nlohmann::ordered_json& list = out["errors"] = nlohmann::ordered_json::array();
  for (const ErrorFinding& error : trace.analyses.findings().errors) {
    list.push_back({{"kind", std::string(ErrorKindName(error.kind))},
                    {"api", Printable(error.api)},
                    {"result", error.result},
                    {"count", error.count},
                    {"bytes", error.bytes},
                    {"culprit", PlaceJson(error.place)},
                    {"first", MomentJson(error.first, trace)},
                    {"stack", StackJson(trace, error.origin)}});
  }
}

}  // namespace

const Section kErrorsSection = {"errors", ErrorsText, ErrorsJson};

}  // namespace gpumemtrace::analyzer
