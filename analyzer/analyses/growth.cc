#include "analyzer/analyses/growth.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "analyzer/analyses/frame_class.h"
#include "analyzer/analyses/pool_growth.h"
#include "analyzer/analyses/trend.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr size_t kCurvePoints = 200;
// Unattributed memory moves by the driver's own granularity; less than this per run is no growth.
constexpr uint64_t kLeastUnattributed = 8 << 20;
// Events and streams cost no device memory that is seen: only so many, or so long a rise, are called a leak.
constexpr uint64_t kManyHandles = 1000;
constexpr uint64_t kManyHandleRises = 100;
// Without steps only what rises in most equal parts of the run is told as a leak.
constexpr uint64_t kLeastRisesWithoutSteps = 16;

// Rises in the state of an optimizer, far apart, that are told as the stages of a training.
constexpr uint64_t kMostStages = 12;
constexpr double kSureOfLaterLeak = 0.9;
// Fewer rises of the allocator's cache than this are stairs: new shapes, a new phase.
constexpr uint64_t kFewestRisesOfCache = 6;

double LastStep(const Steps& steps) {
  return std::max(0.0, static_cast<double>(steps.count) - 1.0);
}

// Floors of a history, one per step that has births.
std::vector<FloorPoint> Floors(const History& history, const Steps& steps) {
  std::vector<FloorPoint> floors;
  for (const History::Interval& interval : history.intervals()) {
    const double step = steps.StepAt(interval.index);
    if (step < 0) {
      // Before the first step: one point, the state that the steps begin with.
      floors.assign(1, {-1, interval.bytes_min, interval.count_min});
      continue;
    }
    const double whole = std::floor(step);
    if (!floors.empty() && floors.back().step == whole) {
      floors.back().bytes = std::min(floors.back().bytes, interval.bytes_min);
      floors.back().count = std::min<uint64_t>(floors.back().count, interval.count_min);
    } else {
      floors.push_back({whole, interval.bytes_min, interval.count_min});
    }
  }
  // What stood before the first step is a level, not growth within the steps.
  if (!floors.empty() && floors.front().step < 0) floors.erase(floors.begin());
  return floors;
}

std::vector<CurvePoint> Curve(const History& history, const Steps& steps) {
  std::vector<CurvePoint> curve;
  const auto& intervals = history.intervals();
  const size_t stride = std::max<size_t>(1, intervals.size() / kCurvePoints);
  for (size_t i = 0; i < intervals.size(); i += stride) {
    curve.push_back({steps.StepAt(intervals[i].index), intervals[i].bytes_min, intervals[i].count_min});
  }
  return curve;
}

void Fill(const Trend& trend, GrowthFinding& finding) {
  finding.kind = trend.kind;
  finding.bytes_per_step = trend.bytes_per_step;
  finding.count_per_step = trend.count_per_step;
  finding.grown_bytes = trend.grown_bytes;
  finding.grown_count = trend.grown_count;
  finding.once_bytes = trend.once_bytes;
  finding.once_count = trend.once_count;
  finding.since_step = std::max(0.0, trend.since_step);
  finding.until_step = trend.until_step;
  finding.still_growing = trend.still_growing;
  finding.rises = trend.rises;
  finding.steps_seen = trend.points;
  finding.confidence = trend.confidence;
}

bool Worse(const GrowthFinding& a, const GrowthFinding& b) {
  const bool leak_a = IsLeak(a.kind);
  const bool leak_b = IsLeak(b.kind);
  if (leak_a != leak_b) return leak_a;
  if (leak_a && a.bytes_per_step != b.bytes_per_step) return a.bytes_per_step > b.bytes_per_step;
  if (leak_a) return a.count_per_step > b.count_per_step;
  return a.grown_bytes > b.grown_bytes;
}

class Engine {
 public:
  Engine(Collector& collector, Places& places, const Steps& steps)
      : collector_(collector), places_(places), steps_(steps), last_step_(LastStep(steps)) {}

  std::vector<GrowthFinding> Run() {
    GroupOrigins();
    for (uint32_t i = 0; i < collector_.tracks().size(); ++i) JudgeTrack(i);
    MergeByPlace();
    for (const auto& [number, device] : collector_.devices()) {
      StrandedCache(*device);
      Unattributed(*device);
    }
    for (GrowthFinding& finding : findings_) {
      Doubt(finding);
      Explain(finding);
    }
    TakenByHandles();
    std::stable_sort(findings_.begin(), findings_.end(), Worse);
    return std::move(findings_);
  }

