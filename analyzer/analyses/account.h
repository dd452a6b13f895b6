// The account of a device: blocks + cache + other libraries + unattributed = used. And what the pools, the
// failures and the misuses amount to.
#pragma once

#include <vector>

#include "analyzer/analyses/collector.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/places.h"

namespace gpumemtrace::analyzer {

std::vector<DeviceAccount> MakeAccounts(Collector& collector, const Steps& steps);
std::vector<FragmentationFinding> FindFragmentation(Collector& collector, Places& places, const Steps& steps);
std::vector<OutOfMemoryFinding> ExplainOutOfMemory(Collector& collector, Places& places, const Steps& steps);
std::vector<ErrorFinding> FindErrors(Collector& collector, Places& places, const Steps& steps);

}  // namespace gpumemtrace::analyzer
