#include "analyzer/analyses/peak.h"

#include <algorithm>
#include <array>
#include <map>

#include "analyzer/analyses/steps.h"

namespace gpumemtrace::analyzer {
namespace {

constexpr size_t kBlocksListed = 20;
// Temporaries of fewer bytes than this are nothing to change a program for.
constexpr uint64_t kLeastHeadline = 32u << 20;

struct SizeClass {
  uint64_t below;
  const char* name;
};
constexpr std::array<SizeClass, 6> kSizeClasses = {{{uint64_t{1} << 20, "under 1 MiB"},
                                                    {uint64_t{10} << 20, "1 to 10 MiB"},
                                                    {uint64_t{100} << 20, "10 to 100 MiB"},
                                                    {uint64_t{1} << 30, "100 MiB to 1 GiB"},
                                                    {uint64_t{10} << 30, "1 to 10 GiB"},
                                                    {UINT64_MAX, "10 GiB and more"}}};

std::vector<NamedShare> Sorted(const std::map<std::string, NamedShare>& shares) {
  std::vector<NamedShare> result;
  result.reserve(shares.size());
  for (const auto& [name, share] : shares) result.push_back(share);
  std::sort(result.begin(), result.end(),
            [](const NamedShare& a, const NamedShare& b) { return a.bytes > b.bytes; });
  return result;
}

void AddShare(std::map<std::string, NamedShare>& shares, std::string name, uint64_t bytes, uint64_t count) {
  NamedShare& share = shares[name];
  share.name = std::move(name);
  share.bytes += bytes;
  share.count += count;
}

// Groups origins by the line that answers for them, largest first.
std::vector<SharePlace> ByLine(Collector& collector, Places& places,
                               const std::vector<ShareOrigin>& origins) {
  std::map<GroupId, SharePlace> lines;
  for (const ShareOrigin& share : origins) {
    const GroupId group = places.Merged(collector.origins()[share.origin].group);
    SharePlace& line = lines[group];
    line.group = group;
    line.bytes += share.bytes;
    line.count += share.count;
    line.origins.push_back(share);
  }
  std::vector<SharePlace> result;
  for (auto& [group, line] : lines) {
    line.place = places.OfGroup(group);
    result.push_back(std::move(line));
  }
  std::sort(result.begin(), result.end(), [](const SharePlace& a, const SharePlace& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.group < b.group;
  });
  return result;
}

PeakFinding Compose(Collector& collector, Places& places, const Steps& steps, const DeviceState& device,
                    Peak which) {
  const HighWater& high = device.peak[which];
  PeakFinding peak;
  peak.device = device.device;
  peak.level = which == kBlockPeak ? Level::kBlock : Level::kSegment;
  peak.bytes = high.bytes;
  peak.moment = MomentOf(high.index, high.time_us, steps);
  peak.reserved = high.reserved;
  std::map<std::string, NamedShare> libraries;
  std::map<std::string, NamedShare> phases;
  for (OriginId id = 0; id < collector.usage().size(); ++id) {
    if (!CountsInPeak(collector, id, peak.level, device.device)) continue;
    const Usage& usage = collector.usage()[id];
    const uint64_t bytes = usage.BytesAt(which, device.epoch[which]);
    if (bytes == 0) continue;
    const uint64_t count = usage.CountAt(which, device.epoch[which]);
    peak.by_origin.push_back({id, bytes, count});
    const Origin& origin = collector.origins()[id];
    std::string library = collector.origins().library_name(origin.library);
    AddShare(libraries, library.empty() ? "unknown" : std::move(library), bytes, count);
    AddShare(phases, std::string(PhaseName(origin.phase)), bytes, count);
  }
  std::sort(peak.by_origin.begin(), peak.by_origin.end(), [](const ShareOrigin& a, const ShareOrigin& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.origin < b.origin;
  });
  peak.by_line = ByLine(collector, places, peak.by_origin);
  peak.by_library = Sorted(libraries);
  peak.by_phase = Sorted(phases);
  peak.born_last = high.born_last;
  peak.born_last_bytes = high.born_last_bytes;
  if (high.born_last != kNoOrigin) peak.born_last_place = places.OfOrigin(high.born_last);

  // Single blocks: those that have died since, and those that are still alive.
  std::vector<PeakBlock> blocks;
  for (const PastBlock& past : high.past) {
    blocks.push_back({past.origin, past.size, past.address, past.birth_index, past.birth_time_us,
                      past.death_index, past.freed_by});
  }
  for (const LiveSlot& slot : collector.pools().slots()) {
    if (!slot.live || slot.birth_index > high.index || slot.origin == kNoOrigin) continue;
    if (!CountsInPeak(collector, slot.origin, peak.level, device.device)) continue;
    blocks.push_back(
        {slot.origin, slot.size, slot.address, slot.birth_index, slot.birth_time_us, kNoIndex, 0});
  }
  std::map<std::string, NamedShare> classes;
  // An allocation that dies within two steps of the peak is part of the step's work, not a resident.
  const double at = peak.moment.step;
  std::map<GroupId, uint64_t> transient;
  for (const PeakBlock& block : blocks) {
    for (const SizeClass& size : kSizeClasses) {
      if (block.bytes < size.below) {
        AddShare(classes, size.name, block.bytes, 1);
        break;
      }
    }
    const double born = steps.StepAt(block.birth_index);
    if (born < 0) peak.setup_bytes += block.bytes;
    bool passing = false;
    if (block.death_index != kNoIndex && born >= 0 && steps.real()) {
      passing = steps.StepAt(block.death_index) - born < 2.0 && at - born < 2.0;
    }
    // A spike of the warm-up, such as trying out algorithms, is not what a step takes.
    if (passing && collector.usage()[block.origin].births * 2 < steps.count) passing = false;
    if (passing) {
      peak.transient_bytes += block.bytes;
      transient[places.Merged(collector.origins()[block.origin].group)] += block.bytes;
    }
  }
  for (SharePlace& line : peak.by_line) {
    const auto it = transient.find(line.group);
    if (it != transient.end()) line.transient_bytes = it->second;
  }
  for (const SizeClass& size : kSizeClasses) {
    const auto it = classes.find(size.name);
    if (it != classes.end()) peak.by_size_class.push_back(it->second);
  }
  std::sort(blocks.begin(), blocks.end(), [](const PeakBlock& a, const PeakBlock& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.birth_index < b.birth_index;
  });
  peak.largest.assign(blocks.begin(),
                      blocks.begin() + static_cast<std::ptrdiff_t>(std::min(blocks.size(), kBlocksListed)));
  std::sort(blocks.begin(), blocks.end(),
            [](const PeakBlock& a, const PeakBlock& b) { return a.birth_index < b.birth_index; });
  peak.oldest.assign(blocks.begin(),
                     blocks.begin() + static_cast<std::ptrdiff_t>(std::min(blocks.size(), kBlocksListed)));
  peak.blocks = std::move(blocks);

  // Other high moments, each with another last birth.
  std::vector<const PastPeak*> others;
  for (const PastPeak& past : device.past_peaks) {
    if (past.index != high.index && past.born_last != high.born_last) others.push_back(&past);
  }
  std::sort(others.begin(), others.end(),
            [](const PastPeak* a, const PastPeak* b) { return a->bytes > b->bytes; });
  for (const PastPeak* past : others) {
    OtherPeak other;
    other.moment = MomentOf(past->index, past->time_us, steps);
    other.bytes = past->bytes;
    if (past->born_last != kNoOrigin) other.born_last = places.OfOrigin(past->born_last);
    std::map<GroupId, SharePlace> lines;
    for (const auto& [track, share] : past->tracks) {
      const GroupId group = places.Merged(collector.tracks()[track].group);
      SharePlace& line = lines[group];
      line.group = group;
      line.bytes += share.first;
      line.count += share.second;
    }
    for (auto& [group, line] : lines) {
      line.place = places.OfGroup(group);
      other.by_line.push_back(std::move(line));
    }
    std::sort(other.by_line.begin(), other.by_line.end(),
              [](const SharePlace& a, const SharePlace& b) { return a.bytes > b.bytes; });
    peak.next.push_back(std::move(other));
  }
  return peak;
}

// Highest moment that is known when the bytes of `group` were never there. The same kind of peak at other
// times is at most as high as the highest of its kind.
uint64_t PeakWithout(const PeakFinding& peak, GroupId group, uint64_t bytes) {
  const auto own = [group](const std::vector<SharePlace>& lines) {
    const auto line = std::ranges::find(lines, group, &SharePlace::group);
    return line == lines.end() ? 0 : line->bytes;
  };
  uint64_t most = peak.bytes - std::min(own(peak.by_line), bytes);
  for (const OtherPeak& other : peak.next) most = std::max(most, other.bytes - own(other.by_line));
  return most;
}

}  // namespace

bool CountsInPeak(const Collector& collector, OriginId origin, Level level, int32_t device) {
  const Track& track = collector.tracks()[collector.track_of(origin)];
  return track.level == level && track.device == device;
}

std::vector<PeakFinding> FindPeaks(Collector& collector, Places& places, const Steps& steps) {
  std::vector<PeakFinding> peaks;
  for (const auto& [number, device] : collector.devices()) {
    // What the program's tensors take; where no allocator reports them, what the driver gave.
    if (device->peak[kBlockPeak].bytes != 0) {
      peaks.push_back(Compose(collector, places, steps, *device, kBlockPeak));
    }
    if (device->peak[kSegmentPeak].bytes != 0) {
      peaks.push_back(Compose(collector, places, steps, *device, kSegmentPeak));
    }
  }
  return peaks;
}

std::vector<LiveFinding> FindLive(Collector& collector, Places& places) {
  std::vector<LiveFinding> result;
  for (const auto& [number, device] : collector.devices()) {
    for (Level level : {Level::kBlock, Level::kSegment}) {
      LiveFinding live;
      live.device = number;
      live.level = level;
      std::vector<ShareOrigin> origins;
      for (OriginId id = 0; id < collector.usage().size(); ++id) {
        if (!CountsInPeak(collector, id, level, number)) continue;
        const Usage& usage = collector.usage()[id];
        if (usage.bytes == 0) continue;
        origins.push_back({id, usage.bytes, usage.count});
        live.bytes += usage.bytes;
        live.count += usage.count;
      }
      if (live.count == 0) continue;
      live.by_line = ByLine(collector, places, origins);
      result.push_back(std::move(live));
    }
  }
  return result;
}

namespace {

// Whether other programs took and gave back memory of the device meanwhile: what no call of this program
// accounts for became less. Its own context and code only grow.
bool OthersMoved(const DeviceState& device) {
  constexpr uint64_t kSmall = 64u << 20;
  uint64_t most = 0;
  const auto unattributed = [](const Reading& reading) {
    return reading.used - std::min(reading.used, reading.segments);
  };
  if (device.first_reading.valid) most = unattributed(device.first_reading);
  for (const Reading& reading : device.readings) {
    if (!reading.valid) continue;
    const uint64_t now = unattributed(reading);
    if (now + kSmall < most) return true;
    most = std::max(most, now);
  }
  return device.last_reading.valid && unattributed(device.last_reading) + kSmall < most;
}

// The first event on another device that goes on working after this one made and launched its last; kNoIndex
// when this device works to the end, or nothing was made here after the other one began.
uint64_t WorkMovedAway(const Collector& collector, const DeviceState& device) {
  uint64_t moved = kNoIndex;
  for (const auto& [number, other] : collector.devices()) {
    if (number < 0 || number == device.device || other->first_index == kNoIndex) continue;
    const bool works = other->block_births + other->segment_births != 0 &&
                       std::max(other->last_birth_index, other->last_launch_index) > device.last_birth_index;
    if (works) moved = std::min(moved, other->first_index);
  }
  const bool idle = moved != kNoIndex && device.last_birth_index > moved && device.last_launch_index < moved;
  return idle ? moved : kNoIndex;
}

}  // namespace

std::vector<PeakAdvice> AdvisePeaks(Collector& collector, Places& places, const Steps& steps,
                                    const std::vector<PeakFinding>& peaks) {
  std::vector<PeakAdvice> advice;
  for (const PeakFinding& peak : peaks) {
    if (peak.device < 0) continue;
    const bool has_blocks = std::any_of(peaks.begin(), peaks.end(), [&](const PeakFinding& other) {
      return other.device == peak.device && other.level == Level::kBlock;
    });
    if (peak.level == Level::kSegment && has_blocks) continue;

    std::map<GroupId, uint64_t> loaded;
    std::map<GroupId, uint64_t> optimizer;
    std::map<GroupId, uint64_t> upcast;
    std::map<GroupId, uint64_t> still_there;
    const DeviceState& device = *collector.devices().at(peak.device);
    const HighWater& high = device.peak[peak.level == Level::kBlock ? kBlockPeak : kSegmentPeak];
    const uint64_t half =
        steps.real() && !steps.begin_index.empty() ? steps.begin_index[steps.begin_index.size() / 2] : 0;
    std::map<OriginId, uint64_t> temporary;
    std::map<OriginId, uint64_t> resident;
    for (const PastBlock& past : high.past) {
      const double born = steps.StepAt(past.birth_index);
      if (steps.real() && born >= 0 && steps.StepAt(past.death_index) - born < 1.0) {
        temporary[past.origin] += past.size;
      } else if (past.death_index > half) {
        resident[past.origin] += past.size;
      }
    }
    for (const LiveSlot& slot : collector.pools().slots()) {
      if (slot.live && slot.origin != kNoOrigin && slot.birth_index <= high.index)
        resident[slot.origin] += slot.size;
    }
    for (const ShareOrigin& share : peak.by_origin) {
      const Origin& origin = collector.origins()[share.origin];
      const GroupId group = places.Merged(origin.group);
      const auto kept = resident.find(share.origin);
      if (origin.loads_checkpoint && kept != resident.end()) loaded[group] += kept->second;
      const auto brief = temporary.find(share.origin);
      if (brief == temporary.end()) continue;
      if (origin.phase == Phase::kOptimizer) optimizer[group] += brief->second;
      if (share.bytes * 20 > peak.bytes && places.StackNames(origin, "_to_copy"))
        upcast[group] += brief->second;
    }
    const auto add = [&](PeakAdvice::Kind kind, GroupId group, uint64_t bytes, bool headline,
                         std::string text, std::string remedy) {
      PeakAdvice one;
      one.kind = kind;
      one.place = places.OfGroup(group);
      one.device = peak.device;
      one.bytes = bytes;
      one.peak_without = PeakWithout(peak, group, bytes);
      one.headline = headline;
      one.text = std::move(text);
      one.remedy = std::move(remedy);
      advice.push_back(std::move(one));
    };
    const auto large = [&](uint64_t bytes, uint64_t percent) { return bytes * 100 >= peak.bytes * percent; };
    for (const auto& [group, bytes] : loaded) {
      if (large(bytes, 5)) {
        add(PeakAdvice::Kind::kCheckpointResident, group, bytes, large(bytes, 10),
            "a loaded checkpoint stays on the device beside the model",
            "loading it with map_location=\"cpu\" and dropping it after load_state_dict");
      }
    }
    for (const auto& [group, bytes] : optimizer) {
      if (large(bytes, 5)) {
        add(PeakAdvice::Kind::kOptimizerTemporary, group, bytes, large(bytes, 10),
            "the optimizer holds temporaries as large as the parameters it updates",
            "foreach=False or fused=True");
      }
    }
    for (const auto& [group, bytes] : upcast) {
      if (large(bytes, 5)) {
        add(PeakAdvice::Kind::kUpcast, group, bytes, large(bytes, 15),
            "a copy in another type is alive at the peak",
            "converting in pieces, or computing in the narrower type");
      }
    }
    bool trains = false;
    for (OriginId id = 0; id < collector.usage().size() && !trains; ++id) {
      trains = collector.usage()[id].births != 0 && collector.origins()[id].phase == Phase::kBackward;
    }
    // One line whose temporaries are most of the peak, in a few large pieces.
    for (const SharePlace& line : peak.by_line) {
      if (!large(line.transient_bytes, 30)) continue;
      uint64_t largest = 0;
      for (const PeakBlock& block : peak.largest) {
        if (places.Merged(collector.origins()[block.origin].group) == line.group)
          largest = std::max(largest, block.bytes);
      }
      const bool headline =
          line.transient_bytes >= kLeastHeadline && large(line.transient_bytes, 50) && large(largest, 25);
      std::string text = "what this line makes in each step is " +
                         std::string(large(line.transient_bytes, 55)   ? "most"
                                     : large(line.transient_bytes, 45) ? "about half"
                                                                       : "a large part") +
                         " of the peak";
      std::string remedy = "computing it in smaller pieces";
      if (line.place.backward) {
        text += ": gradients of what the line made in forward";
        remedy = "making that in smaller pieces";
      } else if (trains) {
        remedy += ", or recomputing it in backward (checkpointing)";
      }
      // Activations of many layers are how training works; single giants are what can be changed.
      add(PeakAdvice::Kind::kDominantTemporary, line.group, line.transient_bytes, headline, std::move(text),
          std::move(remedy));
    }
    // A device that is given memory after the work has moved to another one, and never touches it.
    const uint64_t moved = WorkMovedAway(collector, device);
    if (moved != kNoIndex) {
      std::map<OriginId, uint64_t> idle;
      uint64_t kept_count = collector.freed_at_end().size();
      for (const auto& [origin, bytes] : collector.freed_at_end()) idle[origin] += bytes;
      uint64_t births = 0;
      std::map<GroupId, uint64_t> lines;
      uint64_t bytes = 0;
      for (OriginId id = 0; id < collector.usage().size(); ++id) {
        if (!CountsInPeak(collector, id, peak.level, peak.device)) continue;
        const Usage& usage = collector.usage()[id];
        const auto freed = idle.find(id);
        const uint64_t kept = usage.bytes + (freed == idle.end() ? 0 : freed->second);
        if (kept == 0 || usage.last_index < moved) continue;
        lines[places.Merged(collector.origins()[id].group)] += kept;
        bytes += kept;
        births += usage.births;
        kept_count += usage.count;
      }
      const auto most = std::max_element(lines.begin(), lines.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
      // Where memory comes and goes there is work, whether or not its kernels were recorded.
      const bool holds_only = births <= 2 * kept_count + 4;
      if (most != lines.end() && large(bytes, 10) && holds_only) {
        add(PeakAdvice::Kind::kWrongDevice, most->first, bytes, true,
            "made on device " + std::to_string(peak.device) +
                " after the work had moved to another device, and no kernel was launched here since",
            "map_location, or naming the right device where it is made");
      }
    }
  }
  // What no allocation call accounts for, taken when a kernel was first launched: local memory for every
  // thread that the device can hold, or code.
  for (const auto& [number, device] : collector.devices()) {
    for (const auto& [origin, bytes] : device->launches) {
      // Other processes on the device move its figure as well; less than this is also loaded code.
      if (bytes < (128u << 20) || bytes * 4 < device->peak[kSegmentPeak].bytes) continue;
      PeakAdvice one;
      one.kind = PeakAdvice::Kind::kDriverInternal;
      one.place = places.OfOrigin(origin);
      one.device = number;
      one.bytes = bytes;
      const uint64_t segments = device->peak[kSegmentPeak].bytes;
      one.peak_without = device->max_used - std::min(device->max_used, bytes);
      const bool alone = !OthersMoved(*device);
      one.headline = bytes >= (128u << 20) && bytes * 2 >= segments && one.place.user_code && alone;
      one.text =
          "no longer free on the device once the kernel was first launched, most likely as local memory "
          "(arrays "
          "on "
          "the kernel's stack, register spills), which the driver sets aside for every thread that the "
          "device "
          "can run; ";
      one.text += alone ? "another program that took memory just then would look the same"
                        : "but other programs took and gave back memory of this device while this one ran";
      one.remedy =
          "smaller arrays in the kernel, or shared or global memory for them (nvcc -Xptxas -v prints each "
          "kernel's stack frame and spills)";
      advice.push_back(std::move(one));
    }
  }
  std::stable_sort(advice.begin(), advice.end(), [](const PeakAdvice& a, const PeakAdvice& b) {
    return a.headline != b.headline ? a.headline : a.bytes > b.bytes;
  });
  return advice;
}

std::string_view PeakAdviceName(PeakAdvice::Kind kind) {
  switch (kind) {
    case PeakAdvice::Kind::kCheckpointResident:
      return "checkpoint left on the device";
    case PeakAdvice::Kind::kOptimizerTemporary:
      return "optimizer temporaries";
    case PeakAdvice::Kind::kUpcast:
      return "copy in another type";
    case PeakAdvice::Kind::kDominantTemporary:
      return "dominant temporaries";
    case PeakAdvice::Kind::kWrongDevice:
      return "wrong device";
    case PeakAdvice::Kind::kDriverInternal:
      return "taken by the driver";
  }
  return "";
}

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kUnknown:
      return "unknown";
    case Phase::kForward:
      return "forward and other Python";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kLoading:
      return "loading";
    case Phase::kEvaluation:
      return "evaluation";
    case Phase::kCollective:
      return "collectives";
  }
  return "";
}

}  // namespace gpumemtrace::analyzer