 private:
  void GroupOrigins() {
    origins_of_track_.resize(collector_.tracks().size());
    for (OriginId id = 0; id < collector_.usage().size(); ++id) {
      origins_of_track_[collector_.track_of(id)].push_back(id);
    }
  }

  bool Judged(const Track& track) const {
    if (track.usage.births == 0) return false;
    switch (track.level) {
      case Level::kBlock:
      case Level::kHandle:
      case Level::kAlias:
        return true;
      case Level::kSegment:
        // Segments of caching allocators are judged together with what lies in them.
        return track.allocator_births * 2 < track.usage.births;
      case Level::kReservation:
        return false;
    }
    return false;
  }

  // Most of what stayed came in equal portions, one a step.
  bool EvenRises(const History& history) const {
    std::map<uint64_t, size_t> portions;
    const std::vector<FloorPoint> floors = Floors(history, steps_);
    size_t rises = 0;
    size_t most = 0;
    for (size_t i = 1; i < floors.size(); ++i) {
      if (floors[i].bytes <= floors[i - 1].bytes) continue;
      ++rises;
      most = std::max(most, ++portions[floors[i].bytes - floors[i - 1].bytes]);
    }
    return most * 10 >= rises * 7;
  }

  bool MovesModules(uint32_t number) const {
    return std::all_of(origins_of_track_[number].begin(), origins_of_track_[number].end(),
                       [this](OriginId id) { return collector_.origins()[id].moves_module; });
  }

  // State of optimizers and gradients that comes now and then, and only now and then.
  bool InStages(uint32_t number, const Trend& trend) const {
    if (static_cast<double>(trend.rises) * 3 >= trend.until_step - trend.since_step) return false;
    return std::all_of(origins_of_track_[number].begin(), origins_of_track_[number].end(),
                       [this](OriginId id) {
                         const Phase phase = collector_.origins()[id].phase;
                         return phase == Phase::kOptimizer || phase == Phase::kBackward;
                       });
  }

  void JudgeTrack(uint32_t number) {
    const Track& track = collector_.tracks()[number];
    if (!Judged(track)) return;
    Trend trend;
    if (track.level != Level::kSegment || !JudgePool(track.usage.history, steps_, last_step_, trend)) {
      trend = JudgeTrend(Floors(track.usage.history, steps_), last_step_, TrendBy::kCount);
    }
    // A small leak on a line whose other allocations come and go irregularly shows in its own stack.
    std::vector<std::pair<OriginId, Trend>> leaking;
    for (OriginId origin : origins_of_track_[number]) {
      const Usage& usage = collector_.usage()[origin];
      if (usage.births < 3) continue;
      const Trend own = JudgeTrend(Floors(usage.history, steps_), last_step_, TrendBy::kCount);
      if (own.grows && own.kind == GrowthKind::kLeak) leaking.emplace_back(origin, own);
    }
    std::sort(leaking.begin(), leaking.end(),
              [](const auto& a, const auto& b) { return a.second.bytes_per_step > b.second.bytes_per_step; });
    const bool track_leaks = trend.grows && trend.kind == GrowthKind::kLeak;
    GrowthFinding finding;
    finding.level = track.level;
    finding.space = track.space;
    finding.device = track.device;
    finding.group = track.group;
    if (track.api != 0) finding.api = std::string(collector_.model().String(track.api));
    if (!leaking.empty() && !track_leaks) {
      // The parts leak, their sum is judged otherwise: what the parts say is the nearer evidence.
      trend = leaking.front().second;
      for (size_t i = 1; i < leaking.size(); ++i) {
        const Trend& other = leaking[i].second;
        trend.bytes_per_step += other.bytes_per_step;
        trend.count_per_step += other.count_per_step;
        trend.grown_bytes += other.grown_bytes;
        trend.grown_count += other.grown_count;
        trend.once_bytes += other.once_bytes;
        trend.once_count += other.once_count;
        trend.since_step = std::min(trend.since_step, other.since_step);
        trend.until_step = std::max(trend.until_step, other.until_step);
      }
      finding.curve = Curve(collector_.usage()[leaking.front().first].history, steps_);
    } else if (leaking.size() == 1 && std::abs(leaking.front().second.bytes_per_step -
                                               trend.bytes_per_step) <= 0.01 * trend.bytes_per_step) {
      // One stack is all of it: its curve is free of what else the line keeps.
      finding.curve = Curve(collector_.usage()[leaking.front().first].history, steps_);
    } else {
      finding.curve = Curve(track.usage.history, steps_);
    }
    if (!trend.grows) return;
    // A model that is put on the device piece by piece: parts of many sizes, or of one, by one call.
    if (trend.kind == GrowthKind::kLeak && steps_.weak &&
        (!EvenRises(track.usage.history) || MovesModules(number))) {
      trend.kind = GrowthKind::kSetup;
    }
    // Layers that are unfrozen one after the other: each gets its gradients and its state, in even stairs.
    if (trend.kind == GrowthKind::kLeak && trend.rises <= kMostStages && InStages(number, trend)) {
      trend.kind = GrowthKind::kOneOff;
    }
    Fill(trend, finding);
    for (const auto& [origin, own] : leaking) finding.origins.push_back(origin);
    if (finding.origins.empty()) {
      finding.origins = origins_of_track_[number];
      std::sort(finding.origins.begin(), finding.origins.end(), [this](OriginId a, OriginId b) {
        return collector_.usage()[a].most_bytes > collector_.usage()[b].most_bytes;
      });
      if (finding.origins.size() > 8) finding.origins.resize(8);
    }
    if (!finding.origins.empty()) {
      finding.library =
          collector_.origins().library_name(collector_.origins()[finding.origins.front()].library);
    }
    finding.live_bytes_at_end = track.usage.bytes;
    const auto& intervals = track.usage.history.intervals();
    if (!intervals.empty()) {
      finding.live_bytes = intervals.back().bytes_max;
      finding.live_count = intervals.back().count_max;
    }
    finding.place = places_.OfGroup(track.group);
    findings_.push_back(std::move(finding));
  }

