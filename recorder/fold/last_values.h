// What a column's next number is relative to: the last address, size and arguments of the same site since the
// predictors began anew. Of the many sites of a trace few have events between two restarts.
#pragma once

#include <cstdint>

#include "recorder/fold/sites.h"
#include "recorder/memory/array.h"

namespace gpumemtrace::recorder {

class LastValues {
 public:
  struct Slot {
    uint32_t site;
    // Place of the rest in more_ + 1; 0 = all zeros.
    uint32_t more;
    uint64_t address;
  };
  // What most sites do not need.
  struct More {
    uint64_t size;
    uint64_t argument[2];
  };

  // All are zero again.
  void Restart() {
    slots_.Clear();
    more_.Clear();
    ++restarts_;
  }
  // Who began with this number may go on only while it is the same.
  uint64_t restarts() const { return restarts_; }

  // Remembers in the site where they are. Null: no memory. Valid until the next call.
  Slot* Of(uint32_t id, FoldSite* site) {
    const uint32_t place = site->last;
    if (place < slots_.size() && slots_[place].site == id) return &slots_[place];
    if (slots_.size() == kMostSlots || !slots_.Push({id, 0, 0})) return nullptr;
    site->last = (slots_.size() - 1) & (kMostSlots - 1);
    return &slots_.back();
  }
  More* MoreOf(Slot* slot) {
    if (slot->more == 0) {
      if (!more_.Push({})) return nullptr;
      slot->more = static_cast<uint32_t>(more_.size());
    }
    return &more_[slot->more - 1];
  }

 private:
  // What FoldSite::last can count; a writer begins its predictors anew after some ten thousand sites.
  static constexpr uint32_t kMostSlots = uint32_t{1} << 24;

  Array<Slot> slots_;
  Array<More> more_;
  uint64_t restarts_ = 0;
};

}  // namespace gpumemtrace::recorder
