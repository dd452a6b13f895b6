// Who keeps a leak, in words. Shared by the headline, the list of what grows and the list of holders.
//
// Several growing lines are often kept by one thing (a list keeps results and, through their autograd graph,
// inputs): the growths of one keeper are told, counted and mended together. The first of them, the one that
// leaks most, stands for all.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analyzer/analyzed_trace.h"

namespace gpumemtrace::analyzer {

// Holders that are one container, or differ in the last key only ("kept[…]['a']", "kept[…]['b']"), as one
// with the sums of all; largest first.
std::vector<HeldBy> JoinHolders(const std::vector<HeldBy>& holders);

// Indices in Findings::growth of the leaks that the keeper of `growth` keeps, most bytes first; `growth`
// alone when no census met it or nothing else has its keeper. Never empty.
std::vector<size_t> SameKeeper(const AnalyzedTrace& trace, size_t growth);

// How a growth is kept, as far as remedies ask.
bool KeptByGraph(const HeldBy& held);

// Lines that say who keeps the memory of Findings::growth[growth], largest share first, without indentation;
// empty when no census met it.
std::vector<std::string> HolderRows(const AnalyzedTrace& trace, size_t growth, size_t most);
// What keeps all of `growths` (see SameKeeper) in parts, for the headline: who, where it stores ("" = not
// known), and what.
struct HolderParts {
  std::string who;
  std::string stores;
  std::string facts;
};
// Empty `who` when no census met it, or no Python object keeps it.
HolderParts KeeperOf(const AnalyzedTrace& trace, const std::vector<size_t>& growths);
// "39 tensors" or, where several share their memory, "39 blocks (shared by 78 tensors)".
std::string CountText(const AnalyzedTrace& trace, const HeldBy& held);
nlohmann::ordered_json HeldJson(const HeldBy& held);
// Adds "held_by" (the largest share: text, file, line, …) and "holders" (all) to a finding.
void AddHolders(const AnalyzedTrace& trace, size_t growth, nlohmann::ordered_json& json);

}  // namespace gpumemtrace::analyzer
