// Folded windows: their figures stand in for the births and deaths whose events are gone. The events that
// were kept go on carrying the live set; what was counted is not counted again.
#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "analyzer/analyses/collector.h"

namespace gpumemtrace::analyzer {
namespace {

// Least and most of several birth places together: least is a lower bound, most an upper one, exact for one.
struct WindowSum {
  uint64_t births = 0;
  uint64_t born_bytes = 0;
  uint64_t last_birth = 0;
  int64_t least_count = 0;
  int64_t most_count = 0;
  int64_t least_bytes = 0;
  int64_t most_bytes = 0;
};

uint64_t NotNegative(int64_t value) {
  return value < 0 ? 0 : static_cast<uint64_t>(value);
}

// Bounds that were counted by the recorder as differences to the end of the window, so that they fit to what
// is alive here even where it ended without a free.
void AddTo(Usage& usage, const WindowSum& sum) {
  if (usage.births == 0 && sum.births != 0) usage.first_index = sum.last_birth;
  usage.births += sum.births;
  usage.born_bytes += sum.born_bytes;
  if (sum.births != 0) usage.last_index = sum.last_birth;
  const auto count = static_cast<int64_t>(usage.count);
  const auto bytes = static_cast<int64_t>(usage.bytes);
  const uint64_t most_bytes = NotNegative(bytes + sum.most_bytes);
  usage.most_bytes = std::max(usage.most_bytes, most_bytes);
  usage.history.Window(sum.last_birth, sum.births, NotNegative(count + sum.least_count),
                       NotNegative(count + sum.most_count), NotNegative(bytes + sum.least_bytes), most_bytes,
                       usage.count, usage.bytes);
}

}  // namespace

bool Collector::Counted(const Change& change) const {
  if (!folded_) return false;
  switch (model_.Site(change.site).kind) {
    case EventKind::kBlockAllocate:
    case EventKind::kAllocate:
    case EventKind::kHandleCreate:
      return true;
    default:
      return false;
  }
}

void Collector::OnFoldedBegin(const Ledger&, const FoldedWindow& window) {
  folded_ = true;
  if (first_index_ == kNoIndex) {
    first_index_ = window.first_index;
    first_time_us_ = window.first_time_us;
  }
  for (auto& [number, device] : devices_) {
    if (device->recent != 0) FinishRecent(*device);
  }
}

void Collector::OnFolded(const Ledger&, const FoldedWindow& window) {
  folded_ = false;
  last_index_ = std::max(last_index_, window.last_index);
  last_time_us_ = std::max(last_time_us_, window.last_time_us);
  change_count_ += window.events_dropped;
  const uint32_t number =
      loops_.AddFolded(window.first_index, window.last_index, window.first_time_us, window.last_time_us);
  absl::flat_hash_map<uint32_t, WindowSum> tracks;
  for (const FoldedStack& stack : window.stacks) {
    const SiteInfo& site = model_.Site(stack.site);
    Change change;
    change.site = stack.site;
    change.device = site.device;
    change.space = site.space;
    change.level = IsBlock(site.kind)                      ? Level::kBlock
                   : site.kind == EventKind::kHandleCreate ? Level::kHandle
                                                           : Level::kSegment;
    const Birthplace& place = PlaceOf(change);
    WindowSum sum;
    sum.births = stack.births;
    sum.born_bytes = stack.born_bytes;
    sum.last_birth = stack.last_birth;
    sum.least_count = static_cast<int64_t>(stack.least_count - stack.count);
    sum.most_count = static_cast<int64_t>(stack.most_count - stack.count);
    sum.least_bytes = static_cast<int64_t>(stack.least_bytes - stack.bytes);
    sum.most_bytes = static_cast<int64_t>(stack.most_bytes - stack.bytes);
    AddTo(usage_[place.origin], sum);
    WindowSum& track = tracks[place.track];
    track.births += sum.births;
    track.born_bytes += sum.born_bytes;
    track.last_birth = std::max(track.last_birth, sum.last_birth);
    track.least_count += sum.least_count;
    track.most_count += sum.most_count;
    track.least_bytes += sum.least_bytes;
    track.most_bytes += sum.most_bytes;
    if (stack.births == 0) continue;
    DeviceState& device = *place.device;
    if (device.first_index == kNoIndex) device.first_index = window.first_index;
    if (change.level == Level::kBlock) device.CountBlockBirths(stack.births);
    if (change.level == Level::kSegment) device.segment_births += stack.births;
    if (change.level != Level::kHandle) {
      device.last_birth_index = std::max(device.last_birth_index, stack.last_birth);
      loops_.SeeFolded(stack.site, number, stack.births);
    }
    freed_at_end_.clear();
    if (stack.last_birth > last_birth_index_) {
      last_birth_index_ = stack.last_birth;
      last_birth_time_us_ = window.last_time_us;
    }
  }
  for (const auto& [track, sum] : tracks) AddTo(tracks_[track].usage, sum);
  for (const FoldedPeak& peak : window.peaks) {
    DeviceState& device = Device(peak.device);
    if (!peak.blocks && device.block_births != 0) continue;
    for (const uint64_t bytes : {peak.least_bytes, peak.bytes}) {
      device.timeline.Add(peak.index, peak.time_us, bytes, device.reported_reserved, device.last_reading.used,
                          std::max<uint64_t>(window.events_dropped / 2, 1));
    }
  }
}

}  // namespace gpumemtrace::analyzer
