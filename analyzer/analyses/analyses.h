// All analyses of one trace. They watch the ledger while the trace is read, in memory bounded by the live set
// and the number of distinct stacks, and conclude afterwards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "analyzer/analyses/findings.h"
#include "analyzer/ledger/ledger.h"
#include "analyzer/symbols/symbolizer.h"

namespace gpumemtrace::analyzer {

struct AnalysesOptions {
  // Path prefixes of source files that are the user's own although they look like a library's.
  std::vector<std::string> user_code;
  // Lines of a suppression file: "leak:<pattern>" as in LeakSanitizer; '#' begins a comment.
  std::vector<std::string> suppressions;
  // Take these NVTX ranges as steps, whatever else is there.
  std::string step_range;
  // Event indices, ascending: note what is live just before each.
  std::vector<uint64_t> snapshots;
};

class Analyses {
 public:
  // Registers observers at `ledger`; both must live until Conclude.
  Analyses(Ledger& ledger, const AnalysesOptions& options);
  ~Analyses();
  Analyses(const Analyses&) = delete;
  Analyses& operator=(const Analyses&) = delete;

  // Call once after Ledger::Finish.
  void Conclude(Symbolizer& symbols);

  const Findings& findings() const { return findings_; }
  // For what is known only later: TellBytesByCensus.
  Findings& findings() { return findings_; }

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
  Findings findings_;
};

}  // namespace gpumemtrace::analyzer
