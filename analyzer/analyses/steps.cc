#include "analyzer/analyses/steps.h"

#include <algorithm>
#include <string>

namespace gpumemtrace::analyzer {
namespace {

constexpr uint64_t kFewestSteps = 4;
// With no steps to be found, growth is looked at over this many equal parts of the run.
constexpr uint64_t kSlices = 64;
// A later phase is judged by itself when it is at least so long, and half the work of the one before it.
constexpr uint64_t kFewestLaterSteps = 16;

void TakeVisits(const Visits& visits, uint64_t last_index, uint64_t last_time_us, Steps& steps) {
  for (const Visits::Position& position : visits.positions()) {
    steps.begin_index.push_back(position.index);
    steps.begin_time_us.push_back(position.time_us);
  }
  steps.count = visits.count();
  steps.stride = visits.stride();
  steps.end_index = std::max(last_index, steps.begin_index.empty() ? 0 : steps.begin_index.back());
  steps.end_time_us = std::max(last_time_us, steps.begin_time_us.empty() ? 0 : steps.begin_time_us.back());
}

bool NamesStep(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (std::string_view word : {"step", "iter", "batch"}) {
    if (lower.find(word) != std::string::npos) return true;
  }
  return false;
}

std::string Times(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " time" : " times");
}

// Explicit marks and ranges. Ranges of libraries (NCCL, cuBLAS, …) live in domains of their own and are not
// taken.
bool FromMarks(Collector& collector, const std::string& wanted, Steps& steps) {
  const TraceModel& model = collector.model();
  const MarkSeries* best = nullptr;
  bool explicit_marks = false;
  for (const auto& [key, series] : collector.marks()) {
    if (series.kind == Mark::STEP && series.visits.count() >= 2 && wanted.empty()) {
      if (!explicit_marks || series.visits.count() > best->visits.count()) best = &series;
      explicit_marks = true;
      continue;
    }
    if (explicit_marks) continue;
    if (series.kind != Mark::PUSH && series.kind != Mark::RANGE_START && series.kind != Mark::INSTANT)
      continue;
    if (!wanted.empty()) {
      if (model.String(series.text).find(wanted) == std::string_view::npos) continue;
    } else {
      if (series.domain != 0 || series.visits.count() < kFewestSteps) continue;
      if (!NamesStep(model.String(series.text))) continue;
    }
    // The outermost, then the most frequent.
    if (best == nullptr || series.depth < best->depth ||
        (series.depth == best->depth && series.visits.count() > best->visits.count())) {
      best = &series;
    }
  }
  if (best == nullptr) return false;
  TakeVisits(best->visits, std::max(best->last_index, collector.last_index()), collector.last_time_us(),
             steps);
  if (explicit_marks) {
    steps.source = StepSource::kExplicitMarks;
    steps.description = "marked by the program itself";
  } else {
    steps.source = StepSource::kNvtxRanges;
    steps.description =
        "NVTX range \"" + std::string(model.String(best->text)) + "\", " + Times(best->visits.count());
  }
  return true;
}

// Ranges of libraries, when nothing else repeats: XLA marks every call of a compiled function. Several of
// them that run equally often are one loop.
bool FromLibraryRanges(Collector& collector, Steps& steps) {
  std::vector<const MarkSeries*> series;
  for (const auto& [key, one] : collector.marks()) {
    if ((one.kind == Mark::PUSH || one.kind == Mark::RANGE_START) && one.visits.count() >= 2 * kFewestSteps) {
      series.push_back(&one);
    }
  }
  const MarkSeries* best = nullptr;
  double best_score = 0;
  for (const MarkSeries* one : series) {
    uint64_t votes = 0;
    for (const MarkSeries* other : series) {
      votes += other->thread == one->thread && other->visits.count() == one->visits.count() ? 1u : 0u;
    }
    const double score = static_cast<double>(votes) * static_cast<double>(one->visits.count());
    if (score > best_score || (score == best_score && best != nullptr && one->depth < best->depth)) {
      best = one;
      best_score = score;
    }
  }
  if (best == nullptr) return false;
  TakeVisits(best->visits, std::max(best->last_index, collector.last_birth_index()), best->last_time_us,
             steps);
  steps.source = StepSource::kNvtxRanges;
  steps.description = "NVTX range \"" + std::string(collector.model().String(best->text)) +
                      "\" of a library, " + Times(best->visits.count());
  return true;
}

bool Near(uint64_t a, uint64_t b) {
  return (a > b ? a - b : b - a) <= std::max<uint64_t>(1, std::min(a, b) / 100);
}

// Loops that begin after the one that gives the steps, in which comparable work is done.
void LaterLoops(const std::vector<LoopFinder::Candidate>& candidates, const LoopFinder::Candidate& best,
                Places& places, std::vector<Steps>& later) {
  uint64_t end = best.visits->positions().back().index;
  for (const LoopFinder::Candidate& candidate : candidates) {
    const Visits& visits = *candidate.visits;
    if (candidate.weak || candidate.native || candidate.frame == 0 || visits.count() < kFewestLaterSteps ||
        visits.positions().front().index <= end || visits.count() * 2 < best.visits->count() ||
        candidate.births * 2 < best.births) {
      continue;
    }
    Steps& steps = later.emplace_back();
    TakeVisits(visits, candidate.last_index, candidate.last_time_us, steps);
    steps.source = StepSource::kPythonLoop;
    steps.place = places.OfFrame(candidate.frame);
    end = visits.positions().back().index;
  }
}

bool FromLoops(Collector& collector, Places& places, FoundSteps& result) {
  Steps& steps = result.steps;
  const std::vector<LoopFinder::Candidate> candidates = collector.loops().Candidates();
  uint64_t births = 0;
  for (OriginId id = 0; id < collector.usage().size(); ++id) {
    const Level level = collector.origins()[id].level;
    if (level == Level::kBlock || (level == Level::kSegment && !collector.allocator_origin(id)))
      births += collector.usage()[id].births;
  }
  // One line that allocates many times in a row is no loop around the program's work when it does so early in
  // the run (the making of a model), or in bursts between which other lines do most (an optimizer's state).
  const auto found =
      std::find_if(candidates.begin(), candidates.end(), [&](const LoopFinder::Candidate& candidate) {
        if (!candidate.weak) return true;
        return candidate.visits->positions().back().index >= collector.last_birth_index() / 2 &&
               candidate.births >= births / 3;
      });
  if (found == candidates.end()) return false;
  const LoopFinder::Candidate& best = *found;
  TakeVisits(*best.visits, best.last_index, best.last_time_us, steps);
  if (!best.weak && !best.native && best.frame != 0) LaterLoops(candidates, best, places, result.later);
  steps.weak = best.weak;
  for (const LoopFinder::Candidate& candidate : candidates) {
    steps.optimizer_calls = std::max(steps.optimizer_calls, candidate.optimizer_calls);
  }
  if (best.frame == 0) {
    steps.source = StepSource::kPeriodicity;
    steps.description = "the stream of allocations repeats " + Times(steps.count);
    return true;
  }
  steps.place = places.OfFrame(best.frame);
  if (best.native) {
    // The innermost function of a statically linked runtime is no name for a loop.
    if (steps.place.line == 0 && best.caller != 0) {
      const Place caller = places.OfFrame(best.caller);
      if (caller.line != 0) steps.place = caller;
    }
    steps.source = StepSource::kNativeLoop;
    steps.description = "a loop around " + steps.place.Short();
    return true;
  }
  if (steps.optimizer_calls != 0 && Near(steps.optimizer_calls, steps.count)) {
    steps.source = StepSource::kOptimizer;
    steps.description = "calls of the optimizer, in the loop that begins at " + steps.place.Short();
  } else {
    steps.source = StepSource::kPythonLoop;
    steps.description = "iterations of the loop that begins at " + steps.place.Short();
    if (steps.optimizer_calls >= 2) {
      steps.description += ", with " + std::to_string(steps.optimizer_calls) + " optimizer calls";
    }
  }
  return true;
}

}  // namespace

