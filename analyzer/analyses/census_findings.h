// What a census adds to the findings of the other analyses: the allocator's rounding, and what would free a
// leak whose holder is known.
#pragma once

#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/holders.h"

namespace gpumemtrace::analyzer {

// Both after Holders::Conclude.
void TellRounding(const Holders& holders, Findings& findings);
void TellRemedies(const Holders& holders, Findings& findings);

}  // namespace gpumemtrace::analyzer
