// Composition of the highest moment of each device, the next-highest distinct ones, what is live at the end,
// and what would lower the peak.
#pragma once

#include <vector>

#include "analyzer/analyses/collector.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/places.h"

namespace gpumemtrace::analyzer {

std::vector<PeakFinding> FindPeaks(Collector& collector, Places& places, const Steps& steps);
std::vector<LiveFinding> FindLive(Collector& collector, Places& places);
std::vector<PeakAdvice> AdvisePeaks(Collector& collector, Places& places, const Steps& steps,
                                    const std::vector<PeakFinding>& peaks);

// True when the origin's memory counts in a peak of this level on this device.
bool CountsInPeak(const Collector& collector, OriginId origin, Level level, int32_t device);

}  // namespace gpumemtrace::analyzer
