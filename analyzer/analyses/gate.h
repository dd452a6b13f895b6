// The gate of `gpumem-analyze check`: limits and a baseline against what was found in a trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analyzer/analyses/findings.h"

namespace gpumemtrace::analyzer {

struct Limits {
  std::optional<uint64_t> peak;           // bytes of tensors, else of driver allocations, on any device
  std::optional<uint64_t> reserved;       // bytes that caching allocators hold
  std::optional<uint64_t> used;           // bytes that the device itself reports
  std::optional<uint64_t> growth;         // bytes per step, all leaks together
  std::optional<uint64_t> unattributed;   // bytes at the end
  std::optional<uint64_t> fragmentation;  // bytes in holes at the worst moment
  bool no_leak = false;
  bool no_out_of_memory = false;
  double tolerance = 0;  // above the baseline
};

// What a gate looks at, of one trace.
struct GateFigures {
  uint64_t peak = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;
  double growth = 0;
  int64_t unattributed = 0;
  uint64_t fragmentation = 0;
  uint64_t out_of_memory = 0;
  std::string growth_place;
  std::string peak_place;
  bool used_measured = false;
  bool growth_judged = false;  // enough steps to tell growth
};

struct Violation {
  std::string what;  // "peak", "growth", …
  double found = 0;
  double limit = 0;
  bool per_step = false;
  std::string place;   // where to look
  std::string source;  // "limit" or "baseline"
  // How far above the limit, as a ratio: the worst come first.
  double excess = 0;
};

struct GateResult {
  std::vector<Violation> violations;  // worst first
  std::vector<std::string> unjudged;  // limits that could not be checked, and why
};

GateFigures Figures(const Findings& findings);
GateResult Check(const GateFigures& figures, const Findings& findings, const Limits& limits,
                 const GateFigures* baseline);

}  // namespace gpumemtrace::analyzer
