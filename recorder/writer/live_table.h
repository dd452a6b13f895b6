// Which objects are live, by kind and address, and the index of the event that made each: what the LIVE
// column refers to. Bounded by the live set: the objects lie side by side, and only their numbers in a hash
// table with gaps.
#pragma once

#include <cstdint>

#include "recorder/memory/array.h"
#include "recorder/memory/hash_index.h"

namespace gpumemtrace::recorder {

struct LiveObject {
  uint64_t address;
  // Of the event that made it.
  uint64_t index;
  uint64_t sequence;
  uint64_t size;
  // EventKind of that event; 0 = none.
  uint16_t kind;
  // For whoever inserts it.
  uint16_t tag;
};

class LiveTable {
 public:
  // An object with the same kind and address that is still here is remembered aside: its end may arrive
  // late (a free is numbered before the call, and recorded after it).
  bool Insert(const LiveObject& object) {
    const size_t known = Find(object.kind, object.address);
    if (known != kNowhere) {
      LiveObject& old = At(known);
      if (displaced_.size() >= kMostDisplaced) displaced_.Clear();
      displaced_.Push(old);
      old = object;
      return true;
    }
    if ((count_ + 1) * 3 > slots_.size() * 2 && !Grow()) return false;
    uint32_t number = unused_;
    if (number != 0) {
      unused_ = static_cast<uint32_t>(objects_[number - 1].index);
      objects_[number - 1] = object;
    } else {
      if (objects_.size() == UINT32_MAX || !objects_.Push(object)) return false;
      number = static_cast<uint32_t>(objects_.size());
    }
    Place(number);
    ++count_;
    return true;
  }

  // Removes the object that an event with this sequence number ended, and tells which it was. False when it
  // is not known.
  bool Take(uint32_t kind, uint64_t address, uint64_t sequence, LiveObject* object) {
    const size_t slot = Find(kind, address);
    for (size_t i = displaced_.size(); i > 0; --i) {
      LiveObject& old = displaced_[i - 1];
      if (old.kind != kind || old.address != address || old.sequence > sequence) continue;
      // The newer one was made before this end: the end of the older one was never seen.
      if (slot != kNowhere && At(slot).sequence < sequence) break;
      *object = old;
      displaced_[i - 1] = displaced_.back();
      displaced_.Shrink(displaced_.size() - 1);
      return true;
    }
    if (slot == kNowhere || At(slot).sequence > sequence) return false;
    *object = At(slot);
    Remove(slot);
    return true;
  }

  // Forgets every object made by an event with this index or a later one: those events are not in the trace.
  void ForgetFrom(uint64_t index) {
    for (const LiveObject& object : objects_) {
      if (object.kind != 0 && object.index >= index) Remove(Find(object.kind, object.address));
    }
    for (size_t i = displaced_.size(); i > 0; --i) {
      if (displaced_[i - 1].index < index) continue;
      displaced_[i - 1] = displaced_.back();
      displaced_.Shrink(displaced_.size() - 1);
    }
  }

  size_t size() const { return count_; }
  template <typename Function>
  void ForEach(Function function) const {
    for (const LiveObject& object : objects_) {
      if (object.kind != 0) function(object);
    }
    for (const LiveObject& object : displaced_) function(object);
  }

 private:
  static constexpr size_t kMostDisplaced = 4096;
  static constexpr size_t kNowhere = ~size_t{0};

  LiveObject& At(size_t slot) { return objects_[slots_[slot] - 1]; }
  size_t Home(uint32_t kind, uint64_t address) const {
    return Combine(Mix(address), kind) & (slots_.size() - 1);
  }
  // Its slot.
  size_t Find(uint32_t kind, uint64_t address) {
    if (slots_.empty()) return kNowhere;
    for (size_t i = Home(kind, address);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i] == 0) return kNowhere;
      const LiveObject& object = At(i);
      if (object.kind == kind && object.address == address) return i;
    }
  }
  void Place(uint32_t number) {
    const LiveObject& object = objects_[number - 1];
    size_t i = Home(object.kind, object.address);
    while (slots_[i] != 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = number;
  }
  void Remove(size_t hole) {
    const uint32_t number = slots_[hole];
    objects_[number - 1].kind = 0;
    objects_[number - 1].index = unused_;
    unused_ = number;
    --count_;
    // Closes the gap, so that no search ends too early.
    const size_t mask = slots_.size() - 1;
    slots_[hole] = 0;
    for (size_t i = (hole + 1) & mask; slots_[i] != 0; i = (i + 1) & mask) {
      const size_t home = Home(At(i).kind, At(i).address);
      // Stays when its home lies cyclically in (hole, i].
      if (((i - home) & mask) < ((i - hole) & mask)) continue;
      slots_[hole] = slots_[i];
      slots_[i] = 0;
      hole = i;
    }
  }
  bool Grow() {
    Array<uint32_t> old;
    old.Swap(slots_);
    if (!slots_.Resize(old.empty() ? 1024 : old.size() * 2)) {
      slots_.Swap(old);
      return false;
    }
    for (const uint32_t number : old) {
      if (number != 0) Place(number);
    }
    return true;
  }

  Array<LiveObject> objects_;
  // The first place in objects_ that is free again, plus 1; its `index` tells the next. 0 = none.
  uint32_t unused_ = 0;
  // Places in objects_, plus 1; 0 = empty.
  Array<uint32_t> slots_;
  Array<LiveObject> displaced_;
  size_t count_ = 0;
};

}  // namespace gpumemtrace::recorder
