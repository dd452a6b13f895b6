// One folded window in the making: takes the events of the packets it stands for, drops the pairs of birth
// and death that lie within it, counts everything by birth place, and keeps the rest.
//
// Lives as long as one pass over a trace: what is alive, the sites and their predictors go on from window to
// window.
#pragma once

#include <cstdint>
#include <span>

#include "proto/gpumemtrace/event_prediction.h"
#include "recorder/fold/field_reader.h"
#include "recorder/memory/array.h"
#include "recorder/memory/hash_index.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/compressor.h"
#include "recorder/writer/decompressor.h"

namespace gpumemtrace::recorder {

// A serialized Events message, its columns decompressed.
struct EventColumns {
  static constexpr uint32_t kColumns = 12;

  uint32_t count = 0;
  uint64_t first_index = 0;
  uint64_t first_time = 0;
  uint64_t first_sequence = 0;
  bool restart = false;
  bool predicted = false;
  // Unit of the column of times.
  uint64_t time_step = 1;
  ByteBuffer data[kColumns];

  bool Load(std::span<const uint8_t> message, Decompressor& decompressor);
};

class FoldWindow {
 public:
  struct Kept {
    uint64_t index;
    uint64_t sequence;
    uint64_t time;
    uint64_t address;
    uint64_t size;
    // Index of the birth of what this event ended; ~0 = none or not known.
    uint64_t birth;
    uint64_t argument[2];
    uint32_t site;
    // A pair that is gone.
    bool dropped;
  };

  // A serialized Site; a repeated definition is the same again. False: damaged, or no memory.
  bool DefineSite(std::span<const uint8_t> site, bool* is_new);
  // The events of a packet. With `folded` they are those that an earlier fold kept: they are in its figures
  // already, which AddFolded and AddStacks bring. With `copy` nothing may be dropped: the packet goes into
  // the new file as it is.
  bool AddEvents(const EventColumns& events, bool folded, bool copy);
  // The Folded message of a part of an earlier window, and its decompressed FoldedStacks.
  bool AddFolded(std::span<const uint8_t> message);
  bool AddStacks(std::span<const uint8_t> stacks);

  uint64_t events() const { return events_; }
  uint64_t kept() const { return kept_.size() - dropped_; }
  // Birth places with figures in this window.
  size_t places() const { return touched_.size(); }
  // Sequence number of the kept event before this one.
  uint64_t SequenceBefore(size_t event) const { return event == 0 ? 0 : kept_[event - 1].sequence; }
  // Of events() nothing is kept: the window will not be written.
  void GiveUp();
  // Drops the pairs for good.
  bool Compact();

  // The Folded message, but for begin, end, packets, peaks and stacks.
  void AppendFolded(ByteBuffer& folded) const;
  // What belongs into its last part only.
  void AppendEnd(ByteBuffer& folded);
  // Serializes the places with figures from `*place` on, at most `most` of them; moves `*place`. False: no
  // more.
  bool AppendStacks(size_t* place, size_t most, ByteBuffer& stacks);
  // Serializes kept events from `*event` on, about `most_bytes` of columns; moves `*event`. False: no more.
  bool AppendEvents(size_t* event, size_t most_bytes, Compressor& compressor, ByteBuffer& events);

  // The window ends: its figures begin anew, what is alive goes on.
  void Next();

 private:
  struct Site {
    uint64_t size;
    uint64_t last_address;
    uint64_t last_size;
    uint64_t last_argument[2];
    uint32_t epoch;
    // Place in written_ + 1; 0 = none of its events was written.
    uint32_t written;
    uint32_t place;
    int32_t device;
    uint8_t kind;  // 0 = not defined
    uint8_t space;
    uint8_t shift;
    bool failed;
    bool size_varies;
    bool without_totals;
  };
  // What Site has of the events that are read, for those that are written.
  struct Written {
    uint64_t address;
    uint64_t size;
    uint64_t argument[2];
    uint32_t epoch;
    uint32_t reserved;
  };
  // A birth place: the same memory as far as the analyses are concerned.
  struct Place {
    uint64_t stacks[2];
    uint64_t rest;
    uint32_t site;
    uint32_t window;
    uint64_t count;
    uint64_t bytes;
    uint64_t births;
    uint64_t born_bytes;
    uint64_t least_count;
    uint64_t most_count;
    uint64_t least_bytes;
    uint64_t most_bytes;
    uint64_t last_birth;
    uint32_t book;
    uint32_t reserved;
  };
  struct Live {
    uint64_t index;  // ~0 = empty slot
    uint64_t address;
    uint64_t size;
    uint32_t site;
    // Place of its birth in kept_ + 1; 0 = in an earlier window.
    uint32_t kept;
    bool keep;
  };
  // Totals of a device as its allocator tells them.
  struct Device {
    int32_t ordinal;
    uint32_t epoch;
    uint64_t allocated;
    uint64_t reserved;
    uint64_t true_allocated;
    uint64_t true_reserved;
    bool allocated_unknown;
    uint32_t written_epoch;
    uint64_t written_allocated;
    uint64_t written_reserved;
  };
  // Bytes alive on one device, blocks or segments.
  struct Book {
    int32_t device;
    bool blocks;
    bool touched;
    uint64_t bytes;
    uint64_t peak;
    uint64_t peak_index;
    uint64_t peak_time;
    uint64_t least;
  };

  uint32_t PlaceOf(const Site& site, uint32_t id, uint64_t stacks, uint64_t forward, uint32_t api);
  uint32_t BookOf(int32_t device, bool blocks);
  Device* DeviceOf(int32_t ordinal);
  Place& Touch(uint32_t place);
  void Born(uint32_t place, uint64_t size, uint64_t index, uint64_t time);
  void Died(uint32_t place, uint64_t size);
  Live* FindLive(uint64_t index);
  bool InsertLive(const Live& live);
  void EraseLive(Live* live);

  Array<Site> sites_;
  Array<Written> written_;
  Array<Place> places_;
  HashIndex place_index_;
  Array<uint32_t> touched_;
  Array<Live> live_;
  size_t live_count_ = 0;
  Array<Device> devices_;
  Array<Book> books_;
  Array<Kept> kept_;
  size_t dropped_ = 0;
  uint32_t epoch_ = 0;
  event_prediction::Predictor predictor_;
  // Its tables.
  Array<event_prediction::Entry> predictions_;
  uint32_t written_epoch_ = 0;
  uint32_t window_ = 1;

  bool empty_ = true;
  uint32_t windows_ = 0;
  uint64_t events_ = 0;
  uint64_t gone_ = 0;
  uint64_t totals_agreed_ = 0;
  uint64_t totals_disagreed_ = 0;
  uint64_t first_index_ = 0;
  uint64_t last_index_ = 0;
  uint64_t first_time_ = 0;
  uint64_t last_time_ = 0;
  uint64_t first_sequence_ = 0;
  uint64_t last_sequence_ = 0;

  ByteBuffer columns_[EventColumns::kColumns];
  ByteBuffer part_;
  ByteBuffer compressed_;
};

}  // namespace gpumemtrace::recorder
