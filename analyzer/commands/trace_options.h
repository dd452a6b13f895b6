// Command-line options that every command has which reads traces, and the reading itself with its progress
// line.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "analyzer/analyzed_trace.h"

namespace gpumemtrace::analyzer {

class TraceOptions {
 public:
  void AddTo(CLI::App& command);

  // Prints one line on stderr and returns null when the trace cannot be read at all; then `exit_code` says
  // why. Else `exit_code` is that of ExitCodeOf.
  // `snapshots`: as in AnalysesOptions.
  std::unique_ptr<AnalyzedTrace> Read(const std::string& path, int& exit_code,
                                      const std::vector<uint64_t>& snapshots = {}) const;

 private:
  AnalyzeOptions options_;
  std::string suppressions_file_;
  bool no_symbols_ = false;
  bool no_rings_ = false;
};

// Quotes nothing, adds the program's name: the one form of all error lines.
void PrintError(const std::string& message);

}  // namespace gpumemtrace::analyzer
