#include "analyzer/analyses/account.h"

#include <algorithm>
#include <map>

#include "analyzer/analyses/steps.h"

namespace gpumemtrace::analyzer {
namespace {

// Peak of a device as people mean it: of the program's tensors where an allocator reports them.
Peak MainPeak(const DeviceState& device) {
  return device.peak[kBlockPeak].bytes != 0 ? kBlockPeak : kSegmentPeak;
}

// Whether the program took clearly more of the device at another moment than at the peak of its tensors:
// handles made step by step, a cache that grows.
bool FullestElsewhere(const DeviceState& device) {
  constexpr uint64_t kLittle = 16 << 20;
  const uint64_t then = device.peak[kBlockPeak].segments;
  const uint64_t most = device.peak[kSegmentPeak].segments;
  return MainPeak(device) == kBlockPeak && most > then + std::max(kLittle, then / 10);
}

// Sums up segments and blocks of a device, now or at a peak.
Account Sum(Collector& collector, const DeviceState& device, bool at_peak, Peak which) {
  Account account;
  uint64_t allocator = 0;
  std::map<std::string, NamedShare> libraries;
  for (OriginId id = 0; id < collector.usage().size(); ++id) {
    const Origin& origin = collector.origins()[id];
    if (origin.device != device.device) continue;
    const Usage& usage = collector.usage()[id];
    const uint64_t bytes = at_peak ? usage.BytesAt(which, device.epoch[which]) : usage.bytes;
    if (bytes == 0) continue;
    const uint64_t count = at_peak ? usage.CountAt(which, device.epoch[which]) : usage.count;
    if (origin.level == Level::kBlock) {
      account.blocks += bytes;
    } else if (origin.level == Level::kSegment) {
      if (ResidenceOf(origin.level, origin.space) == Residence::kManaged) {
        account.managed += bytes;
      } else if (collector.allocator_origin(id)) {
        allocator += bytes;
      } else {
        std::string name = collector.origins().library_name(origin.library);
        if (name.empty()) name = "unknown caller";
        NamedShare& share = libraries[name];
        share.name = name;
        share.bytes += bytes;
        share.count += count;
      }
    }
  }
  account.cache = allocator - std::min(allocator, account.blocks);
  // Blocks whose segments were not seen (an allocator's pool made before tracing) are not counted twice.
  for (const auto& [name, share] : libraries) account.libraries.push_back(share);
  std::sort(account.libraries.begin(), account.libraries.end(),
            [](const NamedShare& a, const NamedShare& b) { return a.bytes > b.bytes; });
  return account;
}

void Close(Account& account, const Reading& reading, const Reading& first, uint64_t segments_then) {
  uint64_t known = account.blocks + account.cache;
  for (const NamedShare& library : account.libraries) known += library.bytes;
  if (!reading.valid) {
    account.used = known;
    return;
  }
  account.measured = true;
  account.total = reading.total;
  // The reading is a little older than the moment; what was taken or given back in between is known exactly.
  const int64_t since = static_cast<int64_t>(segments_then) - static_cast<int64_t>(reading.segments);
  account.used = static_cast<uint64_t>(std::max<int64_t>(0, static_cast<int64_t>(reading.used) + since));
  account.unattributed = static_cast<int64_t>(account.used) - static_cast<int64_t>(known);
  account.unattributed_before = static_cast<int64_t>(first.used) - static_cast<int64_t>(first.segments);
}

Account AtPeak(Collector& collector, const DeviceState& device, Peak which, const Steps& steps) {
  const HighWater& high = device.peak[which];
  Account account = Sum(collector, device, true, which);
  account.moment = MomentOf(high.index, high.time_us, steps);
  // A reading that came after the peak is better than none.
  const Reading& reading = high.reading.valid ? high.reading : device.first_reading;
  Close(account, reading, device.first_reading, high.segments);
  if (reading.valid) {
    account.reading_age_us =
        high.time_us > reading.time_us ? high.time_us - reading.time_us : reading.time_us - high.time_us;
  }
  return account;
}

FragmentationMoment Name(const PoolPicture& picture, Collector& collector, Places& places,
                         const Steps& steps) {
  FragmentationMoment moment;
  moment.moment = MomentOf(picture.index, picture.time_us, steps);
  moment.reserved = picture.reserved;
  moment.allocated = picture.allocated;
  moment.empty_segments_bytes = picture.empty_bytes;
  moment.gap_bytes = picture.gap_bytes;
  moment.largest_fit = picture.largest_fit;
  for (const PoolPicture::Segment& segment : picture.segments) {
    if (moment.segments.size() >= 50) break;
    SegmentPicture out;
    out.address = segment.address;
    out.size = segment.size;
    out.live_bytes = segment.live_bytes;
    out.live_blocks = segment.live_blocks;
    out.largest_gap = segment.largest_gap;
    out.gaps = segment.gaps;
    out.stream = segment.stream;
    if (segment.origin != kNoOrigin) out.made_by = places.OfOrigin(segment.origin);
    moment.segments.push_back(std::move(out));
  }
  std::map<GroupId, Pin> pins;
  for (const PoolPicture::Pin& pin : picture.pins) {
    const GroupId group = places.Merged(collector.origins()[pin.origin].group);
    Pin& out = pins[group];
    if (out.origin == kNoOrigin) {
      out.origin = pin.origin;
      out.place = places.OfGroup(group);
    }
    out.blocks += pin.blocks;
    out.block_bytes += pin.bytes;
    out.pinned_bytes += pin.pinned;
  }
  for (auto& [group, pin] : pins) moment.pins.push_back(std::move(pin));
  std::sort(moment.pins.begin(), moment.pins.end(),
            [](const Pin& a, const Pin& b) { return a.pinned_bytes > b.pinned_bytes; });
  if (moment.pins.size() > 20) moment.pins.resize(20);
  return moment;
}

}  // namespace

std::vector<DeviceAccount> MakeAccounts(Collector& collector, const Steps& steps) {
  std::vector<DeviceAccount> accounts;
  for (const auto& [number, device] : collector.devices()) {
    if (number < 0) continue;
    DeviceAccount account;
    account.device = number;
    account.max_used = device->max_used;
    const Peak which = MainPeak(*device);
    const uint64_t launches = device->launch_bytes;
    account.at_peak = AtPeak(collector, *device, which, steps);
    if (FullestElsewhere(*device)) {
      account.at_fullest = AtPeak(collector, *device, kSegmentPeak, steps);
      account.at_fullest->launches = launches;
      for (OriginId id = 0; id < collector.usage().size(); ++id) {
        const Origin& origin = collector.origins()[id];
        if (origin.device != number || origin.level != Level::kBlock) continue;
        const uint64_t bytes = collector.usage()[id].BytesAt(kSegmentPeak, device->epoch[kSegmentPeak]);
        if (bytes != 0) account.blocks_at_fullest.emplace_back(id, bytes);
      }
    }
    account.at_end = Sum(collector, *device, false, which);
    account.at_end.moment = MomentOf(collector.last_index(), collector.last_time_us(), steps);
    Close(account.at_end, device->last_reading, device->first_reading, device->segments);
    if (device->last_reading.valid && collector.last_time_us() > device->last_reading.time_us) {
      account.at_end.reading_age_us = collector.last_time_us() - device->last_reading.time_us;
    }
    if (account.at_end.measured) {
      account.at_end.used += device->launch_bytes_since_reading;
      account.at_end.unattributed += static_cast<int64_t>(device->launch_bytes_since_reading);
    }
    if (device->first_reading.valid) {
      uint64_t most = 0;
      account.context_at_most = UINT64_MAX;
      const auto see = [&](const Reading& one) {
        if (!one.valid) return;
        const uint64_t rest = one.used - std::min(one.used, one.segments);
        most = std::max(most, rest);
        account.others_gave_back = std::max(account.others_gave_back, most - rest);
        account.context_at_most = std::min(account.context_at_most, rest);
      };
      see(device->first_reading);
      for (const Reading& kept : device->readings) see(kept);
      see(device->last_reading);
    }
    account.at_peak.launches = launches;
    account.at_end.launches = launches;
    accounts.push_back(std::move(account));
  }
  return accounts;
}

std::vector<FragmentationFinding> FindFragmentation(Collector& collector, Places& places,
                                                    const Steps& steps) {
  std::vector<FragmentationFinding> findings;
  for (const auto& [number, device] : collector.devices()) {
    if (device->block_births == 0 || device->reported_reserved_peak == 0) continue;
    FragmentationFinding finding;
    finding.device = number;
    finding.reserved_peak = device->reported_reserved_peak;
    finding.allocated_peak = device->peak[kBlockPeak].bytes;
    finding.needless_segments = device->needless_count;
    finding.needless_bytes = device->needless_bytes;
    std::map<GroupId, uint64_t> by_line;
    for (const ReserveGrowth& growth : device->growth) {
      if (growth.needless != 0)
        by_line[places.Merged(collector.origins()[growth.origin].group)] += growth.needless;
    }
    for (const auto& [group, bytes] : by_line) {
      if (bytes > finding.needless_place_bytes) {
        finding.needless_place_bytes = bytes;
        finding.needless_place = places.OfGroup(group);
      }
    }
    if (device->worst.index != kNoIndex) finding.worst = Name(device->worst, collector, places, steps);
    if (device->refused_asked != 0) {
      const PoolPicture::Refused& refused = device->refused;
      finding.why = {MomentOf(device->refused_index, device->refused_time_us, steps),
                     places.OfOrigin(device->refused_origin),
                     device->refused_asked,
                     refused.free,
                     refused.pieces,
                     refused.other_streams,
                     refused.too_small,
                     refused.largest,
                     refused.other_pool};
    }
    const PoolPicture last =
        collector.pools().Picture(number, collector.last_index(), collector.last_time_us());
    finding.last = Name(last, collector, places, steps);
    finding.streams = std::max(device->worst.streams, last.streams);
    // A pool in which long-lived blocks keep much from being given back or used again, and that took more
    // memory for it: a quarter of what was reserved lies in holes, and the reserve is well above what was
    // ever needed.
    const uint64_t waste = finding.reserved_peak - std::min(finding.reserved_peak, finding.allocated_peak);
    const bool holes =
        finding.worst.gap_bytes * 4 >= finding.reserved_peak && finding.worst.gap_bytes >= (64u << 20);
    const bool taken = finding.needless_bytes * 8 >= finding.reserved_peak;
    finding.headline = holes && taken && waste * 5 >= finding.reserved_peak;
    findings.push_back(std::move(finding));
  }
  return findings;
}

namespace {

// Sets what would have made room, cheapest first: a cache given back, one piece instead of many, or the
// fewest holders; and the advice that follows.
void WhatWouldHaveFitted(bool asked_by_allocator, OutOfMemoryFinding& finding) {
  const uint64_t cached = finding.gap_bytes + finding.empty_segments_bytes;
  const uint64_t free = cached + finding.device_free;
  // A caching allocator gives its empty segments back by itself before it fails; a library that asks the
  // driver cannot make it do so.
  finding.fits_after_empty_cache = finding.driver && !asked_by_allocator && finding.measured &&
                                   finding.empty_segments_bytes != 0 &&
                                   finding.empty_segments_bytes + finding.device_free >= finding.asked;
  finding.fits_without_fragmentation = free >= finding.asked && cached != 0;
  finding.shortfall = finding.asked - std::min(finding.asked, free);
  uint64_t missing = finding.shortfall;
  for (const SharePlace& holder : finding.largest) {
    if (missing == 0) break;
    missing -= std::min(missing, holder.bytes);
    finding.release.push_back(holder);
  }
  // One that is large enough by itself is less to give up than several: the smallest such.
  for (const SharePlace& holder : finding.largest) {
    if (holder.bytes >= finding.shortfall && finding.shortfall != 0) finding.release.assign(1, holder);
  }
  if (missing != 0) finding.release.clear();
  if (finding.fits_after_empty_cache) {
    finding.advice = "it would have fitted after torch.cuda.empty_cache(): " +
                     std::to_string(finding.empty_segments_bytes) +
                     " B lie in the allocator's empty segments, which only it can give back";
  } else if (finding.fits_without_fragmentation) {
    finding.advice =
        "free memory would have sufficed in one piece: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
  } else if (finding.measured && finding.asked > finding.device_total) {
    finding.advice = "more was asked for than the device has: split the request";
    finding.release.clear();
  } else if (finding.measured && finding.unattributed > static_cast<int64_t>(finding.device_total / 4)) {
    finding.advice =
        "much of the device is taken outside this process's allocations: look for other processes on it";
  } else if (!finding.release.empty()) {
    finding.advice =
        "it would have fitted after releasing what was born at " + finding.release.front().place.Short();
    for (size_t i = 1; i < finding.release.size(); ++i)
      finding.advice += (i + 1 == finding.release.size() ? " and " : ", ") + finding.release[i].place.Short();
  } else if (!finding.largest.empty()) {
    finding.advice = "the largest holder then was " + finding.largest.front().place.Short();
  }
}

}  // namespace

std::vector<OutOfMemoryFinding> ExplainOutOfMemory(Collector& collector, Places& places, const Steps& steps) {
  std::vector<OutOfMemoryFinding> findings;
  const std::vector<OutOfMemoryRecord>& records = collector.out_of_memory();
  for (size_t i = 0; i < records.size(); ++i) {
    const OutOfMemoryRecord& record = records[i];
    const bool driver = record.change.kind == ChangeKind::kFailed;
    // The allocator's own report follows the driver calls that failed for it.
    if (driver) {
      bool reported = false;
      for (size_t j = i + 1; j < records.size() && j <= i + 4; ++j) {
        if (records[j].change.kind == ChangeKind::kOutOfMemory &&
            records[j].change.time_us - record.change.time_us < 1'000'000) {
          reported = true;
        }
      }
      if (reported) continue;
    }
    OutOfMemoryFinding finding;
    const SiteId site = record.change.cause != 0 ? record.change.cause : record.change.site;
    const SiteInfo& info = collector.model().Site(site);
    finding.moment = MomentOf(record.change.index, record.change.time_us, steps);
    finding.device = record.change.device;
    finding.driver = driver;
    finding.api = std::string(collector.model().String(info.api));
    finding.asked = record.change.size;
    const Level level = driver ? Level::kSegment : Level::kBlock;
    finding.origin = collector.origins().OfSite(site, level, record.change.space, record.change.device);
    finding.place = places.OfOrigin(finding.origin);
    finding.allocated = driver ? record.picture.allocated : record.change.reported_allocated;
    finding.reserved = driver ? record.picture.reserved : record.change.reported_reserved;
    finding.gap_bytes = record.picture.gap_bytes;
    finding.empty_segments_bytes = record.picture.empty_bytes;
    finding.largest_fit = record.picture.largest_fit;
    finding.other_segments = record.other_segments;
    if (record.reading.valid) {
      finding.measured = true;
      finding.device_total = record.reading.total;
      const int64_t used = static_cast<int64_t>(record.reading.used) + static_cast<int64_t>(record.segments) -
                           static_cast<int64_t>(record.reading.segments);
      finding.device_free = static_cast<uint64_t>(
          std::max<int64_t>(0, static_cast<int64_t>(record.reading.total) - std::max<int64_t>(0, used)));
      finding.unattributed = used - static_cast<int64_t>(record.segments);
    }
    for (const auto& [track, bytes] : record.tracks) {
      SharePlace share;
      share.group = collector.tracks()[track].group;
      share.place = places.OfGroup(share.group);
      share.bytes = bytes;
      finding.largest.push_back(std::move(share));
    }
    const std::string& library =
        collector.origins().library_name(collector.origins()[finding.origin].library);
    WhatWouldHaveFitted(collector.allocator_origin(finding.origin) || library.starts_with("libc10_cuda"),
                        finding);
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<ErrorFinding> FindErrors(Collector& collector, Places& places, const Steps& steps) {
  std::vector<ErrorFinding> findings;
  for (const ErrorRecord& record : collector.errors()) {
    const SiteInfo& info = collector.model().Site(record.site);
    // An allocator's block that was born before tracing, or in a lost part, is no mistake of the program.
    if (record.kind == ErrorFinding::Kind::kUnknownFree && (IsBlock(info.kind) || collector.gaps() != 0))
      continue;
    ErrorFinding finding;
    finding.kind = record.kind;
    finding.api = std::string(collector.model().String(info.api));
    finding.result = info.result;
    finding.count = record.count;
    finding.bytes = record.bytes;
    finding.first = MomentOf(record.first_index, record.first_time_us, steps);
    finding.origin = collector.origins().OfSite(record.site, Level::kSegment, info.space, info.device);
    finding.place = places.OfOrigin(finding.origin);
    findings.push_back(std::move(finding));
  }
  std::sort(findings.begin(), findings.end(),
            [](const ErrorFinding& a, const ErrorFinding& b) { return a.count > b.count; });
  return findings;
}

std::string_view ErrorKindName(ErrorFinding::Kind kind) {
  switch (kind) {
    case ErrorFinding::Kind::kDoubleFree:
      return "double free";
    case ErrorFinding::Kind::kUnknownFree:
      return "free of an unknown address";
    case ErrorFinding::Kind::kOtherDeviceFree:
      return "freed on another device";
    case ErrorFinding::Kind::kFailedCall:
      return "failed call";
  }
  return "";
}

}  // namespace gpumemtrace::analyzer
