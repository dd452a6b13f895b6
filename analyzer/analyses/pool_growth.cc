#include "analyzer/analyses/pool_growth.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gpumemtrace::analyzer {

bool JudgePool(const History& history, const Steps& steps, double last_step, Trend& trend) {
  const auto& regions = history.intervals();
  if (regions.size() < 3 || regions.size() > 64 || regions.front().weight != 1) return false;
  int larger = 0;
  for (size_t i = 1; i < regions.size(); ++i) {
    if (regions[i].weight != 1) return false;
    if (regions[i].bytes_min < regions[i - 1].bytes_max) return false;  // one was given back
    const uint64_t before = regions[i - 1].bytes_max - regions[i - 1].bytes_min;
    const uint64_t size = regions[i].bytes_max - regions[i].bytes_min;
    if (size < before) return false;
    if (size * 2 >= before * 3) ++larger;
  }
  if (larger < 2) return false;
  // The regions that lasted for some steps; what came at once in the beginning is warm-up.
  std::vector<double> rates;
  double bytes = 0;
  double lasted = 0;
  double first = -1;
  for (size_t i = 0; i + 1 < regions.size(); ++i) {
    const double from = steps.StepAt(regions[i].index);
    const double until = steps.StepAt(regions[i + 1].index);
    if (from < 0 || std::floor(until) - std::floor(from) < 2) continue;
    const double size = static_cast<double>(regions[i].bytes_max - regions[i].bytes_min);
    const double steps_lasted = std::floor(until) - std::floor(from);
    rates.push_back(size / steps_lasted);
    bytes += size;
    lasted += steps_lasted;
    if (first < 0) first = std::floor(from);
  }
  if (rates.size() < 2) return false;
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  trend = Trend{};
  trend.grows = true;
  trend.points = regions.size();
  trend.rises = regions.size();
  trend.since_step = first;
  trend.until_step = std::floor(steps.StepAt(regions.back().index));
  trend.grown_bytes = regions.back().bytes_max - regions.front().bytes_min;
  trend.grown_count = regions.size();
  trend.bytes_per_step = bytes / lasted;
  const double last_size = static_cast<double>(regions.back().bytes_max - regions.back().bytes_min);
  trend.still_growing = last_step - trend.until_step <= 1.5 * last_size / trend.bytes_per_step + 1;
  // A steady rate that goes on is a leak; a falling one is a pool that has found its size.
  const bool steady = *most <= 2 * *least || rates.back() >= 0.5 * *most;
  trend.kind = !trend.still_growing ? GrowthKind::kSaturated
               : steady             ? GrowthKind::kLeak
                                    : GrowthKind::kSlowing;
  trend.confidence = *most <= 1.3 * *least ? 0.85 : 0.6;
  return true;
}

}  // namespace gpumemtrace::analyzer
