// Reading: turns the columns of one packet after another back into events.
#pragma once

#include <cstdint>

#include "proto/gpumemtrace/address_prediction.h"
#include "proto/gpumemtrace/event_prediction.h"
#include "recorder/fold/columns.h"
#include "recorder/fold/field_reader.h"
#include "recorder/fold/last_values.h"
#include "recorder/fold/live_births.h"
#include "recorder/fold/sites.h"
#include "recorder/memory/array.h"

namespace gpumemtrace::recorder {

struct FoldEvent {
  uint64_t index;
  uint64_t sequence;
  uint64_t time;
  uint64_t address;
  uint64_t size;
  // Index of the birth of what this event ended; kNoBirth = none or not known.
  uint64_t birth;
  uint64_t argument[2];
  uint32_t site;
};
inline constexpr uint64_t kNoBirth = ~uint64_t{0};

class EventReader {
 public:
  struct Read {
    FoldEvent event;
    const FoldSite* site;
    uint8_t kind;
    // What it ended; null = nothing known. Valid until something is born.
    LiveBirth* birth;
    // The allocator took or gave memory.
    bool reserved_changed;
    // Whether the allocator's own total is that of the event before and this event's change.
    enum : uint8_t { kNotCompared, kAgrees, kDisagrees } totals;
  };

  // What `last` holds is the reader's until somebody restarts it.
  EventReader(FoldSites& sites, const Places& places, LiveBirths& live, LastValues& last)
      : sites_(sites), places_(places), live_(live), last_(last) {}

  // The events of a packet; those that an earlier fold kept when `folded`. False: no memory, or the packet
  // goes on from predictors that are gone.
  bool Begin(const EventColumns& events, bool folded);
  // False at the end, and when something is wrong: then failed(). What is alive is as the events before left
  // it.
  bool Next(Read* read);
  bool failed() const { return failed_; }

 private:
  // Totals of a device as its allocator tells them.
  struct Device {
    int32_t ordinal;
    uint32_t epoch;
    uint64_t allocated;
    uint64_t reserved;
    uint64_t true_allocated;
    uint64_t true_reserved;
    bool allocated_unknown;
  };

  Device* DeviceOf(int32_t ordinal);
  // `placed`: where the block lies follows from what is free (address_prediction.h).
  bool ReadTotals(Read* read, bool placed);
  uint64_t Get(uint32_t column) { return absent_[column] ? 0 : column_[column].Next(); }
  uint64_t GetSigned(uint32_t column) { return absent_[column] ? 0 : column_[column].NextZigZag(); }
  bool Fail() {
    failed_ = true;
    return false;
  }

  FoldSites& sites_;
  const Places& places_;
  LiveBirths& live_;
  LastValues& last_;
  uint64_t last_restarts_ = 0;
  Array<Device> devices_;
  uint32_t epoch_ = 0;
  event_prediction::Predictor predictor_;
  // Its tables.
  Array<event_prediction::Entry> predictions_;
  address_prediction::Predictor addresses_;
  // Its tables; one or none.
  Array<address_prediction::Tables> address_tables_;

  // Of the packet.
  Varints column_[kEventColumns];
  // An absent column is all zeros.
  bool absent_[kEventColumns] = {};
  bool folded_ = false;
  bool predicted_ = false;
  bool addresses_predicted_ = false;
  bool failed_ = false;
  uint64_t time_step_ = 1;
  uint32_t left_ = 0;
  uint64_t index_ = 0;
  uint64_t time_ = 0;
  uint64_t sequence_ = 0;
};

}  // namespace gpumemtrace::recorder
