// The report is a list of sections; a section is one file in this folder that says the same thing as text for
// people and as JSON for programs. sections.cc holds the list and its order.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "analyzer/report/text.h"

namespace gpumemtrace::analyzer {

struct AnalyzedTrace;

struct Section {
  // For `--section`, e.g. "peak".
  std::string_view name;
  // Writes nothing when there is nothing to say. `detail` ≥ 1 (option -v): more rows, whole stacks.
  void (*text)(const AnalyzedTrace& trace, int detail, TextWriter& out);
  // Adds keys to the object of this trace. Bytes are exact numbers, times are seconds since the start.
  void (*json)(const AnalyzedTrace& trace, nlohmann::ordered_json& out);
};

}  // namespace gpumemtrace::analyzer
