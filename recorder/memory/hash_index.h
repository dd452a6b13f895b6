// An open-addressing index from hashes to ids 1, 2, 3, … of entries that are kept elsewhere. Entries are
// never removed.
#pragma once

#include <cstdint>

#include "recorder/memory/array.h"

namespace gpumemtrace::recorder {

// A finalizer that spreads all bits (the constants are those of the splitmix64 generator).
constexpr uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
constexpr uint64_t Combine(uint64_t hash, uint64_t value) {
  return Mix(hash ^ (value + 0x9e3779b97f4a7c15u + (hash << 6)));
}

class HashIndex {
 public:
  // The id for which `equal(id)` holds, 0 when there is none.
  template <typename Equal>
  uint32_t Find(uint64_t hash, Equal equal) const {
    if (slots_.empty()) return 0;
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const uint32_t id = slots_[i];
      if (id == 0 || equal(id)) return id;
    }
  }

  // Adds `id`, which must not be there. `hash_of(id)` is asked for the hashes of older ids when the index
  // grows. False when there was no memory; nothing has changed then.
  template <typename HashOf>
  bool Insert(uint64_t hash, uint32_t id, HashOf hash_of) {
    if ((count_ + 1) * 4 > slots_.size() * 3) {
      Array<uint32_t> larger;
      const size_t size = slots_.empty() ? 1024 : slots_.size() * 2;
      if (!larger.Resize(size)) return false;
      for (const uint32_t old : slots_) {
        if (old != 0) Place(larger, size - 1, hash_of(old), old);
      }
      slots_.Swap(larger);
      mask_ = size - 1;
    }
    Place(slots_, mask_, hash, id);
    ++count_;
    return true;
  }

 private:
  static void Place(Array<uint32_t>& slots, size_t mask, uint64_t hash, uint32_t id) {
    size_t i = hash & mask;
    while (slots[i] != 0) i = (i + 1) & mask;
    slots[i] = id;
  }

  Array<uint32_t> slots_;
  size_t mask_ = 0;
  size_t count_ = 0;
};

}  // namespace gpumemtrace::recorder
