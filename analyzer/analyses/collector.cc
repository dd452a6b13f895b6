#include "analyzer/analyses/collector.h"

#include <algorithm>

namespace gpumemtrace::analyzer {
namespace {

constexpr size_t kMostPastPeaks = 12;
constexpr size_t kMostGrowthRecords = 4096;
constexpr size_t kMostReadings = 4096;
constexpr size_t kMostOutOfMemory = 100;
constexpr size_t kPicturesOutOfMemory = 16;
constexpr size_t kMostErrors = 1000;
constexpr size_t kMostMarkNames = 4096;

// "step 12" and "step 13" are the same range.
std::string WithoutDigits(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && !out.empty() && out.back() == '#') continue;
    out.push_back(digit ? '#' : c);
  }
  return out;
}

}  // namespace

int32_t Collector::DeviceOf(const Change& change) {
  return ResidenceOf(change.level, change.space) == Residence::kHost ? -1 : change.device;
}

DeviceState& Collector::Device(int32_t device) {
  if (last_device_ != nullptr && last_device_->device == device) return *last_device_;
  std::unique_ptr<DeviceState>& state = devices_[device];
  if (state == nullptr) {
    state = std::make_unique<DeviceState>();
    state->device = device;
  }
  last_device_ = state.get();
  return *state;
}

OriginId Collector::OriginOf(const Change& change) {
  const OriginId id = origins_.OfSite(change.site, change.level, change.space, DeviceOf(change));
  if (id < track_of_.size()) return id;
  const Origin& origin = origins_[id];
  const std::pair<uint64_t, uint64_t> key{
      (static_cast<uint64_t>(origin.group) << 32) | static_cast<uint32_t>(origin.device),
      (static_cast<uint64_t>(origin.level) << 48) | (static_cast<uint64_t>(origin.space) << 40) |
          (origin.level == Level::kHandle ? origin.api : 0u)};
  const auto [it, added] = track_index_.try_emplace(key, static_cast<uint32_t>(tracks_.size()));
  if (added) {
    Track track;
    track.group = origin.group;
    track.level = origin.level;
    track.space = origin.space;
    track.device = origin.device;
    track.api = origin.api;
    tracks_.push_back(std::move(track));
  }
  track_of_.push_back(it->second);
  usage_.emplace_back();
  allocator_origin_.push_back(false);
  return id;
}

const Collector::Birthplace& Collector::AddPlace(const Change& change) {
  if (change.site >= places_.size()) places_.resize(change.site + change.site / 2 + 16);
  Birthplace& place = places_[change.site];
  place.origin = OriginOf(change);
  place.track = track_of_[place.origin];
  place.stream = model_.Site(change.site).stream;
  place.device = &Device(DeviceOf(change));
  return place;
}

void Collector::OnChanges(const Ledger&, std::span<const Change> changes) {
  if (changes.empty()) return;
  if (first_index_ == kNoIndex) {
    first_index_ = changes.front().index;
    first_time_us_ = changes.front().time_us;
  }
  last_index_ = changes.back().index;
  last_time_us_ = changes.back().time_us;
  change_count_ += changes.size();
  for (const Change& change : changes) {
    if (change.index >= next_snapshot_) TakeSnapshots(change.index);
    switch (change.kind) {
      case ChangeKind::kBirth:
        Birth(change);
        break;
      case ChangeKind::kDeath:
        Death(change);
        break;
      case ChangeKind::kMap:
        pools_.Map(change);
        break;
      case ChangeKind::kUnmap:
        pools_.Unmap(change);
        break;
      case ChangeKind::kOutOfMemory:
      case ChangeKind::kFailed:
        Failure(change);
        break;
      case ChangeKind::kLaunch:
        Launch(change);
        break;
      case ChangeKind::kSeen:
        loops_.See(change.site, change.index, change.time_us);
        break;
      case ChangeKind::kUnknownFree:
        Error((change.flags & kChangeDoubleFree) != 0 ? ErrorFinding::Kind::kDoubleFree
                                                      : ErrorFinding::Kind::kUnknownFree,
              change);
        break;
      default:
        break;
    }
  }
}

