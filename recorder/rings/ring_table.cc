#include "recorder/rings/ring_table.h"

#include <new>

#include "recorder/memory/pages.h"
#include "recorder/system.h"

namespace gpumemtrace::recorder {

ThreadSlot* RingTable::Acquire(uint32_t tid) {
  LockGuard guard(lock_);
  ThreadSlot* slot = Reuse(tid);
  return slot != nullptr ? slot : Add(tid);
}

ThreadSlot* RingTable::Reuse(uint32_t tid) {
  const uint32_t count = size_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t place = (first_free_hint_ + i) % count;
    ThreadSlot* slot = slots_[place].load(std::memory_order_relaxed);
    uint32_t nobody = 0;
    if (slot->owner.compare_exchange_strong(nobody, tid, std::memory_order_acquire)) {
      first_free_hint_ = (place + 1) % count;
      slot->reservation = 0;
      slot->ring.header()->in_use = 1;
      return slot;
    }
  }
  // Threads whose last events came after their destructors left without giving their rings back.
  for (uint32_t place = 0; place < count; ++place) {
    ThreadSlot* slot = slots_[place].load(std::memory_order_relaxed);
    uint32_t owner = slot->owner.load(std::memory_order_relaxed);
    if (owner == tid || !sys::ThreadExists(owner)) {
      if (!slot->owner.compare_exchange_strong(owner, tid, std::memory_order_acquire)) continue;
      slot->reservation = 0;
      slot->ring.Pending().store(kNothingPending, std::memory_order_seq_cst);
      return slot;
    }
  }
  return nullptr;
}

ThreadSlot* RingTable::Add(uint32_t tid) {
  const uint32_t place = size_.load(std::memory_order_relaxed);
  if (place >= kMostSlots) return nullptr;
  uint32_t index;
  uint64_t capacity;
  bool in_file;
  ring_file::RingHeader* header = memory_.NewRing(&index, &capacity, &in_file);
  if (header == nullptr) return nullptr;
  // One mapping for both; the stacks part is mostly never touched.
  constexpr size_t kSlotBytes = (sizeof(ThreadSlot) + 63) / 64 * 64;
  auto* memory = static_cast<char*>(MapPages(kSlotBytes + stacks::kThreadStacksSize));
  if (memory == nullptr) return nullptr;
  auto* slot = new (memory) ThreadSlot{
      {},
      0,
      reinterpret_cast<stacks::ThreadStacks*>(memory + kSlotBytes),
      0,
      {header, capacity, index, in_file},
      place,
      {tid},
  };
  header->in_use = 1;
  slots_[place].store(slot, std::memory_order_release);
  size_.store(place + 1, std::memory_order_release);
  return slot;
}

void RingTable::Release(ThreadSlot* slot) {
  slot->reservation = 0;
  slot->ring.Pending().store(kNothingPending, std::memory_order_seq_cst);
  slot->ring.header()->in_use = 0;
  slot->owner.store(0, std::memory_order_release);
}

}  // namespace gpumemtrace::recorder