FoundSteps FindSteps(Collector& collector, Places& places, const std::string& wanted_range) {
  FoundSteps found;
  Steps& steps = found.steps;
  if (FromMarks(collector, wanted_range, steps)) return found;
  if (FromLoops(collector, places, found)) return found;
  if (FromLibraryRanges(collector, steps)) return found;
  steps = Steps{};
  if (collector.changes() == 0) return found;
  const uint64_t first = collector.first_index();
  // Until the last birth: what is only taken down at the end is no part of the work.
  const uint64_t last = std::max(first, collector.last_birth_index());
  const uint64_t span = last - first + 1;
  const uint64_t slices = std::min(kSlices, span);
  for (uint64_t i = 0; i < slices; ++i) {
    steps.begin_index.push_back(first + span * i / slices);
    steps.begin_time_us.push_back(
        collector.first_time_us() +
        (std::max(collector.last_birth_time_us(), collector.first_time_us()) - collector.first_time_us()) *
            i / slices);
  }
  steps.count = slices;
  steps.end_index = last;
  steps.end_time_us = collector.last_birth_time_us();
  steps.description =
      "no repetition found: " + std::to_string(slices) + " equal parts of the run stand in for steps";
  return found;
}

Moment MomentOf(uint64_t index, uint64_t time_us, const Steps& steps) {
  Moment moment;
  moment.index = index;
  moment.time_us = time_us;
  moment.step = steps.real() ? steps.StepAt(index) : -1;
  return moment;
}

double Steps::StepAt(uint64_t event_index) const {
  if (begin_index.empty() || event_index < begin_index.front()) return -1;
  const auto after = std::upper_bound(begin_index.begin(), begin_index.end(), event_index);
  const size_t at = static_cast<size_t>(after - begin_index.begin()) - 1;
  const double base = static_cast<double>(at) * static_cast<double>(stride);
  // Steps from this boundary to the next kept one, or to the end.
  const bool last = after == begin_index.end();
  const uint64_t next = last ? end_index : *after;
  const double width = last ? static_cast<double>(count - at * stride) : static_cast<double>(stride);
  if (width <= 1.0 || next <= begin_index[at]) return base;
  const double fraction = static_cast<double>(event_index - begin_index[at]) /
                          static_cast<double>(next - begin_index[at] + (last ? 1 : 0));
  return base + std::min(width - 1e-9, width * fraction);
}

std::string_view StepSourceName(StepSource source) {
  switch (source) {
    case StepSource::kNone:
      return "slices";
    case StepSource::kExplicitMarks:
      return "marks";
    case StepSource::kNvtxRanges:
      return "nvtx";
    case StepSource::kOptimizer:
      return "optimizer";
    case StepSource::kPythonLoop:
      return "python loop";
    case StepSource::kNativeLoop:
      return "native loop";
    case StepSource::kPeriodicity:
      return "periodicity";
  }
  return "";
}

}  // namespace gpumemtrace::analyzer
