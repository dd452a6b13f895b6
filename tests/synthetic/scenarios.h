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
  bool each_line = false;       // every one of `lines` must be named, not only one
};

struct Scenario {
  std::string name;
  std::function<Truth(Program&, uint64_t seed)> run;
};

const std::vector<Scenario>& Scenarios();

// A plain training loop for benchmarks.
struct LoopOptions {
  uint64_t events = 1'000'000;  // about
  uint64_t layers = 100;        // of the model: stacks and live blocks
  uint64_t shapes = 32;         // distinct batch sizes, in random order; 1 = all steps alike
  uint64_t leak_bytes = 512;    // 0 = nothing is kept
  uint64_t leak_every = 100;    // steps; what is kept is the live set that the analyzer must hold
};
void TrainingLoop(Program& program, const LoopOptions& options);

}  // namespace gpumemtrace::synthetic
