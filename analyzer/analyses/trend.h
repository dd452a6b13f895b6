// Judges a curve over steps: does its floor rise in step after step until the end (a leak), or does the rise
// have another explanation? Knows nothing of memory beyond "bytes" and "count".
#pragma once

#include <cstdint>
#include <vector>

#include "analyzer/analyses/findings.h"

namespace gpumemtrace::analyzer {

// What is left of something in one step: the least that was alive at any moment of it.
struct FloorPoint {
  double step = 0;
  uint64_t bytes = 0;
  uint64_t count = 0;
};

struct Trend {
  // kLeak, kSaturated, kSlowing, kOneOff, kSawtooth, kLongerSteps; meaningless when !grows.
  GrowthKind kind = GrowthKind::kOneOff;
  bool grows = false;
  bool still_growing = false;
  double bytes_per_step = 0;
  double count_per_step = 0;
  double since_step = 0;
  double until_step = 0;
  uint64_t grown_bytes = 0;
  uint64_t grown_count = 0;
  // Came at once beside it and stayed; in none of the figures above.
  uint64_t once_bytes = 0;
  uint64_t once_count = 0;
  uint64_t rises = 0;
  uint64_t points = 0;
  double confidence = 0;
};

enum class TrendBy : uint8_t { kCount, kBytes };

// `floors` ascending by step, one per step in which there is anything to see; `last_step` is the last step of
// the run. By count: objects that stay are what grows, sizes may vary. By bytes: one quantity, e.g. reserved
// memory.
Trend JudgeTrend(const std::vector<FloorPoint>& floors, double last_step, TrendBy by);

// Median of the slopes between all pairs (Theil–Sen); of at most a few hundred points, evenly chosen.
double TheilSenSlope(const std::vector<std::pair<double, double>>& points);

}  // namespace gpumemtrace::analyzer
