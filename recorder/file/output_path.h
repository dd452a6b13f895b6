// The name of the trace file: default, pattern, and what to do when the name is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace gpumemtrace::recorder {

struct OutputName {
  // GPUMEMTRACE_OUT; "" = the default name.
  const char* pattern = "";
  const char* host_name = "";
  int64_t process_id = 0;
  std::optional<uint32_t> rank;
};

// Writes the name for the `attempt`-th try, 1 for the first, zero-terminated into `path`: trace.pb,
// trace.2.pb, trace.3.pb, … False when it does not fit.
bool OutputPath(const OutputName& name, unsigned attempt, char* path, size_t capacity);

}  // namespace gpumemtrace::recorder
