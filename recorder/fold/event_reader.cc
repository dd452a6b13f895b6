#include "recorder/fold/event_reader.h"

#include "proto/gpumemtrace/event_columns.h"

namespace gpumemtrace::recorder {

namespace columns = event_columns;

bool EventReader::Begin(const EventColumns& events, bool folded) {
  failed_ = false;
  for (uint32_t i = 0; i < kEventColumns; ++i) {
    column_[i] = Varints(events.data[i].span());
    absent_[i] = events.data[i].empty();
  }
  if (events.restart) {
    ++epoch_;
    last_.Restart();
    last_restarts_ = last_.restarts();
  }
  if (last_restarts_ != last_.restarts()) return Fail();
  if (events.predicted && !predictor_.ready()) {
    if (!predictions_.Resize(event_prediction::Predictor::kEntries)) return Fail();
    predictor_.Use(predictions_.data());
  }
  if (events.restart && predictor_.ready()) predictor_.Restart();
  if (events.addresses_predicted && !addresses_.ready()) {
    if (!address_tables_.Resize(1)) return Fail();
    addresses_.Use(address_tables_.data());
    addresses_.Restart(events.first_index);
  }
  if (events.restart && addresses_.ready()) addresses_.Restart(events.first_index);
  folded_ = folded;
  predicted_ = events.predicted;
  addresses_predicted_ = events.addresses_predicted;
  time_step_ = events.time_step;
  left_ = events.count;
  index_ = events.first_index - 1;
  time_ = events.first_time;
  sequence_ = events.first_sequence - 1;
  return true;
}

bool EventReader::Next(Read* read) {
  if (left_ == 0) {
    for (const Varints& one : column_) failed_ |= one.exhausted();
    return false;
  }
  --left_;
  uint64_t id = Get(kSite);
  event_prediction::Entry expected{};
  if (predicted_ && id == 0) {
    expected = predictor_.Predict();
    id = expected.site;
  }
  FoldSite* site = sites_.Find(id);
  if (site == nullptr) return Fail();
  *read = {};
  read->site = site;
  const uint8_t kind = read->kind = places_.KindOf(site->place);
  FoldEvent& event = read->event;
  event.site = static_cast<uint32_t>(id);
  event.index = index_ += 1 + Get(kIndex);
  const auto step = static_cast<int64_t>(GetSigned(kTime) + static_cast<uint64_t>(int64_t{expected.step}));
  event.time = time_ += static_cast<uint64_t>(step) * time_step_;
  event.sequence = sequence_ += GetSigned(kSequence) + 1;
  event.birth = kNoBirth;
  event.size = sites_.SizeOf(*site);
  const bool has_live = columns::HasLive(kind);
  uint64_t distance = 0;
  if (has_live) distance = predicted_ ? GetSigned(kLive) + expected.distance : Get(kLive);
  if (predicted_) predictor_.Learn(event.site, step, distance);
  if (distance != 0) {
    event.birth = event.index - distance;
    read->birth = live_.Find(event.birth);
    if (read->birth == nullptr) return Fail();
    event.size = read->birth->size;
    event.address = read->birth->address;
  }

  const bool has_address = columns::HasAddress(kind) || (has_live && distance == 0);
  const bool has_size = site->size_varies || (kind == columns::kBlockFree && distance == 0);
  const bool has_totals = columns::HasTotals(kind);
  const int32_t device = places_.DeviceOf(site->place);
  if (addresses_predicted_ && kind == columns::kBlockFree && read->birth != nullptr &&
      addresses_.Knows(event.birth) && address_prediction::Follows(site->shift, event.address, event.size)) {
    addresses_.Freed(device, site->lane, event.address >> address_prediction::kShift, event.size);
  }
  bool placed = false;
  if (has_address || has_size || !has_totals) {
    LastValues::Slot* last = last_.Of(event.site, site);
    if (last == nullptr) return Fail();
    if (has_size || !has_totals) {
      LastValues::More* more = last_.MoreOf(last);
      if (more == nullptr) return Fail();
      if (has_size) event.size = more->size += GetSigned(kSize);
      if (!has_totals) {
        event.argument[0] = more->argument[0] += GetSigned(kArgument0);
        event.argument[1] = more->argument[1] += GetSigned(kArgument1);
      }
    }
    if (has_address) {
      placed = addresses_predicted_ && kind == columns::kBlockAllocate &&
               address_prediction::Follows(site->shift, 0, event.size);
      if (placed) last->address = addresses_.Predict(device, site->lane, event.size, last->address);
      last->address += GetSigned(kAddress);
      event.address = last->address << site->shift;
    }
  }
  return !has_totals || ReadTotals(read, placed);
}

bool EventReader::ReadTotals(Read* read, bool placed) {
  FoldEvent& event = read->event;
  const FoldSite& site = *read->site;
  Device* device = DeviceOf(places_.DeviceOf(site.place));
  if (device == nullptr) return Fail();
  if (device->epoch != epoch_) {
    device->epoch = epoch_;
    device->allocated = device->reserved = 0;
  }
  const uint64_t change = read->kind == columns::kBlockAllocate ? event.size
                          : read->kind == columns::kBlockFree   ? 0 - event.size
                                                                : 0;
  device->allocated += change + GetSigned(kAllocated);
  const uint64_t reserved = device->reserved + GetSigned(kReserved);
  if (placed) {
    addresses_.Allocated(event.address >> address_prediction::kShift, event.size,
                         device->reserved != 0 ? reserved - device->reserved : 0);
  }
  device->reserved = reserved;
  event.argument[0] = device->allocated;
  event.argument[1] = device->reserved;
  read->reserved_changed = device->reserved != device->true_reserved;
  if (!folded_ && !site.without_totals && !device->allocated_unknown) {
    const bool agrees = device->allocated == device->true_allocated + change;
    read->totals = agrees ? Read::kAgrees : Read::kDisagrees;
  }
  device->true_allocated = device->allocated;
  // It counted blocks whose ends are gone.
  device->allocated_unknown = folded_;
  device->true_reserved = device->reserved;
  return true;
}

EventReader::Device* EventReader::DeviceOf(int32_t ordinal) {
  for (Device& device : devices_) {
    if (device.ordinal == ordinal) return &device;
  }
  Device device{};
  device.ordinal = ordinal;
  return devices_.Push(device) ? &devices_.back() : nullptr;
}

}  // namespace gpumemtrace::recorder
