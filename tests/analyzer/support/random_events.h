// Random events of all kinds, as a program with a caching allocator, virtual memory, graphs and handles makes
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/analyzer/support/trace_builder.h"

namespace gpumemtrace::tests {

// `wild`: also what should not happen: frees of unknown addresses, reuse of live ones, failed calls, partial
// unmaps.
std::vector<BuiltEvent> RandomEvents(uint64_t seed, size_t count, bool wild);

}  // namespace gpumemtrace::tests
