#include "recorder/fold/window.h"

#include <algorithm>

#include "proto/gpumemtrace/event_columns.h"
#include "recorder/fold/field_reader.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {

namespace columns = event_columns;

// --- events ---

void FoldWindow::Bounds::Add(const FoldEvent& event) {
  if (empty) {
    *this = {event.index, event.index, event.time, event.time, event.sequence, event.sequence, false};
  }
  last_index = event.index;
  first_time = std::min(first_time, event.time);
  last_time = std::max(last_time, event.time);
  first_sequence = std::min(first_sequence, event.sequence);
  last_sequence = std::max(last_sequence, event.sequence);
}

bool FoldWindow::AddEvents(const EventColumns& events, bool folded, bool copy) {
  if (!reader_.Begin(events, folded)) return false;
  EventReader::Read read;
  while (reader_.Next(&read)) {
    const FoldEvent& event = read.event;
    const FoldSite& site = *read.site;
    // The bounds of an earlier window are in its message.
    if (!copy && !folded) {
      places_.BeginAt(event.index);
      bounds_.Add(event);
      ++events_;
      totals_agreed_ += read.totals == EventReader::Read::kAgrees;
      totals_disagreed_ += read.totals == EventReader::Read::kDisagrees;
    }
    // Where the allocator took or gave memory, the analyses look at the event itself.
    const bool keep = read.reserved_changed;
    if (columns::BeginsObject(read.kind) && !site.failed) {
      if (!Begins(event, site, keep, folded, copy)) return false;
      continue;
    }
    bool dropped = false;
    if (read.birth != nullptr && !site.failed && !Ends(read.birth, keep, folded, copy, &dropped))
      return false;
    if (!copy && !dropped && !kept_.Add(event)) return false;
  }
  if (reader_.failed()) return false;
  if (kept_.Sparse()) kept_.Compact();
  return true;
}

bool FoldWindow::Begins(const FoldEvent& event, const FoldSite& site, bool keep, bool folded, bool copy) {
  if (!copy && !kept_.Add(event)) return false;
  const size_t kept = copy ? 0 : kept_.size();
  if (kept > kMostKept) return false;
  if (!live_.Insert({event.index, event.address, event.size, event.site,
                     static_cast<uint32_t>(kept) & kMostKept, keep})) {
    return false;
  }
  if (site.counted == 0) return true;
  if (!folded) return places_.Born(site.place, event.size, event.index, event.time);
  places_.BornBefore(site.place, event.size);
  return true;
}

bool FoldWindow::Ends(LiveBirth* birth, bool keep, bool folded, bool copy, bool* dropped) {
  const FoldSite& made = sites_[birth->site];
  if (made.counted != 0) {
    if (folded) {
      places_.DiedBefore(made.place, birth->size);
    } else if (!places_.Died(made.place, birth->size)) {
      return false;
    }
    if (!copy && birth->kept != 0 && birth->keep == 0 && !keep) {
      kept_.Drop(birth->kept);
      gone_ += 2;
      *dropped = true;
    }
  }
  live_.Erase(birth);
  return true;
}

// --- earlier windows ---

