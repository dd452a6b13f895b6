// One headline for a trace: leak, fragmentation, peak or clean, with the lines to look at.
#pragma once

#include "analyzer/analyses/findings.h"

namespace gpumemtrace::analyzer {

// From everything else in `findings`. `gaps`: lost parts of the trace.
Verdict MakeVerdict(const Findings& findings, uint64_t changes, uint64_t gaps);

}  // namespace gpumemtrace::analyzer
