// One folded window in the making: takes the events of the packets it stands for, drops the pairs of birth
// and death that lie within it, counts everything by birth place, and keeps the rest.
//
// Lives as long as one pass over a trace: what is alive, the sites and their predictors go on from window to
// window.
#pragma once

#include <cstdint>
#include <span>

#include "recorder/fold/columns.h"
#include "recorder/fold/event_reader.h"
#include "recorder/fold/kept_events.h"
#include "recorder/fold/last_values.h"
#include "recorder/fold/live_births.h"
#include "recorder/fold/places.h"
#include "recorder/fold/sites.h"
#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/compressor.h"

namespace gpumemtrace::recorder {

class FoldWindow {
 public:
  // A serialized Site; a repeated definition is the same again. False: damaged, or no memory.
  bool DefineSite(std::span<const uint8_t> site, bool* is_new) {
    return sites_.Define(site, places_, is_new);
  }
  // The events of a packet. With `folded` they are those that an earlier fold kept: they are in its figures
  // already, which AddFolded and AddStacks bring. With `copy` nothing may be dropped: the packet goes into
  // the new file as it is.
  bool AddEvents(const EventColumns& events, bool folded, bool copy);
  // The Folded message of a part of an earlier window, and its decompressed FoldedStacks.
  bool AddFolded(std::span<const uint8_t> message);
  bool AddStacks(std::span<const uint8_t> stacks);

  uint64_t events() const { return events_; }
  uint64_t kept() const { return kept_.kept(); }
  // Birth places with figures in this window.
  size_t places() const { return places_.touched(); }
  // Sequence number of the kept event before this one.
  uint64_t SequenceBefore(size_t event) const { return kept_.SequenceBefore(event); }
  // Of events() nothing is kept: the window will not be written.
  void GiveUp() { kept_.GiveUp(); }
  // Drops the pairs for good.
  void Compact() { kept_.Compact(); }

  // The Folded message, but for begin, end, packets, peaks and stacks.
  void AppendFolded(ByteBuffer& folded) const;
  // What belongs into its last part only.
  void AppendEnd(ByteBuffer& folded);
  // Serializes the places with figures from `*place` on, at most `most` of them; moves `*place`. False: no
  // more.
  bool AppendStacks(size_t* place, size_t most, ByteBuffer& stacks) {
    return places_.AppendStacks(place, most, bounds_.last_index, stacks);
  }
  // Serializes kept events from `*event` on, about `most_bytes` of columns; moves `*event`. False: no more.
  bool AppendEvents(size_t* event, size_t most_bytes, Compressor& compressor, ByteBuffer& events) {
    return kept_.AppendEvents(event, most_bytes, compressor, events);
  }

  // The window ends: its figures begin anew, what is alive goes on.
  void Next();

 private:
  // What LiveBirth::kept can count.
  static constexpr uint32_t kMostKept = 0x7fffffff;

  struct Bounds {
    uint64_t first_index = 0;
    uint64_t last_index = 0;
    uint64_t first_time = 0;
    uint64_t last_time = 0;
    uint64_t first_sequence = 0;
    uint64_t last_sequence = 0;
    bool empty = true;

    void Add(const FoldEvent& event);
  };

  bool Begins(const FoldEvent& event, const FoldSite& site, bool keep, bool folded, bool copy);
  bool Ends(LiveBirth* birth, bool keep, bool folded, bool copy, bool* dropped);

  Places places_;
  FoldSites sites_;
  LiveBirths live_;
  LastValues last_;
  EventReader reader_{sites_, places_, live_, last_};
  KeptEvents kept_{sites_, places_, live_, last_};

  Bounds bounds_;
  uint32_t windows_ = 0;
  uint64_t events_ = 0;
  uint64_t gone_ = 0;
  uint64_t totals_agreed_ = 0;
  uint64_t totals_disagreed_ = 0;
};

}  // namespace gpumemtrace::recorder
