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
  bool workspace = false;
  bool certain = false;  // the stack says it; else it is only likely
};

struct NativePlace {
  std::string_view function;
  std::string_view module;
};
// What the native part of a stack, innermost first, says; certain = false when it says nothing.
UnheldReason ReasonOfStack(std::span<const NativePlace> stack);

UnheldReason WhyNoObject(const TraceModel& model, SiteId site, Symbolizer& symbols);

}  // namespace gpumemtrace::analyzer
