// Decides what a step of this run is: marks, ranges, loops around the optimizer or around allocations, or the
// repetition of the event stream.
#pragma once

#include <string>
#include <vector>

#include "analyzer/analyses/collector.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/places.h"

namespace gpumemtrace::analyzer {

// A moment with its place among the steps, where there are any.
Moment MomentOf(uint64_t index, uint64_t time_us, const Steps& steps);

struct FoundSteps {
  Steps steps;
  // Further loops of comparable work that come after these: another phase of the program.
  std::vector<Steps> later;
};
FoundSteps FindSteps(Collector& collector, Places& places, const std::string& wanted_range);

}  // namespace gpumemtrace::analyzer