void Collector::TakeSnapshots(uint64_t index) {
  while (snapshots_.size() < snapshot_indices_.size() && snapshot_indices_[snapshots_.size()] <= index) {
    auto& snapshot = snapshots_.emplace_back();
    for (const Usage& usage : usage_) snapshot.emplace_back(usage.bytes, usage.count);
  }
  next_snapshot_ =
      snapshots_.size() < snapshot_indices_.size() ? snapshot_indices_[snapshots_.size()] : kNoIndex;
}

void Collector::See(const Change& change) {
  PendingSegment& pending = pending_segment_;
  if (pending.slot != kNoSlot) {
    const bool own = change.level == Level::kBlock && change.segment == pending.slot;
    if (!own) loops_.See(pending.site, pending.index, pending.time_us);
    pending.slot = kNoSlot;
  }
  const SiteId site = change.cause != 0 ? change.cause : change.site;
  last_birth_index_ = change.index;
  last_birth_time_us_ = change.time_us;
  if (change.level == Level::kHandle) {
    // Libraries make streams and events in bulk, when a pool of them is first asked for one.
    const std::string_view api = model_.String(model_.Site(site).api);
    if (api.find("Stream") != std::string_view::npos || api.find("Event") != std::string_view::npos) return;
  }
  if (change.level == Level::kSegment && change.slot != kNoSlot) {
    pending = {site, change.slot, change.index, change.time_us};
  } else {
    loops_.See(site, change.index, change.time_us);
  }
}

void Collector::Launch(const Change& change) {
  loops_.SeeLaunch(change.site, change.address, change.index, change.time_us);
  DeviceState& device = Device(change.device);
  device.last_launch_index = change.index;
  if (change.size == 0) return;
  // Not an allocation of its own: what the driver took for the kernel is part of what no call accounts for.
  Change place = change;
  place.level = Level::kReservation;
  const OriginId origin = OriginOf(place);
  device.launch_bytes += change.size;
  device.launch_bytes_since_reading += change.size;
  if (device.last_reading.valid) {
    device.max_used = std::max(device.max_used, device.last_reading.used + device.launch_bytes_since_reading);
  }
  for (auto& [known, bytes] : device.launches) {
    if (known == origin) {
      bytes += change.size;
      return;
    }
  }
  device.launches.emplace_back(origin, change.size);
}

void Collector::Birth(const Change& change) {
  const Birthplace& place = PlaceOf(change);
  const OriginId origin = place.origin;
  DeviceState& device = *place.device;
  Usage& usage = usage_[origin];
  Track& track = tracks_[place.track];
  usage.Save(device.epoch);
  track.usage.Save(device.epoch);
  if (device.first_index == kNoIndex) device.first_index = change.index;
  freed_at_end_.clear();
  const bool counted = Counted(change);
  if (counted) {
    usage.CountedBirth(change.size);
    track.usage.CountedBirth(change.size);
  } else {
    usage.Birth(change.index, change.size);
    track.usage.Birth(change.index, change.size);
    See(change);
  }

  if (change.level == Level::kBlock && change.segment != kNoSlot) {
    const LiveSlot* segment = pools_.slot(change.segment);
    if (segment != nullptr && segment->live && !segment->holds_blocks) {
      if (segment->origin != kNoOrigin) {
        allocator_origin_[segment->origin] = true;
        ++tracks_[track_of_[segment->origin]].allocator_births;
      }
    }
  }
  pools_.Birth(change, origin, place.stream);

  Peak which = kBlockPeak;
  uint64_t total = 0;
  if (change.level == Level::kBlock || change.level == Level::kSegment)
    device.last_birth_index = change.index;
  if (change.level == Level::kBlock) {
    device.CountBlockBirths(counted ? 0 : 1);
    device.blocks += change.size;
    total = device.blocks;
    Reserve(device, change, origin);
  } else if (change.level == Level::kSegment) {
    device.segment_births += counted ? 0 : 1;
    if (ResidenceOf(change.level, change.space) == Residence::kManaged) {
      device.managed += change.size;
    } else {
      device.segments += change.size;
    }
    total = device.segments + device.managed;
    which = kSegmentPeak;
  } else {
    return;
  }
  HighWater& peak = device.peak[which];
  if (total > peak.bytes) {
    peak.bytes = total;
    peak.index = change.index;
    peak.time_us = change.time_us;
    peak.reserved = device.reported_reserved;
    peak.blocks = device.blocks;
    peak.segments = device.segments;
    peak.born_last = origin;
    peak.born_last_bytes = change.size;
    peak.reading = device.last_reading;
    peak.past.clear();
    ++device.epoch[which];
  }
  // Inside a folded window the sum of what was kept is no moment of the run.
  if (!folded_ && (change.level == Level::kBlock || device.block_births == 0)) {
    Recent(device, change, origin, total);
  }
}

