// Bytes of a leak that the allocators do not show but Python does: frameworks whose pool has no hook (JAX)
// are seen to keep one handle for each array, and a census names the arrays.
#pragma once

#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/holders.h"

namespace gpumemtrace::analyzer {

// Call after Holders::Conclude. For growth whose bytes are unknown: when a collection of tensors is as large
// as what grew, its bytes per tensor are taken, the finding says where they come from, and the verdict is
// told anew.
void TellBytesByCensus(const Holders& holders, Findings& findings);

}  // namespace gpumemtrace::analyzer