  // Several native paths, or forward and backward, may meet on one source line.
  void MergeByPlace() {
    std::map<std::tuple<GroupId, Level, Space, int32_t, GrowthKind, std::string>, size_t> seen;
    std::vector<GrowthFinding> merged;
    for (GrowthFinding& finding : findings_) {
      const auto key =
          std::make_tuple(places_.Merged(finding.group), finding.level, finding.space, finding.device,
                          finding.kind, finding.level == Level::kHandle ? finding.api : std::string());
      const auto [it, added] = seen.try_emplace(key, merged.size());
      if (added) {
        merged.push_back(std::move(finding));
        continue;
      }
      GrowthFinding& into = merged[it->second];
      into.bytes_per_step += finding.bytes_per_step;
      into.count_per_step += finding.count_per_step;
      into.grown_bytes += finding.grown_bytes;
      into.grown_count += finding.grown_count;
      into.once_bytes += finding.once_bytes;
      into.once_count += finding.once_count;
      into.live_bytes += finding.live_bytes;
      into.live_count += finding.live_count;
      into.live_bytes_at_end += finding.live_bytes_at_end;
      into.since_step = std::min(into.since_step, finding.since_step);
      into.until_step = std::max(into.until_step, finding.until_step);
      into.rises = std::max(into.rises, finding.rises);
      into.confidence = std::max(into.confidence, finding.confidence);
      into.origins.insert(into.origins.end(), finding.origins.begin(), finding.origins.end());
    }
    findings_ = std::move(merged);
  }

  static bool EqualPortions(const std::vector<FloorPoint>& floors, const Trend& trend) {
    std::vector<double> portions;
    for (size_t i = 1; i < floors.size(); ++i) {
      if (floors[i].bytes > floors[i - 1].bytes) {
        portions.push_back(static_cast<double>(floors[i].bytes - floors[i - 1].bytes));
      } else if (floors[i].bytes < floors[i - 1].bytes) {
        return false;
      }
    }
    if (portions.size() < 5 || static_cast<double>(portions.size()) * 2 < trend.until_step - trend.since_step)
      return false;
    std::vector<double> sorted = portions;
    std::sort(sorted.begin(), sorted.end());
    const double median = sorted[sorted.size() / 2];
    size_t equal = 0;
    for (double portion : portions) equal += std::abs(portion - median) <= 0.1 * median ? 1u : 0u;
    return equal * 10 >= portions.size() * 7;
  }

  // The largest request of each step that took new memory is mostly larger than the one before, seldom
  // smaller, and the last well above the first. (One that jumps to its size and stays there is no growing
  // request.)
  static bool MostlyLarger(const std::map<double, uint64_t>& largest) {
    if (largest.size() < kFewestRisesOfCache) return false;
    size_t smaller = 0;
    size_t larger = 0;
    uint64_t before = largest.begin()->second;
    for (const auto& [step, size] : largest) {
      smaller += size < before ? 1u : 0u;
      larger += size > before ? 1u : 0u;
      before = size;
    }
    return smaller * 5 <= largest.size() && larger * 2 >= largest.size() &&
           largest.rbegin()->second * 4 >= largest.begin()->second * 5;
  }

