// How holders look in text and JSON; shared by the section about holders and that about growth.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analyzer/analyzed_trace.h"

namespace gpumemtrace::analyzer {

// Lines that say who keeps the memory of Findings::growth[growth], largest share first, without indentation;
// empty when no census met it.
std::vector<std::string> HolderRows(const AnalyzedTrace& trace, size_t growth, size_t most);
// The first of them in parts, for the headline: who, where it stores ("" = not known), and what.
struct HolderParts {
  std::string who;
  std::string stores;
  std::string facts;
};
// Empty `who` when no census met it, or no Python object keeps it.
HolderParts FirstHolder(const AnalyzedTrace& trace, size_t growth);
// What would free it, in terms of who keeps it where a census saw that: "bounding train.losses, …".
std::string WhatFrees(const AnalyzedTrace& trace, size_t growth);
// Adds "held_by" (the largest share: text, file, line, …) and "holders" (all) to a finding.
void AddHolders(const AnalyzedTrace& trace, size_t growth, nlohmann::ordered_json& json);

}  // namespace gpumemtrace::analyzer
