// Decides what a step of this run is: marks, ranges, loops around the optimizer or around allocations, or the
// repetition of the event stream.
#pragma once

#include "analyzer/analyses/collector.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/places.h"

namespace gpumemtrace::analyzer {

Steps FindSteps(Collector& collector, Places& places, const std::string& wanted_range);

}  // namespace gpumemtrace::analyzer
