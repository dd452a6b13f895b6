// Which objects are live, by kind and address, and the index of the event that made each: what the LIVE
// column refers to. Bounded by the live set.
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
  // EventKind of that event; 0 = empty slot.
  uint16_t kind;
  // For whoever inserts it.
  uint16_t tag;
};

class LiveTable {
 public:
  // An object with the same kind and address that is still here is remembered aside: its end may arrive
  // late (a free is numbered before the call, and recorded after it).
  bool Insert(const LiveObject& object) {
    LiveObject* slot = Find(object.kind, object.address);
    if (slot != nullptr) {
      if (displaced_.size() >= kMostDisplaced) displaced_.Clear();
      displaced_.Push(*slot);
      *slot = object;
      return true;
    }
    if ((count_ + 1) * 3 > slots_.size() * 2 && !Grow()) return false;
    Place(object);
    ++count_;
    return true;
  }

  // Removes the object that an event with this sequence number ended, and tells which it was. False when it
  // is not known.
  bool Take(uint32_t kind, uint64_t address, uint64_t sequence, LiveObject* object) {
    for (size_t i = displaced_.size(); i > 0; --i) {
      LiveObject& old = displaced_[i - 1];
      if (old.kind != kind || old.address != address || old.sequence > sequence) continue;
      LiveObject* current = Find(kind, address);
      // The newer one was made before this end: the end of the older one was never seen.
      if (current != nullptr && current->sequence < sequence) break;
      *object = old;
      displaced_[i - 1] = displaced_.back();
      displaced_.Shrink(displaced_.size() - 1);
      return true;
    }
    LiveObject* slot = Find(kind, address);
    if (slot == nullptr || slot->sequence > sequence) return false;
    *object = *slot;
    Remove(static_cast<size_t>(slot - slots_.data()));
    return true;
  }

  // Forgets every object made by an event with this index or a later one: those events are not in the trace.
  void ForgetFrom(uint64_t index) {
    for (size_t i = 0; i < slots_.size();) {
      // Removing moves another object into this place.
      if (slots_[i].kind != 0 && slots_[i].index >= index) {
        Remove(i);
      } else {
        ++i;
      }
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
    for (const LiveObject& object : slots_) {
      if (object.kind != 0) function(object);
    }
    for (const LiveObject& object : displaced_) function(object);
  }

 private:
  static constexpr size_t kMostDisplaced = 4096;

  size_t Home(uint32_t kind, uint64_t address) const {
    return Combine(Mix(address), kind) & (slots_.size() - 1);
  }
  LiveObject* Find(uint32_t kind, uint64_t address) {
    if (slots_.empty()) return nullptr;
    for (size_t i = Home(kind, address);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].kind == 0) return nullptr;
      if (slots_[i].kind == kind && slots_[i].address == address) return &slots_[i];
    }
  }
  void Place(const LiveObject& object) {
    size_t i = Home(object.kind, object.address);
    while (slots_[i].kind != 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = object;
  }
  // Closes the gap, so that no search ends too early.
  void Remove(size_t hole) {
    const size_t mask = slots_.size() - 1;
    slots_[hole].kind = 0;
    --count_;
    for (size_t i = (hole + 1) & mask; slots_[i].kind != 0; i = (i + 1) & mask) {
      const size_t home = Home(slots_[i].kind, slots_[i].address);
      // Stays when its home lies cyclically in (hole, i].
      if (((i - home) & mask) < ((i - hole) & mask)) continue;
      slots_[hole] = slots_[i];
      slots_[i].kind = 0;
      hole = i;
    }
  }
  bool Grow() {
    Array<LiveObject> old;
    old.Swap(slots_);
    if (!slots_.Resize(old.empty() ? 1024 : old.size() * 2)) {
      slots_.Swap(old);
      return false;
    }
    for (const LiveObject& object : old) {
      if (object.kind != 0) Place(object);
    }
    return true;
  }

  Array<LiveObject> slots_;
  Array<LiveObject> displaced_;
  size_t count_ = 0;
};

}  // namespace gpumemtrace::recorder
