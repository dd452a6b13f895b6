// The events of a window that stay, and their way back into columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recorder/fold/columns.h"
#include "recorder/fold/event_reader.h"
#include "recorder/fold/last_values.h"
#include "recorder/fold/live_births.h"
#include "recorder/fold/sites.h"
#include "recorder/memory/array.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/compressor.h"

namespace gpumemtrace::recorder {

class KeptEvents {
 public:
  KeptEvents(FoldSites& sites, const Places& places, LiveBirths& live, LastValues& last)
      : sites_(sites), places_(places), live_(live), last_(last) {}

  // False: no memory. The event's place is then size().
  bool Add(const FoldEvent& event) { return events_.Push(event); }
  // With those that were dropped since the last Compact.
  size_t size() const { return events_.size(); }
  size_t kept() const { return events_.size() - dropped_; }
  // Place 1 is the first.
  void Drop(size_t place) {
    events_[place - 1].site = kDropped;
    ++dropped_;
  }
  // Whether so many were dropped that Compact is worth it.
  bool Sparse() const { return dropped_ >= kManyDropped && dropped_ * 3 >= events_.size(); }
  // Those that were dropped leave their places to others.
  void Compact();
  // None of them will be written.
  void GiveUp();

  // Sequence number of the event before this one, 0 = there is none.
  uint64_t SequenceBefore(size_t event) const { return event == 0 ? 0 : events_[event - 1].sequence; }
  // Serializes an Events message of events from `*event` on, about `most_bytes` of columns; moves `*event`.
  // False: no more, or no memory; what follows is not written then. Ends what the reader of columns goes on
  // from.
  bool AppendEvents(size_t* event, size_t most_bytes, Compressor& compressor, ByteBuffer& events);

 private:
  static constexpr size_t kManyDropped = size_t{1} << 12;
  // Stands for the site of an event that is gone, and its other half with it.
  static constexpr uint32_t kDropped = 0;

  struct Totals {
    int32_t device;
    uint64_t allocated;
    uint64_t reserved;
  };

  bool Put(const FoldEvent& event);
  bool PutTotals(const FoldEvent& event, uint8_t kind, int16_t device);
  void PutNumber(uint32_t column, uint64_t value) {
    const size_t before = columns_[column].size();
    columns_[column].Varint(value);
    bytes_ += columns_[column].size() - before;
    not_zero_[column] |= value != 0;
  }

  FoldSites& sites_;
  const Places& places_;
  LiveBirths& live_;
  LastValues& last_;
  Array<FoldEvent> events_;
  size_t dropped_ = 0;

  // Of the message that is being made.
  ByteBuffer columns_[kEventColumns];
  bool not_zero_[kEventColumns] = {};
  size_t bytes_ = 0;
  uint64_t index_ = 0;
  uint64_t time_ = 0;
  uint64_t sequence_ = 0;
  Array<Totals> totals_;
  ByteBuffer part_;
  ByteBuffer compressed_;
};

}  // namespace gpumemtrace::recorder
