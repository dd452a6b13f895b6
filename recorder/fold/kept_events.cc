#include "recorder/fold/kept_events.h"

#include "proto/gpumemtrace/event_columns.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {
namespace {

namespace columns = event_columns;

// Columns shorter than this are not worth a zstd frame.
constexpr size_t kLeastCompressed = 48;
// Memory that goes on from window to window.
constexpr size_t kLittle = size_t{512} << 10;

const char* Chars(const ByteBuffer& buffer) {
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

void KeptEvents::GiveUp() {
  for (const FoldEvent& one : events_) {
    if (one.site == kDropped) continue;
    if (LiveBirth* birth = live_.Find(one.index)) birth->kept = 0;
  }
  events_.Clear();
  events_.Trim(kLittle);
  dropped_ = 0;
}

void KeptEvents::Compact() {
  if (dropped_ == 0) return;
  size_t out = 0;
  for (const FoldEvent& one : events_) {
    if (one.site == kDropped) continue;
    const FoldSite& site = sites_[one.site];
    const uint64_t index = one.index;
    events_[out++] = one;
    if (!columns::BeginsObject(places_.KindOf(site.place)) || site.failed) continue;
    if (LiveBirth* birth = live_.Find(index)) birth->kept = static_cast<uint32_t>(out) & 0x7fffffffu;
  }
  events_.Shrink(out);
  dropped_ = 0;
}

bool KeptEvents::PutTotals(const FoldEvent& event, uint8_t kind, int16_t device) {
  Totals* totals = nullptr;
  for (Totals& other : totals_) {
    if (other.device == device) totals = &other;
  }
  if (totals == nullptr) {
    if (!totals_.Push({device, 0, 0})) return false;
    totals = &totals_.back();
  }
  const uint64_t change = kind == columns::kBlockAllocate ? event.size
                          : kind == columns::kBlockFree   ? 0 - event.size
                                                          : 0;
  PutNumber(kAllocated, ZigZag(static_cast<int64_t>(event.argument[0] - (totals->allocated + change))));
  PutNumber(kReserved, ZigZag(static_cast<int64_t>(event.argument[1] - totals->reserved)));
  totals->allocated = event.argument[0];
  totals->reserved = event.argument[1];
  return true;
}

bool KeptEvents::Put(const FoldEvent& event) {
  FoldSite& site = sites_[event.site];
  const uint8_t kind = places_.KindOf(site.place);
  const bool has_live = columns::HasLive(kind);
  const bool known = event.birth != kNoBirth;
  const bool has_size = site.size_varies || (kind == columns::kBlockFree && !known);
  const bool has_totals = columns::HasTotals(kind);
  LastValues::Slot* last = last_.Of(event.site, &site);
  if (last == nullptr) return false;
  LastValues::More* more = has_size || !has_totals ? last_.MoreOf(last) : nullptr;
  if (more == nullptr && (has_size || !has_totals)) return false;

  PutNumber(kSite, event.site);
  PutNumber(kIndex, event.index - index_ - 1);
  PutNumber(kTime, ZigZag(static_cast<int64_t>(event.time - time_)));
  PutNumber(kSequence, ZigZag(static_cast<int64_t>(event.sequence - sequence_ - 1)));
  index_ = event.index;
  time_ = event.time;
  sequence_ = event.sequence;
  if (has_live) PutNumber(kLive, known ? event.index - event.birth : 0);
  if (columns::HasAddress(kind) || (has_live && !known)) {
    const uint64_t address = event.address >> site.shift;
    PutNumber(kAddress, ZigZag(static_cast<int64_t>(address - last->address)));
    last->address = address;
  }
  if (has_size) {
    PutNumber(kSize, ZigZag(static_cast<int64_t>(event.size - more->size)));
    more->size = event.size;
  }
  if (has_totals) return PutTotals(event, kind, places_.DeviceOf(site.place));
  for (unsigned i = 0; i < 2; ++i) {
    PutNumber(i == 0 ? kArgument0 : kArgument1,
              ZigZag(static_cast<int64_t>(event.argument[i] - more->argument[i])));
    more->argument[i] = event.argument[i];
  }
  return true;
}

bool KeptEvents::AppendEvents(size_t* from, size_t most_bytes, Compressor& compressor, ByteBuffer& out) {
  const size_t begin = *from;
  if (begin >= events_.size()) return false;
  for (ByteBuffer& column : columns_) column.Clear();
  for (bool& not_zero : not_zero_) not_zero = false;
  bytes_ = 0;
  totals_.Clear();
  last_.Restart();
  const FoldEvent& first = events_[begin];
  index_ = first.index - 1;
  time_ = first.time;
  sequence_ = first.sequence - 1;
  uint32_t count = 0;
  for (; *from < events_.size() && bytes_ < most_bytes; ++*from) {
    const FoldEvent& one = events_[*from];
    if (one.site == kDropped) continue;
    if (!Put(one)) {
      *from = begin;
      return false;
    }
    ++count;
  }
  ProtoWriter message(out);
  message.add_uint32(fields::kEventsCount, count);
  message.add_uint64(fields::kEventsFirstIndex, first.index);
  message.add_uint64(fields::kEventsFirstTime, first.time);
  message.add_uint64(fields::kEventsFirstSequence, first.sequence);
  message.add_bool(fields::kEventsRestart, true);
  for (uint32_t id = 1; id < kEventColumns; ++id) {
    if (!not_zero_[id]) continue;
    const ByteBuffer& column = columns_[id];
    const bool smaller = column.size() >= kLeastCompressed && compressor.Compress(column.span(), compressed_);
    const ByteBuffer& data = smaller ? compressed_ : column;
    part_.Clear();
    ProtoWriter part(part_);
    part.add_enum(fields::kColumnId, static_cast<int32_t>(id));
    if (smaller) part.add_enum(fields::kColumnCodec, fields::kCodecZstd);
    part.add_uint32(fields::kColumnRawSize, static_cast<uint32_t>(column.size()));
    part.add_bytes(fields::kColumnData, Chars(data), data.size());
    message.add_message(fields::kEventsColumn, Chars(part_), part_.size());
    if (column.failed() || part_.failed()) {
      *from = begin;
      return false;
    }
  }
  return true;
}

}  // namespace gpumemtrace::recorder
