#include "analyzer/analyses/trend.h"

#include <algorithm>
#include <cmath>

namespace gpumemtrace::analyzer {
namespace {

// Rises in fewer distinct steps than this are one-offs: late state, plans, workspaces.
constexpr uint64_t kFewestRises = 3;
// The chance, were the growth still going on, that it shows nothing for so long: below it, it has ended.
constexpr double kEnded = 0.02;
// Nor is it taken to have ended by a silence less than twice as long as one that it has had before, unless
// that is rarer.
constexpr double kSurelyEnded = 1e-5;
// Growth in the later half below this part of that in the earlier half: a cache that fills up. With many
// rises less is left to chance, and growth with the square root of the steps (0.41) is told as well.
constexpr double kSlowing = 0.34;
constexpr double kSlowingOfMany = 0.45;
constexpr uint64_t kManyRises = 40;
// So many rises tell what a step adds from what came once.
constexpr size_t kRisesForPortions = 8;
// Falls of the level, from step to step, that tell work in flight from growth.
constexpr uint64_t kFewestFalls = 5;

double Chance(uint64_t rises, double steps, double quiet) {
  // Laplace's rule for the chance of a rise per step, from what was seen while it grew.
  const double rate = std::min(0.999, (static_cast<double>(rises) + 1.0) / (std::max(1.0, steps) + 2.0));
  return std::pow(1.0 - rate, quiet);
}

// Takes from the rate and from what has grown by what came once, if all else came in equal portions.
void SetAside(const std::vector<size_t>& rises, const std::vector<uint64_t>& count,
              const std::vector<uint64_t>& bytes, double span, Trend& trend) {
  std::vector<uint64_t> portions;
  portions.reserve(rises.size());
  for (size_t i : rises) portions.push_back(bytes[i] - std::min(bytes[i], bytes[i - 1]));
  std::vector<uint64_t> sorted = portions;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2),
                   sorted.end());
  const uint64_t median = sorted[sorted.size() / 2];
  const auto equal = static_cast<size_t>(std::count(portions.begin(), portions.end(), median));
  if (median == 0 || equal * 10 < portions.size() * 7) return;
  // Of the commonest portion.
  uint64_t objects = 0;
  for (size_t r = 0; r < rises.size() && objects == 0; ++r) {
    if (portions[r] == median) objects = count[rises[r]] - count[rises[r] - 1];
  }
  uint64_t once_in_span = 0;
  uint64_t count_in_span = 0;
  for (size_t r = 0; r < rises.size(); ++r) {
    if (portions[r] < 4 * median) continue;
    const uint64_t once = portions[r] - median;
    const uint64_t came = count[rises[r]] - std::min(count[rises[r]], count[rises[r] - 1]);
    const uint64_t once_count = came - std::min(came, objects);
    trend.once_bytes += once;
    trend.once_count += once_count;
    if (r == 0) continue;  // the rate is taken after the first rise
    once_in_span += once;
    count_in_span += once_count;
  }
  trend.grown_bytes -= std::min(trend.grown_bytes, trend.once_bytes);
  trend.grown_count -= std::min(trend.grown_count, trend.once_count);
  if (span <= 0) return;
  trend.bytes_per_step -= static_cast<double>(once_in_span) / span;
  trend.count_per_step -= static_cast<double>(count_in_span) / span;
}

}  // namespace

double TheilSenSlope(const std::vector<std::pair<double, double>>& points) {
  std::vector<std::pair<double, double>> chosen;
  constexpr size_t kMost = 300;
  if (points.size() <= kMost) {
    chosen = points;
  } else {
    for (size_t i = 0; i < kMost; ++i) chosen.push_back(points[i * (points.size() - 1) / (kMost - 1)]);
  }
  std::vector<double> slopes;
  slopes.reserve(chosen.size() * chosen.size() / 2);
  for (size_t i = 0; i < chosen.size(); ++i) {
    for (size_t j = i + 1; j < chosen.size(); ++j) {
      if (chosen[j].first > chosen[i].first) {
        slopes.push_back((chosen[j].second - chosen[i].second) / (chosen[j].first - chosen[i].first));
      }
    }
  }
  if (slopes.empty()) return 0;
  std::nth_element(slopes.begin(), slopes.begin() + static_cast<std::ptrdiff_t>(slopes.size() / 2),
                   slopes.end());
  return slopes[slopes.size() / 2];
}

