// Make-believe programs with known truth: leaks of many kinds, growth that is none, peaks, fragmentation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/synthetic/program.h"

namespace gpumemtrace::synthetic {

struct Truth {
  std::string verdict;          // leak, fragmentation, peak, clean
  std::vector<uint32_t> lines;  // one of them must be named; empty = none need be
  double bytes_per_step = 0;    // exact where not 0
  uint64_t steps = 0;           // 0 = not checked
};

struct Scenario {
  std::string name;
  std::function<Truth(Program&, uint64_t seed)> run;
};

const std::vector<Scenario>& Scenarios();

// A plain training loop for benchmarks: about `events` events, with a small leak when `leak_bytes` is not 0.
void TrainingLoop(Program& program, uint64_t events, uint64_t leak_bytes);

}  // namespace gpumemtrace::synthetic
