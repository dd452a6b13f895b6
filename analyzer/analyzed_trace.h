// One trace, read and analyzed: what every command starts from.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analyzer/analyses/analyses.h"
#include "analyzer/analyses/holders.h"
#include "analyzer/exit_codes.h"
#include "analyzer/ledger/ledger.h"
#include "analyzer/symbols/symbolizer.h"
#include "analyzer/trace/model.h"
#include "analyzer/trace/reader.h"

namespace gpumemtrace::analyzer {

struct AnalyzeOptions {
  ReaderOptions reader;
  SymbolizerOptions symbols;
  AnalysesOptions analyses;
};

struct AnalyzedTrace {
  explicit AnalyzedTrace(const AnalyzeOptions& options);
  AnalyzedTrace(const AnalyzedTrace&) = delete;
  AnalyzedTrace& operator=(const AnalyzedTrace&) = delete;

  std::string path;
  TraceModel model;
  Ledger ledger;
  // Caches what it finds, so reports need it non-const.
  mutable Symbolizer symbols;
  Analyses analyses;
  Holders holders;
  ReadResult read;
};

// Reads and analyzes; look at `read.fault` first.
std::unique_ptr<AnalyzedTrace> Analyze(const std::string& path, const AnalyzeOptions& options);

// The same for a trace in memory; `name` stands for the path.
std::unique_ptr<AnalyzedTrace> AnalyzeBytes(std::span<const char> bytes, const std::string& name,
                                            const AnalyzeOptions& options);

// What a command that only reports exits with for this trace.
int ExitCodeOf(const AnalyzedTrace& trace);

}  // namespace gpumemtrace::analyzer
