// Which framework made a piece of memory, so that the report speaks in its words.
#pragma once

#include <cstdint>
#include <string_view>

#include "analyzer/analyzed_trace.h"

namespace gpumemtrace::analyzer {

enum class Framework : uint8_t { kOther, kPyTorch, kJax, kCuPy };

// Of the memory of one growth: by the library that asked for it and the stacks of its births, else by what
// the whole process loaded, where that is one of them only.
Framework FrameworkOf(const AnalyzedTrace& trace, const GrowthFinding& growth);

// What this process's frameworks call the objects that hold device memory: "tensor", or "array" where PyTorch
// was not loaded and JAX or CuPy was.
std::string_view TensorNoun(const TraceModel& model);

}  // namespace gpumemtrace::analyzer
