// The parts of Scenarios(), one for each file of scenarios.
#pragma once

#include <vector>

#include "tests/synthetic/scenarios.h"

namespace gpumemtrace::synthetic {

// Training loops whose phases differ: evaluation, epochs, garbage collection, late and short.
std::vector<Scenario> PhaseScenarios();
// Several devices and threads, libraries, programs without a framework.
std::vector<Scenario> DeviceScenarios();
// Leaks and controls that differ in how they grow: in portions, with noise, slowly, beside others.
std::vector<Scenario> GrowthScenarios();
// What frameworks and libraries keep by themselves: graphs, plans, pools, state, copies of weights.
std::vector<Scenario> LibraryScenarios();
// A library that runs the loop, notebooks, several models, rarer kinds of memory.
std::vector<Scenario> HabitScenarios();

}  // namespace gpumemtrace::synthetic
