#include "analyzer/analyzed_trace.h"

#include "analyzer/analyses/census_bytes.h"
#include "analyzer/analyses/census_findings.h"

namespace gpumemtrace::analyzer {
namespace {

void Conclude(AnalyzedTrace& trace) {
  trace.ledger.Finish();
  if (trace.read.fault != TraceFault::kNone) return;
  trace.analyses.Conclude(trace.symbols);
  trace.holders.Conclude(trace.analyses.findings(), trace.symbols);
  TellBytesByCensus(trace.holders, trace.analyses.findings());
  TellRounding(trace.holders, trace.analyses.findings());
  TellRemedies(trace.holders, trace.analyses.findings());
}

}  // namespace

AnalyzedTrace::AnalyzedTrace(const AnalyzeOptions& options)
    : ledger(model), symbols(model, options.symbols), analyses(ledger, options.analyses), holders(ledger) {}

std::unique_ptr<AnalyzedTrace> Analyze(const std::string& path, const AnalyzeOptions& options) {
  auto trace = std::make_unique<AnalyzedTrace>(options);
  trace->path = path;
  trace->read = ReadTrace(path, options.reader, trace->model, trace->ledger);
  Conclude(*trace);
  return trace;
}

std::unique_ptr<AnalyzedTrace> AnalyzeBytes(std::span<const char> bytes, const std::string& name,
                                            const AnalyzeOptions& options) {
  auto trace = std::make_unique<AnalyzedTrace>(options);
  trace->path = name;
  trace->read = ReadTraceBytes(bytes, name, options.reader, trace->model, trace->ledger);
  Conclude(*trace);
  return trace;
}

int ExitCodeOf(const AnalyzedTrace& trace) {
  switch (trace.read.fault) {
    case TraceFault::kCannotRead:
      return kExitCannotRead;
    case TraceFault::kNotATrace:
      return kExitNotATrace;
    case TraceFault::kNewerVersion:
      return kExitNewerVersion;
    case TraceFault::kNone:
      break;
  }
  const RecoveryReport::State state = trace.read.recovery.state;
  const bool rings_damaged =
      state == RecoveryReport::State::kDamaged || state == RecoveryReport::State::kUnreadable;
  return trace.read.damage.any() || rings_damaged ? kExitDamaged : kExitOk;
}

}  // namespace gpumemtrace::analyzer