void Collector::Death(const Change& change) {
  const Birthplace& place = PlaceOf(change);
  const OriginId origin = place.origin;
  DeviceState& device = *place.device;
  Usage& usage = usage_[origin];
  Track& track = tracks_[place.track];
  usage.Save(device.epoch);
  track.usage.Save(device.epoch);
  if (Counted(change)) {
    usage.CountedDeath(change.size);
    track.usage.CountedDeath(change.size);
  } else {
    usage.Death(change.size);
    track.usage.Death(change.size);
  }
  freed_at_end_.emplace_back(origin, change.size);
  pools_.Death(change);
  if ((change.flags & kChangeOtherDevice) != 0) Error(ErrorFinding::Kind::kOtherDeviceFree, change);

  Peak which = kBlockPeak;
  if (change.level == Level::kBlock) {
    device.blocks -= std::min(device.blocks, change.size);
    if (change.reported_reserved != 0 || change.reported_allocated != 0) {
      device.reported_reserved = change.reported_reserved;
      device.reported_allocated = change.reported_allocated;
    }
    if (!folded_) {
      device.timeline.Add(change.index, change.time_us, device.blocks, device.reported_reserved,
                          device.last_reading.used);
    }
  } else if (change.level == Level::kSegment) {
    uint64_t& bytes =
        ResidenceOf(change.level, change.space) == Residence::kManaged ? device.managed : device.segments;
    bytes -= std::min(bytes, change.size);
    which = kSegmentPeak;
    if (device.block_births == 0 && !folded_) {
      device.timeline.Add(change.index, change.time_us, device.segments + device.managed, 0,
                          device.last_reading.used);
    }
  } else {
    return;
  }
  HighWater& peak = device.peak[which];
  if (change.birth_index <= peak.index && peak.index != kNoIndex) {
    peak.past.push_back({change.birth_index, change.birth_time_us, change.index, change.address, change.size,
                         origin, change.cause});
  }
  if (!folded_ && (change.level == Level::kBlock || device.block_births == 0)) {
    const uint64_t total = change.level == Level::kBlock ? device.blocks : device.segments + device.managed;
    // A peak is over when a twentieth of it is gone.
    if (device.recent != 0 && total < device.recent - device.recent / 20) FinishRecent(device);
    device.valley = std::min(device.valley, total);
  }
}

void Collector::Recent(DeviceState& device, const Change& change, OriginId origin, uint64_t total) {
  device.timeline.Add(change.index, change.time_us, total, device.reported_reserved,
                      device.last_reading.used);
  if (device.recent == 0) {
    // After a valley: a new peak begins when a twentieth is regained.
    if (total < device.valley + device.valley / 20) return;
  }
  if (total <= device.recent) return;
  device.recent = total;
  device.recent_index = change.index;
  device.recent_time_us = change.time_us;
  device.recent_born_last = origin;
  ++device.epoch[kRecentPeak];
}

void Collector::FinishRecent(DeviceState& device) {
  const uint64_t bytes = device.recent;
  device.recent = 0;
  device.valley = device.blocks != 0 ? device.blocks : device.segments + device.managed;
  // Peaks with the same last birth are one kind of peak: only the highest of them is kept.
  PastPeak* place = nullptr;
  for (PastPeak& peak : device.past_peaks) {
    if (peak.born_last == device.recent_born_last) place = &peak;
  }
  if (place != nullptr) {
    if (bytes <= place->bytes + place->bytes / 100) return;
  } else if (device.past_peaks.size() < kMostPastPeaks) {
    place = &device.past_peaks.emplace_back();
  } else {
    place = &*std::min_element(device.past_peaks.begin(), device.past_peaks.end(),
                               [](const PastPeak& a, const PastPeak& b) { return a.bytes < b.bytes; });
    if (place->bytes >= bytes) return;
  }
  place->bytes = bytes;
  place->index = device.recent_index;
  place->time_us = device.recent_time_us;
  place->born_last = device.recent_born_last;
  place->tracks.clear();
  const Level level = device.block_births != 0 ? Level::kBlock : Level::kSegment;
  for (uint32_t i = 0; i < tracks_.size(); ++i) {
    const Track& track = tracks_[i];
    if (track.device != device.device || track.level != level) continue;
    const uint64_t track_bytes = track.usage.BytesAt(kRecentPeak, device.epoch[kRecentPeak]);
    if (track_bytes == 0) continue;
    place->tracks.push_back({i, {track_bytes, track.usage.CountAt(kRecentPeak, device.epoch[kRecentPeak])}});
  }
}