Trend JudgeTrend(const std::vector<FloorPoint>& floors, double last_step, TrendBy by) {
  Trend trend;
  trend.points = floors.size();
  if (floors.size() < 2) return trend;
  const size_t n = floors.size();
  // What survives for good: the least of everything that comes later. Saw-teeth vanish in it.
  std::vector<uint64_t> count(n);
  std::vector<uint64_t> bytes(n);
  count[n - 1] = floors[n - 1].count;
  bytes[n - 1] = floors[n - 1].bytes;
  for (size_t i = n - 1; i-- > 0;) {
    count[i] = std::min(floors[i].count, count[i + 1]);
    bytes[i] = std::min(floors[i].bytes, bytes[i + 1]);
  }
  std::vector<uint64_t>& measure = by == TrendBy::kCount ? count : bytes;
  const auto raw = [&](size_t i) { return by == TrendBy::kCount ? floors[i].count : floors[i].bytes; };

  // By count nothing may stay while each object is larger than before.
  if (by == TrendBy::kCount && measure[n - 1] == measure[0] && bytes[n - 1] > bytes[0]) {
    trend = JudgeTrend(floors, last_step, TrendBy::kBytes);
    if (trend.grows && trend.kind == GrowthKind::kLeak) trend.kind = GrowthKind::kLongerSteps;
    return trend;
  }

  // The height of earlier teeth: falls of the raw curve to near its floor.
  uint64_t tooth = 0;
  uint64_t teeth = 0;
  double longest = 0;      // of the teeth, in steps
  size_t tooth_begin = 0;  // where the last, unfinished tooth began
  {
    uint64_t low = raw(0);
    uint64_t high = raw(0);
    for (size_t i = 1; i < n; ++i) {
      const uint64_t value = raw(i);
      if (high > low && value < high && high - value > (high - low) / 2) {
        tooth = std::max(tooth, high - low);
        longest = std::max(longest, floors[i].step - floors[tooth_begin].step);
        ++teeth;
        low = value;
        high = value;
        tooth_begin = i;
      }
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }

  // The last tooth is not finished: while it is no higher and no longer than the others were, nothing in it
  // tells growth from a tooth, so what stands before it is judged alone.
  double known_until = last_step;
  const bool unfinished =
      teeth >= 1 &&
      static_cast<double>(measure[n - 1] - measure[tooth_begin]) <= 1.3 * static_cast<double>(tooth) &&
      floors[n - 1].step - floors[tooth_begin].step <= 1.5 * longest + 1;
  if (unfinished && measure[n - 1] > measure[tooth_begin]) {
    known_until = floors[tooth_begin].step;
    for (size_t i = tooth_begin + 1; i < n; ++i) {
      count[i] = std::min(count[i], count[tooth_begin]);
      bytes[i] = std::min(bytes[i], bytes[tooth_begin]);
    }
  }

  std::vector<size_t> rises;
  for (size_t i = 1; i < n; ++i) {
    if (measure[i] > measure[i - 1]) rises.push_back(i);
  }
  trend.grown_count = count[n - 1] - count[0];
  trend.grown_bytes = bytes[n - 1] - std::min(bytes[0], bytes[n - 1]);
  trend.rises = rises.size();
  if (rises.empty()) {
    if (known_until < last_step || (teeth >= 2 && tooth > raw(0))) {
      trend.grows = true;
      trend.kind = GrowthKind::kSawtooth;
      trend.confidence = teeth >= 2 ? 0.9 : 0.8;
    }
    return trend;
  }
  trend.grows = true;
  const size_t first = rises.front();
  const size_t last = rises.back();
  const double first_step = floors[first].step;
  const double end_step = floors[last].step;
  trend.since_step = floors[first - 1].step;
  trend.until_step = end_step;

  // Rate between the first and the last rise.
  const double span = end_step - first_step;
  if (span > 0) {
    trend.count_per_step = static_cast<double>(count[last] - count[first]) / span;
    trend.bytes_per_step = (static_cast<double>(bytes[last]) - static_cast<double>(bytes[first])) / span;
  }

  if (rises.size() < kFewestRises) {
    // One object more than in the beginning, but the growth is in how large they are.
    if (by == TrendBy::kCount && trend.grown_count <= 2) {
      const Trend sizes = JudgeTrend(floors, last_step, TrendBy::kBytes);
      if (sizes.grows && sizes.kind == GrowthKind::kLeak && sizes.rises >= kRisesForPortions) {
        trend = sizes;
        trend.kind = GrowthKind::kLongerSteps;
        return trend;
      }
    }
    trend.kind = GrowthKind::kOneOff;
    trend.confidence = 0.8;
    return trend;
  }

  // Work in flight goes up and down at random, and may stand higher at the end than in the beginning. Were
  // that growth, the level would not have fallen by half as much before.
  if (by == TrendBy::kCount) {
    uint64_t ups = 0;
    uint64_t falls = 0;
    uint64_t highest = raw(0);
    uint64_t deepest = 0;  // largest fall below what was reached before
    for (size_t i = 1; i < n; ++i) {
      ups += raw(i) > raw(i - 1) ? 1u : 0u;
      falls += raw(i) < raw(i - 1) ? 1u : 0u;
      highest = std::max(highest, raw(i));
      deepest = std::max(deepest, highest - raw(i));
    }
    if (falls >= kFewestFalls && falls * 2 >= ups && 2 * deepest >= measure[n - 1] - measure[0]) {
      trend.kind = GrowthKind::kSawtooth;
      trend.confidence = 0.7;
      return trend;
    }
  }

  if (rises.size() < 6) {
    // A few rises make a leak only when they are dense, or a staircase with even treads that goes on.
    double least = 1e300;
    double most = 0;
    for (size_t i = 1; i < rises.size(); ++i) {
      const double gap = floors[rises[i]].step - floors[rises[i - 1]].step;
      least = std::min(least, gap);
      most = std::max(most, gap);
    }
    const bool dense = static_cast<double>(rises.size()) * 2 >= end_step - trend.since_step;
    const bool even = most <= 1.5 * least && known_until - end_step <= 1.5 * most;
    if (!even && !(dense && known_until - end_step <= 2)) {
      trend.kind = GrowthKind::kOneOff;
      trend.confidence = 0.7;
      return trend;
    }
  }

  // What a step leaves behind shows when the next one allocates, so the last step may be silent.
  const double quiet = std::max(0.0, known_until - end_step - 1);
  double longest_gap = 0;
  for (size_t i = 1; i < rises.size(); ++i)
    longest_gap = std::max(longest_gap, floors[rises[i]].step - floors[rises[i - 1]].step);
  const double chance = Chance(rises.size(), end_step - trend.since_step, quiet);
  trend.still_growing = chance >= kEnded || (chance >= kSurelyEnded && quiet < 2 * longest_gap);
  if (!trend.still_growing) {
    // Many rises that then stop: something filled up. Few: state that came in parts.
    trend.kind = rises.size() <= 3 ? GrowthKind::kOneOff : GrowthKind::kSaturated;
    trend.confidence = 1.0 - Chance(rises.size(), end_step - trend.since_step, quiet);
    return trend;
  }

  if (rises.size() >= 6) {
    const double middle = (first_step + known_until) / 2;
    uint64_t early = 0;
    uint64_t late = 0;
    for (size_t i : rises) {
      (floors[i].step <= middle ? early : late) += measure[i] - measure[i - 1];
    }
    const double slowing = rises.size() >= kManyRises ? kSlowingOfMany : kSlowing;
    if (static_cast<double>(late) < slowing * static_cast<double>(early)) {
      trend.kind = GrowthKind::kSlowing;
      trend.confidence = 0.7;
      return trend;
    }
  }
  trend.kind = GrowthKind::kLeak;

  // Portions that are nearly all alike, and one or two far larger ones: a workspace, say, that the line made
  // once beside what it keeps of every step. These are no part of the rate.
  if (rises.size() >= kRisesForPortions) SetAside(rises, count, bytes, span, trend);

  // One large jump among many small rises is state, not rate: the median of slopes does not see it.
  std::vector<std::pair<double, double>> curve;
  for (size_t i = first; i <= last; ++i) curve.emplace_back(floors[i].step, static_cast<double>(bytes[i]));
  const double slope = TheilSenSlope(curve);
  if (slope > 0 && std::abs(slope - trend.bytes_per_step) > 0.25 * trend.bytes_per_step &&
      rises.size() >= 8 && trend.once_bytes == 0) {
    trend.bytes_per_step = slope;
    const double steps = end_step - trend.since_step;
    trend.grown_bytes = std::min(trend.grown_bytes, static_cast<uint64_t>(std::llround(slope * steps)));
    std::vector<std::pair<double, double>> counts;
    for (size_t i = first; i <= last; ++i) counts.emplace_back(floors[i].step, static_cast<double>(count[i]));
    const double count_slope = TheilSenSlope(counts);
    if (count_slope > 0) {
      trend.count_per_step = count_slope;
      trend.grown_count =
          std::min(trend.grown_count, static_cast<uint64_t>(std::llround(count_slope * steps)));
    }
  }
  trend.confidence = 1.0 - std::pow(0.5, static_cast<double>(rises.size()) / 2.0);
  return trend;
}

}  // namespace gpumemtrace::analyzer
