// A small fixed-size map from handle to number, usable from any thread without locks: which device a pool
// belongs to, which graphs own memory nodes. Fails (returns false) when there is no room near a key's place;
// callers then do without. Every operation looks at a bounded number of slots.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpumemtrace::interpose {

template <size_t capacity>
class HandleMap {
  static_assert((capacity & (capacity - 1)) == 0, "a power of two");

 public:
  // Keys 0 and ~0 are not allowed.
  bool Put(uint64_t key, uint64_t value) {
    if (Slot* known = Find(key); known != nullptr) {
      known->value.store(value, std::memory_order_release);
      return true;
    }
    for (size_t i = 0; i < kMaxProbes; ++i) {
      Slot& slot = At(key, i);
      uint64_t current = slot.key.load(std::memory_order_acquire);
      // A slot is claimed with the reserved key first, so that nobody finds the key without its value.
      if ((current == kEmpty || current == kErased) &&
          slot.key.compare_exchange_strong(current, kClaimed, std::memory_order_acq_rel)) {
        slot.value.store(value, std::memory_order_relaxed);
        slot.key.store(key, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  // As a cache: when there is no room, another key's entry is given up.
  void PutOver(uint64_t key, uint64_t value) {
    if (!Put(key, value)) {
      Erase(At(key, 0).key.load(std::memory_order_acquire));
      Put(key, value);
    }
  }

  bool Get(uint64_t key, uint64_t* value) const {
    const Slot* slot = Find(key);
    if (slot == nullptr) {
      return false;
    }
    *value = slot->value.load(std::memory_order_acquire);
    return true;
  }

  bool Contains(uint64_t key) const { return Find(key) != nullptr; }

  bool Erase(uint64_t key) {
    Slot* slot = Find(key);
    return slot != nullptr && slot->key.compare_exchange_strong(key, kErased, std::memory_order_acq_rel);
  }

 private:
  static constexpr size_t kMaxProbes = capacity < 64 ? capacity : 64;
  static constexpr uint64_t kEmpty = 0;
  static constexpr uint64_t kErased = ~uint64_t{0};
  static constexpr uint64_t kClaimed = ~uint64_t{0} - 1;

  struct Slot {
    std::atomic<uint64_t> key{kEmpty};
    std::atomic<uint64_t> value{0};
  };

  static size_t Start(uint64_t key) { return static_cast<size_t>((key * 0x9e3779b97f4a7c15u) >> 32); }
  Slot& At(uint64_t key, size_t i) { return slots_[(Start(key) + i) & (capacity - 1)]; }
  const Slot& At(uint64_t key, size_t i) const { return slots_[(Start(key) + i) & (capacity - 1)]; }

  const Slot* Find(uint64_t key) const {
    for (size_t i = 0; i < kMaxProbes; ++i) {
      const Slot& slot = At(key, i);
      const uint64_t current = slot.key.load(std::memory_order_acquire);
      if (current == key) {
        return &slot;
      }
      if (current == kEmpty) {
        return nullptr;
      }
    }
    return nullptr;
  }
  Slot* Find(uint64_t key) { return const_cast<Slot*>(static_cast<const HandleMap*>(this)->Find(key)); }

  Slot slots_[capacity];
};

}  // namespace gpumemtrace::interpose