  static bool Steady(const std::vector<FloorPoint>& floors) {
    std::vector<double> gaps;
    for (size_t i = 1; i < floors.size(); ++i) {
      if (floors[i].bytes > floors[i - 1].bytes) gaps.push_back(floors[i].step - floors[i - 1].step);
    }
    if (gaps.size() < 3) return false;
    const double span = floors.back().step - floors.front().step;
    if (static_cast<double>(gaps.size()) * 2 >= span) return true;
    std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2), gaps.end());
    const double median = std::max(1.0, gaps[gaps.size() / 2]);
    size_t even = 0;
    for (double gap : gaps) even += std::abs(gap - median) <= 0.25 * median ? 1u : 0u;
    return even * 10 >= gaps.size() * 8;
  }

  // Reserved minus allocated, at the moments when the allocator took more memory.
  void StrandedCache(const DeviceState& device) {
    if (device.growth.empty()) return;
    std::vector<FloorPoint> floors;
    std::map<GroupId, std::pair<uint64_t, OriginId>> grown_by;
    std::map<GroupId, std::map<double, uint64_t>> largest;  // request of each step
    for (const ReserveGrowth& growth : device.growth) {
      const double step = std::floor(steps_.StepAt(growth.index));
      if (step < 0) {
        floors.assign(1, {-1, growth.reserved - std::min(growth.reserved, growth.allocated), 0});
        continue;
      }
      const uint64_t free = growth.reserved - std::min(growth.reserved, growth.allocated);
      if (!floors.empty() && floors.back().step == step) {
        floors.back().bytes = std::min(floors.back().bytes, free);
      } else {
        floors.push_back({step, free, 0});
      }
      if (growth.needless != 0) {
        auto& [bytes, origin] = grown_by[places_.Merged(collector_.origins()[growth.origin].group)];
        if (growth.grown > bytes || bytes == 0) origin = growth.origin;
        bytes += growth.grown;
        uint64_t& most = largest[places_.Merged(collector_.origins()[growth.origin].group)][step];
        most = std::max(most, growth.grown);
      }
    }
    if (!floors.empty() && floors.front().step < 0) floors.erase(floors.begin());
    const Trend trend = JudgeTrend(floors, last_step_, TrendBy::kBytes);
    if (!trend.grows || trend.kind == GrowthKind::kOneOff || trend.kind == GrowthKind::kSawtooth) return;
    // A cache that is a small part of the whole and grows now and then is the allocator's normal slack.
    if (trend.grown_bytes < device.reported_reserved_peak / 20) return;
    if (grown_by.empty()) return;
    // New shapes make any cache grow now and then. A cause that works in every step, or at even distances,
    // shows as a steady rise.
    const bool steady = trend.rises >= kFewestRisesOfCache && Steady(floors);
    const auto worst = std::max_element(grown_by.begin(), grown_by.end(), [](const auto& a, const auto& b) {
      return a.second.first < b.second.first;
    });
    GrowthFinding finding;
    Fill(trend, finding);
    if (trend.kind == GrowthKind::kLeak) {
      finding.kind = steady ? GrowthKind::kStrandedCache : GrowthKind::kSlowing;
    }
    finding.level = Level::kSegment;
    finding.device = device.device;
    finding.origins.push_back(worst->second.second);
    finding.group = collector_.origins()[worst->second.second].group;
    finding.place = places_.OfGroup(finding.group);
    finding.live_bytes = device.growth.back().reserved -
                         std::min(device.growth.back().reserved, device.growth.back().allocated);
    finding.live_bytes_at_end =
        device.reported_reserved - std::min(device.reported_reserved, device.reported_allocated);
    finding.api = "allocator cache";
    finding.larger_requests = MostlyLarger(largest[worst->first]);
    for (const FloorPoint& point : floors) finding.curve.push_back({point.step, point.bytes, 0});
    findings_.push_back(std::move(finding));
  }

  // Device memory that falls away without any allocation that was seen.
  void Unattributed(const DeviceState& device) {
    if (device.device < 0 || device.readings.size() < 4) return;
    std::vector<FloorPoint> floors;
    for (const Reading& reading : device.readings) {
      const double step = std::floor(steps_.StepAt(reading.index));
      if (step < 0) continue;
      const uint64_t rest = reading.used - std::min(reading.used, reading.segments);
      if (!floors.empty() && floors.back().step == step) {
        floors.back().bytes = std::min(floors.back().bytes, rest);
      } else {
        floors.push_back({step, rest, 0});
      }
    }
    const Trend trend = JudgeTrend(floors, last_step_, TrendBy::kBytes);
    if (!trend.grows || trend.kind != GrowthKind::kLeak || trend.grown_bytes < kLeastUnattributed) return;
    // The device's figure is that of all processes on it: only equal portions in most steps speak for this
    // one.
    if (!steps_.real() || !EqualPortions(floors, trend)) return;
    // A handle that is made in every step is the better name for it.
    for (GrowthFinding& finding : findings_) {
      if (finding.level == Level::kHandle && finding.kind == GrowthKind::kLeak) {
        if (finding.bytes_per_step == 0) {
          finding.bytes_per_step = trend.bytes_per_step;
          finding.grown_bytes = trend.grown_bytes;
        }
        return;
      }
    }
    GrowthFinding finding;
    Fill(trend, finding);
    finding.kind = GrowthKind::kUnattributed;
    finding.level = Level::kSegment;
    finding.device = device.device;
    finding.place.function = "outside every allocation that was seen";
    for (const FloorPoint& point : floors) finding.curve.push_back({point.step, point.bytes, 0});
    findings_.push_back(std::move(finding));
  }

  // What a library's handle took when it was made goes when the handle is destroyed.
  void TakenByHandles() {
    for (GrowthFinding& memory : findings_) {
      if (memory.kind != GrowthKind::kLeak || memory.level != Level::kSegment) continue;
      for (GrowthFinding& handle : findings_) {
        if (handle.level == Level::kHandle && handle.kind == GrowthKind::kLeak &&
            !IsHandleOfTheDriver(handle.api) &&
            places_.Merged(handle.group) == places_.Merged(memory.group)) {
          memory.remedy = Remedy::kDestroyHandle;
          memory.explanation = "taken by " + handle.api + ", whose handles stay step after step";
          handle.told_by_memory = true;
        }
      }
    }
  }

  // What rose is a leak only where there is something to measure it by.
  void Doubt(GrowthFinding& finding) const {
    if (finding.kind != GrowthKind::kLeak) return;
    if (finding.level == Level::kHandle) {
      finding.bytes_known = finding.bytes_per_step >= 0.5;
      if (finding.bytes_known) {
        finding.bytes_from = "the device's own figure";
      } else if (!steps_.real()) {
        // Libraries make handles in bulk when they are first used.
        finding.kind = GrowthKind::kSetup;
      } else if (IsHandleOfTheDriver(finding.api) && finding.grown_count < kManyHandles &&
                 finding.rises < kManyHandleRises) {
        finding.kind = GrowthKind::kHandles;
      }
    } else if (finding.bytes_per_step < 0.5) {
      finding.kind = GrowthKind::kSetup;
    }
    if (!steps_.real() && finding.rises < kLeastRisesWithoutSteps) finding.kind = GrowthKind::kSetup;
  }

  // How long a step took while it grew, without what came before, such as a slow first step.
  double MicrosecondsPerStep(const GrowthFinding& finding) const {
    const std::vector<uint64_t>& begin = steps_.begin_time_us;
    if (begin.empty()) return 0;
    const auto stride = static_cast<double>(steps_.stride);
    const auto from = static_cast<size_t>((finding.since_step + 1) / stride);
    const size_t until = std::min(static_cast<size_t>(finding.until_step / stride), begin.size() - 1);
    if (until > from)
      return static_cast<double>(begin[until] - begin[from]) / (static_cast<double>(until - from) * stride);
    if (steps_.count < 2) return 0;
    return static_cast<double>(steps_.end_time_us - begin.front()) / static_cast<double>(steps_.count);
  }

  // From what was free when most was taken: a program that frees all at its end has not got that room while
  // it runs.
  void UntilFull(const DeviceState& device, GrowthFinding& finding) const {
    const Reading& reading = device.last_reading;
    const uint64_t most =
        std::max(device.max_used, reading.used - std::min(reading.used, reading.segments) +
                                      device.launch_bytes_since_reading + device.peak[kSegmentPeak].segments);
    const double steps =
        static_cast<double>(reading.total - std::min(reading.total, most)) / finding.bytes_per_step;
    constexpr double kNever = 1e15;
    if (steps >= kNever) return;
    const double microseconds = steps * MicrosecondsPerStep(finding);
    if (steps_.real()) finding.steps_until_full = steps;
    if (microseconds < kNever) finding.microseconds_until_full = static_cast<uint64_t>(microseconds);
  }

  void Explain(GrowthFinding& finding) {
    if (!steps_.real()) finding.confidence *= 0.6;
    const auto device = collector_.devices().find(finding.device);
    if (IsLeak(finding.kind) && finding.bytes_per_step > 0 && finding.device >= 0 &&
        device != collector_.devices().end() && device->second->last_reading.valid) {
      UntilFull(*device->second, finding);
    }
    switch (finding.kind) {
      case GrowthKind::kLeak:
        finding.remedy = finding.level == Level::kHandle                          ? Remedy::kDestroyHandle
                         : finding.level == Level::kBlock || finding.place.python ? Remedy::kReference
                                                                                  : Remedy::kFree;
        finding.explanation = "survives step after step until the end";
        break;
      case GrowthKind::kSaturated:
        finding.explanation = finding.api == "allocator cache"
                                  ? "grew for a while, then no more"
                                  : "filled up: each new one replaces an old one";
        break;
      case GrowthKind::kSlowing:
        finding.explanation = "still grows, but ever more slowly: a cache that fills up";
        break;
      case GrowthKind::kOneOff:
        finding.explanation = "came at once and stayed";
        break;
      case GrowthKind::kSawtooth:
        finding.explanation = "grows and is dropped again and again; the floor is flat";
        finding.remedy = Remedy::kPhaseEnd;
        break;
      case GrowthKind::kLongerSteps:
        finding.explanation = "as many objects as before, each larger: the work itself grows";
        break;
      case GrowthKind::kSetup:
        finding.explanation =
            steps_.real() ? "made in preparation, not step by step" : "made in bulk; no steps to judge it by";
        break;
      case GrowthKind::kStrandedCache:
        finding.remedy = finding.larger_requests ? Remedy::kPreallocate : Remedy::kEmptyCache;
        finding.explanation =
            finding.larger_requests
                ? "each request is larger than the one before, so that none of the segments "
                  "that lie free fits it"
                : "the allocator takes new segments although old ones lie free";
        break;
      case GrowthKind::kHandles:
        finding.explanation = "stay, but no device memory was seen to go with them";
        finding.remedy = Remedy::kDestroyHandle;
        break;
      case GrowthKind::kUnattributed:
        finding.explanation = "the device's free memory falls without an allocation that was seen";
        finding.remedy = Remedy::kExit;
        break;
    }
    // Held until everything was dropped at once: the trace shows that it could be freed.
    if (finding.kind == GrowthKind::kLeak && finding.level <= Level::kSegment && finding.grown_bytes != 0 &&
        finding.live_bytes_at_end < finding.live_bytes / 2) {
      finding.explanation = "survives step after step, freed only after the last one";
    }
  }

  Collector& collector_;
  Places& places_;
  const Steps& steps_;
  double last_step_;
  std::vector<std::vector<OriginId>> origins_of_track_;
  std::vector<GrowthFinding> findings_;
};

}  // namespace

