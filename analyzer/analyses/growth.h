// Ranks what grows over the steps of a run and says what kind of growth each is.
#pragma once

#include <vector>

#include "analyzer/analyses/collector.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/places.h"

namespace gpumemtrace::analyzer {

// Leaks first, by bytes per step; then growth with a harmless explanation.
std::vector<GrowthFinding> FindGrowth(Collector& collector, Places& places, const Steps& steps);

// Adds what leaks in the loop of a later phase and is still there at the end of the run; `growth` stays in
// its order.
void AddLaterLeaks(Collector& collector, Places& places, const Steps& later,
                   std::vector<GrowthFinding>& growth);

}  // namespace gpumemtrace::analyzer
