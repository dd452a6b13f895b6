// Leaks of handles, with the memory that they stand for: a JAX array in a pool that no hook sees leaves one
// event behind, and only the census knows its size and who keeps it.
#pragma once

#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/holders.h"

namespace gpumemtrace::analyzer {

// Call after Holders::Conclude. Where as many tensors of one collection were alive as handles grew, that
// collection tells the bytes of the finding and keeps it (Holders::HoldersOf). An inference, and called so:
// GrowthFinding::bytes_from, HeldBy::reason. A finding that becomes a leak by it changes the verdict.
void TellBytesByCensus(Holders& holders, Findings& findings);

}  // namespace gpumemtrace::analyzer
