#include "analyzer/trace/event_decoder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "analyzer/trace/framing.h"
#include "gpumemtrace/event_columns.h"

namespace gpumemtrace::analyzer {
namespace {

// Events handed over at once: small enough to stay in the second-level cache.
constexpr size_t kBatchEvents = 1024;

TraceMark ToMark(const Mark& mark) {
  return {.kind = mark.kind(),
          .source = mark.source(),
          .thread = mark.thread(),
          .text = mark.text(),
          .domain = mark.domain(),
          .sequence = mark.sequence(),
          .time_us = mark.time_us(),
          .number = mark.number()};
}

DeviceReading ToReading(const DeviceMemory& memory) {
  return {.device = memory.device(),
          .sequence = memory.sequence(),
          .time_us = memory.time_us(),
          .free = memory.free(),
          .total = memory.total()};
}

}  // namespace

EventDecoder::EventDecoder(TraceModel& model, TraceSink& sink, DamageReport& damage)
    : model_(model), sink_(sink), damage_(damage) {
  buffer_.resize(kBatchEvents);
}

void EventDecoder::SiteDefined(SiteId id) {
  if (id >= sites_.size()) sites_.resize(std::max<size_t>(id + size_t{1}, model_.sites.size()));
  const SiteInfo& info = model_.Site(id);
  HotSite& site = sites_[id];
  const uint32_t kind = static_cast<uint32_t>(info.kind);
  site.size = info.size;
  site.kind = info.kind;
  site.shift = info.address_shift;
  site.lane = address_prediction::LaneOf(info.stream);
  site.size_varies = info.size_varies;
  site.failed = info.failed();
  site.begins = event_columns::BeginsObject(kind) && !site.failed;
  site.has_live = event_columns::HasLive(kind);
  site.has_address = event_columns::HasAddress(kind);
  site.block = IsBlock(info.kind);
  const auto [it, inserted] = device_index_.try_emplace(info.device, static_cast<uint32_t>(devices_.size()));
  if (inserted) devices_.emplace_back();
  site.device = it->second;
}

void EventDecoder::Lost(uint64_t events, uint64_t offset, const std::string& fault) {
  damage_.events_lost += events;
  PacketFramer::NoteDamage(damage_, offset, fault);
}

void EventDecoder::Decode(const ReadyPacket& packet) {
  const Content& content = packet.content();
  interruptions_.clear();
  next_interruption_ = 0;
  // Where there are many, they are compressed together with the definitions.
  for (const Content* part : {packet.definitions(), &content}) {
    if (part == nullptr) continue;
    for (const Mark& mark : part->mark()) interruptions_.emplace_back(mark.sequence(), ToMark(mark));
  }
  for (const DeviceMemory& memory : content.device_memory()) {
    interruptions_.emplace_back(memory.sequence(), ToReading(memory));
  }
  std::stable_sort(interruptions_.begin(), interruptions_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (content.has_folded() || in_folded_) BeginFolded(packet);
  if (content.has_events()) DecodeEvents(packet);
  Flush();
  if (in_folded_) EndFolded(packet);
}

void EventDecoder::BeginFolded(const ReadyPacket& packet) {
  const Folded& folded = packet.content().folded();
  if (in_folded_ && (!packet.content().has_folded() || folded.begin())) {
    // Its last part is lost, and with it what was counted.
    Lost(folded_.last_index + 1 - std::min(next_index_, folded_.last_index + 1), packet.offset,
         "a part of a folded window is missing");
    next_index_ = std::max(next_index_, folded_.last_index + 1);
    in_folded_ = false;
    sink_.OnFolded(folded_);
    sink_.OnGap();
  }
  if (!packet.content().has_folded() || in_folded_) return;
  folded_ = {};
  folded_.first_index = folded.first_index();
  folded_.last_index = std::min(folded.last_index(), uint64_t{1} << 62);
  folded_.first_time_us = folded.first_time_us();
  folded_.last_time_us = folded.last_time_us();
  folded_.first_sequence = folded.first_sequence();
  folded_.last_sequence = folded.last_sequence();
  if (folded_.last_index < folded_.first_index || folded_.first_index < next_index_) {
    Lost(0, packet.offset, "a folded window lies where events were already read");
    ++damage_.packets_lost;
    return;
  }
  if (folded_.first_index > next_index_) {
    Lost(folded_.first_index - next_index_, packet.offset, "events are missing");
    sink_.OnGap();
    next_index_ = folded_.first_index;
  }
  in_folded_ = true;
  sink_.OnFoldedBegin(folded_);
}

void EventDecoder::EndFolded(const ReadyPacket& packet) {
  const Folded& folded = packet.content().folded();
  if (const FoldedStacks* stacks = packet.folded_stacks()) {
    const auto at = [](const auto& list, int i) { return i < list.size() ? list[i] : 0; };
    for (int i = 0; i < stacks->site_size(); ++i) {
      const SiteId site = stacks->site(i);
      if (site >= sites_.size() || sites_[site].kind == EventKind::kUnspecified) {
        Lost(0, packet.offset, "a folded window refers to a definition that is missing");
        break;
      }
      const uint64_t last_birth = at(stacks->last_birth(), i);
      folded_.stacks.push_back({.site = site,
                                .births = at(stacks->births(), i),
                                .born_bytes = at(stacks->born_bytes(), i),
                                .least_count = at(stacks->least_count(), i),
                                .most_count = at(stacks->most_count(), i),
                                .least_bytes = at(stacks->least_bytes(), i),
                                .most_bytes = at(stacks->most_bytes(), i),
                                .count = at(stacks->count(), i),
                                .bytes = at(stacks->bytes(), i),
                                .last_birth = last_birth == 0 || last_birth > folded_.last_index + 1
                                                  ? 0
                                                  : folded_.last_index + 1 - last_birth});
    }
  }
  if (!folded.end()) return;
  folded_.windows = folded.windows();
  folded_.events = folded.events();
  folded_.events_dropped = folded.events_dropped();
  folded_.totals_agreed = folded.totals_agreed();
  folded_.totals_disagreed = folded.totals_disagreed();
  for (const gpumemtrace::FoldedPeak& peak : folded.peak()) {
    folded_.peaks.push_back({.device = peak.device(),
                             .blocks = peak.blocks(),
                             .bytes = peak.bytes(),
                             .index = peak.index(),
                             .time_us = peak.time_us(),
                             .least_bytes = peak.least_bytes()});
  }
  next_index_ = std::max(next_index_, folded_.last_index + 1);
  in_folded_ = false;
  sink_.OnFolded(folded_);
}

void EventDecoder::DecodeEvents(const ReadyPacket& packet) {
  const Events& events = packet.content().events();
  VarintCursor site_column = packet.Column(gpumemtrace::SITE);
  VarintCursor address_column = packet.Column(gpumemtrace::ADDRESS);
  VarintCursor live_column = packet.Column(gpumemtrace::LIVE);
  VarintCursor time_column = packet.Column(gpumemtrace::TIME);
  VarintCursor sequence_column = packet.Column(gpumemtrace::SEQUENCE);
  VarintCursor allocated_column = packet.Column(gpumemtrace::ALLOCATED);
  VarintCursor reserved_column = packet.Column(gpumemtrace::RESERVED);
  VarintCursor argument_0_column = packet.Column(gpumemtrace::ARGUMENT_0);
  VarintCursor argument_1_column = packet.Column(gpumemtrace::ARGUMENT_1);
  VarintCursor size_column = packet.Column(gpumemtrace::SIZE);
  VarintCursor index_column = packet.Column(gpumemtrace::INDEX);
  const bool folded = in_folded_;

  const uint64_t count = events.count();
  // An overflow of the index would make every birth findable twice; no trace is that long.
  if (events.first_index() < next_index_ || events.first_index() > (uint64_t{1} << 62)) {
    Lost(count, packet.offset, "a packet repeats events that were already read");
    return;
  }
  if (events.first_index() > next_index_ && !folded) {
    Lost(events.first_index() - next_index_, packet.offset, "events are missing");
    needs_restart_ = true;
    Flush();
    sink_.OnGap();
  }
  next_index_ = events.first_index();
  if (events.restart()) {
    needs_restart_ = false;
    ++epoch_;
    std::fill(devices_.begin(), devices_.end(), DeviceTotals{});
    if (!predictions_.empty()) predictor_.Restart();
    if (address_tables_ != nullptr) addresses_.Restart(next_index_);
  }
  if (needs_restart_) {
    Lost(count, packet.offset, "events cannot be decoded without a lost packet");
    next_index_ += count;
    Flush();
    sink_.OnGap();
    return;
  }

  const bool predicted = events.predicted();
  if (predicted && predictions_.empty()) {
    predictions_.resize(event_prediction::Predictor::kEntries);
    predictor_.Use(predictions_.data());
  }
  const bool addresses_predicted = events.addresses_predicted();
  if (addresses_predicted && address_tables_ == nullptr) {
    address_tables_ = std::make_unique<address_prediction::Tables>();
    addresses_.Use(address_tables_.get());
    addresses_.Restart(next_index_);
  }
  const uint64_t time_step = std::max<uint32_t>(events.time_step_us(), 1);
  uint64_t time = events.first_time_us();
  uint64_t sequence = events.first_sequence() - 1;
  const char* fault = nullptr;
  HotSite* const sites = sites_.data();
  const size_t site_count = sites_.size();
  uint64_t done = 0;
  for (; done < count; ++done) {
    auto id = static_cast<SiteId>(site_column.Next());
    event_prediction::Entry expected{};
    if (predicted && id == 0) {
      expected = predictor_.Predict();
      id = expected.site;
    }
    if (id >= site_count || sites[id].kind == EventKind::kUnspecified || site_column.exhausted()) {
      fault = "an event refers to a definition that is missing";
      break;
    }
    HotSite& site = sites[id];
    if (site.epoch != epoch_) {
      site.epoch = epoch_;
      site.last_address = 0;
      site.last_size = 0;
      site.last_argument[0] = 0;
      site.last_argument[1] = 0;
    }
    // Every field is set.
    TraceEvent& event = buffer_[buffered_];
    if (folded) {
      next_index_ +=
          std::min(index_column.Next(), folded_.last_index - std::min(folded_.last_index, next_index_));
    }
    event.index = next_index_++;
    event.site = id;
    event.kind = site.kind;
    const auto step =
        static_cast<int64_t>(time_column.NextZigzag() + static_cast<uint64_t>(int64_t{expected.step}));
    event.time_us = time += static_cast<uint64_t>(step) * time_step;
    event.sequence = sequence += sequence_column.NextZigzag() + 1;
    uint64_t address = 0;
    uint64_t size = site.size;
    uint64_t birth_index = kNoIndex;
    uint32_t object = kNoSlot;

    bool by_address = site.has_address;
    bool has_size = site.size_varies;
    const BirthTable::Birth* birth = nullptr;
    uint64_t distance = 0;
    if (site.has_live) {
      distance = predicted ? live_column.NextZigzag() + expected.distance : live_column.Next();
      if (distance == 0) {
        by_address = true;
        has_size = has_size || site.kind == EventKind::kBlockFree;
      } else {
        birth_index = event.index - distance;
        birth = births_.Find(birth_index);
        if (birth != nullptr) {
          object = birth->object;
          address = birth->address;
          size = birth->size;
        } else if (site.block) {
          devices_[site.device].known = false;
        }
      }
    }
    if (predicted) predictor_.Learn(id, step, distance);
    if (has_size) {
      site.last_size += size_column.NextZigzag();
      size = site.last_size;
    }
    const bool placed = addresses_predicted && site.kind == EventKind::kBlockAllocate &&
                        address_prediction::Follows(site.shift, 0, size);
    if (by_address) {
      if (placed) {
        site.last_address =
            addresses_.Predict(static_cast<int32_t>(site.device), site.lane, size, site.last_address);
      }
      site.last_address += address_column.NextZigzag();
      address = site.last_address << site.shift;
    } else if (addresses_predicted && birth != nullptr && site.kind == EventKind::kBlockFree &&
               addresses_.Knows(birth->index) &&
               address_prediction::Follows(site.shift, birth->address, birth->size)) {
      addresses_.Freed(static_cast<int32_t>(site.device), site.lane,
                       birth->address >> address_prediction::kShift, birth->size);
    }
    if (site.block) {
      DeviceTotals& totals = devices_[site.device];
      const uint64_t change = site.kind == EventKind::kBlockAllocate ? size
                              : site.kind == EventKind::kBlockFree   ? 0 - size
                                                                     : 0;
      event.argument[0] = totals.allocated += change + allocated_column.NextZigzag();
      const uint64_t reserved = totals.reserved + reserved_column.NextZigzag();
      if (placed) {
        addresses_.Allocated(address >> address_prediction::kShift, size,
                             totals.reserved != 0 ? reserved - totals.reserved : 0);
      }
      event.argument[1] = totals.reserved = reserved;
      // What the events that are gone did to the sum is not known: the recorder has checked it.
      event.totals_known = totals.known && !folded;
    } else {
      event.argument[0] = site.last_argument[0] += argument_0_column.NextZigzag();
      event.argument[1] = site.last_argument[1] += argument_1_column.NextZigzag();
      event.totals_known = true;
    }
    if (site.begins) {
      object = births_.Insert(event.index, address, size, id);
    } else if (birth != nullptr && !site.failed) {
      births_.Erase(birth);
    }
    event.address = address;
    event.size = size;
    event.birth_index = birth_index;
    event.object = object;
    if (++buffered_ == kBatchEvents) Flush();
  }
  if (fault == nullptr &&
      (time_column.exhausted() || sequence_column.exhausted() || live_column.exhausted() ||
       address_column.exhausted() || allocated_column.exhausted() || reserved_column.exhausted() ||
       argument_0_column.exhausted() || argument_1_column.exhausted() || size_column.exhausted())) {
    fault = "the columns of a packet do not fit together";
  }
  if (fault != nullptr) {
    Lost(count - done, packet.offset, fault);
    ++damage_.packets_lost;
    next_index_ += count - done;
    needs_restart_ = true;
    Flush();
    sink_.OnGap();
  }
}

void EventDecoder::Flush() {
  std::span<const TraceEvent> rest = buffered();
  // Interruptions that belong between events of this batch. Events are in order but for late frees, so the
  // first greater sequence number is the place.
  while (next_interruption_ < interruptions_.size()) {
    const auto& [sequence, what] = interruptions_[next_interruption_];
    size_t before = 0;
    while (before < rest.size() && rest[before].sequence < sequence) ++before;
    if (before == rest.size() && buffered_ == kBatchEvents) break;  // more events may come before it
    if (before != 0) sink_.OnEvents(rest.first(before));
    rest = rest.subspan(before);
    if (const TraceMark* mark = std::get_if<TraceMark>(&what)) {
      sink_.OnMark(*mark);
    } else {
      sink_.OnDeviceReading(std::get<DeviceReading>(what));
    }
    ++next_interruption_;
  }
  if (!rest.empty()) sink_.OnEvents(rest);
  buffered_ = 0;
}

void EventDecoder::IndexBirths() {
  births_indexed_ = true;
  births_.ForEach([this](const BirthTable::Birth& birth) {
    uint64_t& index =
        birth_by_address_.try_emplace({static_cast<uint32_t>(model_.Site(birth.site).kind), birth.address}, 0)
            .first->second;
    index = std::max(index, birth.index);
  });
}

void EventDecoder::Append(TraceEvent event) {
  if (!births_indexed_) IndexBirths();
  if (event.site >= sites_.size()) SiteDefined(event.site);
  const HotSite& site = sites_[event.site];
  event.index = next_index_++;
  const uint32_t kind = static_cast<uint32_t>(event.kind);
  if (site.has_live) {
    const auto found = birth_by_address_.find({event_columns::BirthOf(kind), event.address});
    if (found != birth_by_address_.end()) {
      event.birth_index = found->second;
      if (const BirthTable::Birth* birth = births_.Find(found->second)) {
        event.object = birth->object;
        event.size = birth->size;
        if (!site.failed) births_.Erase(birth);
      }
      if (!site.failed) birth_by_address_.erase(found);
    }
  } else if (site.begins) {
    event.object = births_.Insert(event.index, event.address, event.size, event.site);
    birth_by_address_[{kind, event.address}] = event.index;
  }
  buffer_[buffered_++] = event;
  if (buffered_ == kBatchEvents) {
    sink_.OnEvents(buffered());
    buffered_ = 0;
  }
}

void EventDecoder::AppendMark(const TraceMark& mark) {
  if (buffered_ != 0) sink_.OnEvents(buffered());
  buffered_ = 0;
  sink_.OnMark(mark);
}

void EventDecoder::AppendReading(const DeviceReading& reading) {
  if (buffered_ != 0) sink_.OnEvents(buffered());
  buffered_ = 0;
  sink_.OnDeviceReading(reading);
}

}  // namespace gpumemtrace::analyzer