std::vector<GrowthFinding> FindGrowth(Collector& collector, Places& places, const Steps& steps) {
  if (steps.count == 0) return {};
  return Engine(collector, places, steps).Run();
}

void AddLaterLeaks(Collector& collector, Places& places, const Steps& later,
                   std::vector<GrowthFinding>& growth) {
  for (GrowthFinding& finding : FindGrowth(collector, places, later)) {
    // What a phase gathers and then drops, such as the outputs of a last evaluation, is no leak.
    const bool stays = finding.live_bytes_at_end * 2 >= finding.grown_bytes;
    if (finding.kind != GrowthKind::kLeak || finding.level > Level::kSegment || !stays ||
        finding.confidence < kSureOfLaterLeak) {
      continue;
    }
    const auto same = [&finding](const GrowthFinding& one) {
      return one.group == finding.group && one.level == finding.level && one.device == finding.device;
    };
    if (std::ranges::any_of(growth,
                            [&same](const GrowthFinding& one) { return IsLeak(one.kind) && same(one); })) {
      continue;
    }
    // Over the steps before it all of it came in the last one.
    std::erase_if(growth, same);
    finding.loop = later.place.Short();
    growth.push_back(std::move(finding));
  }
  std::stable_sort(growth.begin(), growth.end(), Worse);
}

}  // namespace gpumemtrace::analyzer