void Collector::Reserve(DeviceState& device, const Change& change, OriginId origin) {
  const uint64_t reserved = change.reported_reserved;
  const uint64_t before = device.reported_reserved;
  const uint64_t allocated_before = device.reported_allocated;
  device.reported_reserved = reserved;
  device.reported_allocated = change.reported_allocated;
  device.reported_reserved_peak = std::max(device.reported_reserved_peak, reserved);
  if (reserved <= before) return;
  ReserveGrowth growth;
  growth.index = change.index;
  growth.time_us = change.time_us;
  growth.grown = reserved - before;
  growth.reserved = reserved;
  growth.allocated = change.reported_allocated;
  growth.origin = origin;
  if (before - std::min(before, allocated_before) >= change.size) {
    growth.needless = growth.grown;
    ++device.needless_count;
    device.needless_bytes += growth.grown;
    // Each picture is a walk over the live set: at ever larger distances.
    if (device.needless_bytes > device.needless_when_refused + device.needless_when_refused / 8 &&
        change.slot != kNoSlot && !folded_ && !pools_.maps_memory(change.device)) {
      device.needless_when_refused = device.needless_bytes;
      device.refused = pools_.Picture(change.device, change.index, change.time_us, change.slot).refused;
      device.refused_index = change.index;
      device.refused_time_us = change.time_us;
      device.refused_asked = change.size;
      device.refused_origin = origin;
    }
  }
  Grow(device, growth);
  // A picture of the pool costs a walk over the live set: taken only when things are clearly worse than in
  // the last one.
  const uint64_t free = reserved - std::min(reserved, change.reported_allocated);
  const int64_t gaps = pools_.gaps(change.device);
  const uint64_t measure =
      pools_.maps_memory(change.device) ? free : static_cast<uint64_t>(std::max<int64_t>(0, gaps));
  if (measure > device.worst_measure + device.worst_measure / 20 + (1 << 20)) {
    device.worst_measure = measure;
    device.worst = pools_.Picture(change.device, change.index, change.time_us);
  }
}

void Collector::Grow(DeviceState& device, const ReserveGrowth& growth) {
  ++device.growth_count;
  if (device.growth_pending++ == 0) {
    device.growth.push_back(growth);
  } else {
    // Thinned: the last state and the sums of several growths.
    ReserveGrowth& last = device.growth.back();
    ReserveGrowth merged = growth;
    merged.grown += last.grown;
    merged.needless += last.needless;
    last = merged;
  }
  if (device.growth_pending >= device.growth_stride) device.growth_pending = 0;
  if (device.growth.size() >= kMostGrowthRecords && device.growth_pending == 0) {
    std::vector<ReserveGrowth>& all = device.growth;
    for (size_t i = 0; i < all.size() / 2; ++i) {
      ReserveGrowth merged = all[2 * i + 1];
      merged.grown += all[2 * i].grown;
      merged.needless += all[2 * i].needless;
      all[i] = merged;
    }
    all.resize(all.size() / 2);
    device.growth_stride *= 2;
  }
}

uint64_t Collector::OtherSegments(const DeviceState& device) const {
  const uint64_t own = pools_.allocator_segments(device.device);
  return device.segments - std::min(device.segments, own);
}

