// Graphs that own memory: which graph and executable handles have allocation nodes.
#pragma once

#include <cstdint>

#include "interpose/record.h"

namespace gpumemtrace::interpose::driver {

// A captured or added allocation node: an address that becomes memory when the graph is launched.
void RecordGraphAllocation(const Proof& proof, uint64_t address, uint64_t size, uint64_t graph, uint64_t node,
                           int device);
void RecordGraphFree(const Proof& proof, uint64_t address, uint64_t graph, uint64_t node);

}  // namespace gpumemtrace::interpose::driver
