// Why memory can be alive although no Python object refers to it, told from the functions on its stack.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "analyzer/symbols/symbolizer.h"
#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

struct UnheldReason {
  std::string text;  // a sentence's part: "a cuBLAS workspace, which PyTorch keeps per handle and stream"
  std::string next;  // what would free it, likewise: "destroying the plan"; empty = nothing is known
  bool workspace = false;
  bool certain = false;  // the stack says it; else it is only likely
};

struct NativePlace {
  std::string_view function;
  std::string_view module;
};
// What the native part of a stack, innermost first, says; certain = false when it says nothing.
UnheldReason ReasonOfStack(std::span<const NativePlace> stack);

// `one_per_stream`: there are several, and each was born on another stream.
UnheldReason WhyNoObject(const TraceModel& model, SiteId site, bool one_per_stream, Symbolizer& symbols);

}  // namespace gpumemtrace::analyzer