bool FoldWindow::AddFolded(std::span<const uint8_t> message) {
  FieldReader reader(message);
  Field field;
  Bounds bounds;
  uint32_t windows = 0;
  bool end = false;
  while (reader.Next(&field)) {
    switch (field.number) {
      case fields::kFoldedEnd:
        end = field.value != 0;
        break;
      case fields::kFoldedFirstIndex:
        bounds.first_index = field.value;
        break;
      case fields::kFoldedLastIndex:
        bounds.last_index = field.value;
        break;
      case fields::kFoldedFirstTime:
        bounds.first_time = field.value;
        break;
      case fields::kFoldedLastTime:
        bounds.last_time = field.value;
        break;
      case fields::kFoldedFirstSequence:
        bounds.first_sequence = field.value;
        break;
      case fields::kFoldedLastSequence:
        bounds.last_sequence = field.value;
        break;
      case fields::kFoldedWindows:
        windows = static_cast<uint32_t>(field.value);
        break;
      case fields::kFoldedEvents:
        events_ += field.value;
        break;
      case fields::kFoldedEventsDropped:
        gone_ += field.value;
        break;
      case fields::kFoldedTotalsAgreed:
        totals_agreed_ += field.value;
        break;
      case fields::kFoldedTotalsDisagreed:
        totals_disagreed_ += field.value;
        break;
      case fields::kFoldedPeak:
        if (!places_.AddPeak(field.bytes)) return false;
        break;
      default:
        break;
    }
  }
  if (reader.failed()) return false;
  places_.BeginAt(bounds.first_index);
  if (bounds_.empty) {
    bounds_ = bounds;
    bounds_.empty = false;
  }
  bounds_.last_index = bounds.last_index;
  bounds_.first_time = std::min(bounds_.first_time, bounds.first_time);
  bounds_.last_time = std::max(bounds_.last_time, bounds.last_time);
  bounds_.first_sequence = std::min(bounds_.first_sequence, bounds.first_sequence);
  bounds_.last_sequence = std::max(bounds_.last_sequence, bounds.last_sequence);
  if (end) windows_ += windows;
  return true;
}

bool FoldWindow::AddStacks(std::span<const uint8_t> stacks) {
  Varints list[11];
  FieldReader reader(stacks);
  Field field;
  while (reader.Next(&field)) {
    if (field.number < 11) list[field.number] = Varints(field.bytes);
  }
  if (reader.failed()) return false;
  while (!list[fields::kFoldedStacksSite].done()) {
    const FoldSite* site = sites_.Find(list[fields::kFoldedStacksSite].Next());
    if (site == nullptr || site->counted == 0) return false;
    PlaceFigures figures{};
    figures.births = list[fields::kFoldedStacksBirths].Next();
    figures.born_bytes = list[fields::kFoldedStacksBornBytes].Next();
    figures.least_count = list[fields::kFoldedStacksLeastCount].Next();
    figures.most_count = list[fields::kFoldedStacksMostCount].Next();
    figures.least_bytes = list[fields::kFoldedStacksLeastBytes].Next();
    figures.most_bytes = list[fields::kFoldedStacksMostBytes].Next();
    figures.count = list[fields::kFoldedStacksCount].Next();
    figures.bytes = list[fields::kFoldedStacksBytes].Next();
    const uint64_t last_birth = list[fields::kFoldedStacksLastBirth].Next();
    if (last_birth != 0) figures.last_birth = bounds_.last_index + 1 - last_birth;
    if (!places_.AddFigures(site->place, figures)) return false;
  }
  for (const Varints& one : list) {
    if (one.exhausted()) return false;
  }
  return true;
}

// --- writing ---

void FoldWindow::AppendFolded(ByteBuffer& folded) const {
  ProtoWriter message(folded);
  message.add_uint64(fields::kFoldedFirstIndex, bounds_.first_index);
  message.add_uint64(fields::kFoldedLastIndex, bounds_.last_index);
  message.add_uint64(fields::kFoldedFirstTime, bounds_.first_time);
  message.add_uint64(fields::kFoldedLastTime, bounds_.last_time);
  message.add_uint64(fields::kFoldedFirstSequence, bounds_.first_sequence);
  message.add_uint64(fields::kFoldedLastSequence, bounds_.last_sequence);
  message.add_uint32(fields::kFoldedWindows, std::max(windows_, 1u));
}

void FoldWindow::AppendEnd(ByteBuffer& folded) {
  ProtoWriter message(folded);
  message.add_uint64(fields::kFoldedEvents, events_);
  message.add_uint64(fields::kFoldedEventsDropped, gone_);
  message.add_uint64(fields::kFoldedTotalsAgreed, totals_agreed_);
  if (totals_disagreed_ != 0) message.add_uint64(fields::kFoldedTotalsDisagreed, totals_disagreed_);
  places_.AppendPeaks(folded);
}

void FoldWindow::Next() {
  // What they made is in an earlier window from now on.
  kept_.GiveUp();
  places_.Next();
  bounds_ = {};
  windows_ = 0;
  events_ = gone_ = totals_agreed_ = totals_disagreed_ = 0;
}

}  // namespace gpumemtrace::recorder