void Collector::Failure(const Change& change) {
  const SiteInfo& site = model_.Site(change.cause != 0 ? change.cause : change.site);
  const bool driver = change.kind == ChangeKind::kFailed;
  // Of the driver's failures only "out of memory" is one (2 in both CUDA APIs); the rest are errors of the
  // caller.
  if (driver && site.result != 2) {
    Error(ErrorFinding::Kind::kFailedCall, change);
    return;
  }
  ++out_of_memory_count_;
  if (out_of_memory_.size() >= kMostOutOfMemory) return;
  DeviceState& device = Device(change.device);
  OutOfMemoryRecord record;
  record.change = change;
  record.reading = device.last_reading;
  record.segments = device.segments;
  record.other_segments = OtherSegments(device);
  if (out_of_memory_.size() < kPicturesOutOfMemory) {
    record.picture = pools_.Picture(change.device, change.index, change.time_us);
    for (uint32_t i = 0; i < tracks_.size(); ++i) {
      if (tracks_[i].device == change.device && tracks_[i].usage.bytes != 0 &&
          (tracks_[i].level == Level::kBlock ||
           (tracks_[i].level == Level::kSegment && tracks_[i].allocator_births == 0))) {
        record.tracks.push_back({i, tracks_[i].usage.bytes});
      }
    }
    std::sort(record.tracks.begin(), record.tracks.end(),
              [](const auto& a, const auto& b) { return a.second > b.second; });
    if (record.tracks.size() > 12) record.tracks.resize(12);
  }
  out_of_memory_.push_back(std::move(record));
}

void Collector::Error(ErrorFinding::Kind kind, const Change& change) {
  const SiteId site = change.cause != 0 ? change.cause : change.site;
  for (ErrorRecord& record : errors_) {
    if (record.kind == kind && record.site == site) {
      ++record.count;
      record.bytes += change.size;
      return;
    }
  }
  if (errors_.size() >= kMostErrors) return;
  errors_.push_back({kind, site, 1, change.size, change.index, change.time_us});
}

void Collector::OnMark(const Ledger& ledger, const TraceMark& mark) {
  uint32_t& depth = mark_depth_[mark.thread];
  if (mark.kind == Mark::POP) {
    if (depth != 0) --depth;
    return;
  }
  const uint32_t at = depth;
  if (mark.kind == Mark::PUSH) ++depth;
  if (mark.kind == Mark::RANGE_END) return;
  std::string key = std::to_string(static_cast<int>(mark.kind)) + "/" + std::to_string(mark.thread) + "/" +
                    std::to_string(mark.domain) + "/";
  if (mark.kind != Mark::STEP) key += WithoutDigits(model_.String(mark.text));
  auto it = marks_.find(key);
  if (it == marks_.end()) {
    if (marks_.size() >= kMostMarkNames) return;
    it = marks_.emplace(std::move(key), MarkSeries{}).first;
    it->second.text = mark.text;
    it->second.domain = mark.domain;
    it->second.thread = mark.thread;
    it->second.kind = mark.kind;
    it->second.depth = at;
    it->second.first_number = mark.number;
  }
  it->second.visits.Add(ledger.position(), mark.time_us);
  it->second.last_index = ledger.position();
  it->second.last_time_us = mark.time_us;
}

void Collector::OnDeviceReading(const Ledger& ledger, const DeviceReading& reading) {
  DeviceState& device = Device(reading.device);
  Reading record;
  record.index = ledger.position();
  record.time_us = reading.time_us;
  record.used = reading.total - std::min(reading.total, reading.free);
  record.total = reading.total;
  record.segments = device.segments;
  record.valid = true;
  if (!device.first_reading.valid) device.first_reading = record;
  device.last_reading = record;
  device.launch_bytes_since_reading = 0;
  device.max_used = std::max(device.max_used, record.used);
  if (device.reading_count++ % device.reading_stride == 0) {
    device.readings.push_back(record);
    if (device.readings.size() >= kMostReadings) {
      for (size_t i = 0; i < kMostReadings / 2; ++i) device.readings[i] = device.readings[2 * i];
      device.readings.resize(kMostReadings / 2);
      device.reading_stride *= 2;
    }
  }
}

void Collector::OnEnd(const Ledger&) {
  TakeSnapshots(kNoIndex);
  if (pending_segment_.slot != kNoSlot) {
    loops_.See(pending_segment_.site, pending_segment_.index, pending_segment_.time_us);
    pending_segment_.slot = kNoSlot;
  }
  for (auto& [number, device] : devices_) {
    if (device->recent != 0) FinishRecent(*device);
  }
}

}  // namespace gpumemtrace::analyzer
