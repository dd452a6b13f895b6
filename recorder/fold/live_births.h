// What is alive at a point of the trace: the events that made it, found by their index.
//
// Events come in the order of their indices, so the list is sorted by itself; what has ended stays as a gap
// until there are many. A hash table would take two to four times as much memory, and twice that while it
// grows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "recorder/memory/array.h"

namespace gpumemtrace::recorder {

struct LiveBirth {
  // Of the event.
  uint64_t index;
  uint64_t address;
  uint64_t size;
  // 0 = it has ended.
  uint32_t site;
  // Place of its event among those that are kept (kept_events.h) + 1; 0 = it is in an earlier window.
  uint32_t kept : 31;
  // Its event must stay.
  uint32_t keep : 1;
};
static_assert(sizeof(LiveBirth) == 32);

class LiveBirths {
 public:
  // Null: nothing alive was made by this event. Valid until the next Insert.
  LiveBirth* Find(uint64_t index);
  // False: no memory, or it is not newer than all others.
  bool Insert(const LiveBirth& birth);
  void Erase(LiveBirth* birth) {
    birth->site = 0;
    ++ended_;
  }

 private:
  void Compact();

  Array<LiveBirth> births_;
  size_t ended_ = 0;
};

}  // namespace gpumemtrace::recorder
