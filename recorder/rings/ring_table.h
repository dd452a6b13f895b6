// All rings of the process. Rings of threads that ended are given to new threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "recorder/clock.h"
#include "recorder/lock.h"
#include "recorder/rings/ring.h"
#include "recorder/rings/ring_memory.h"
#include "recorder/stacks/stacks.h"

namespace gpumemtrace::recorder {

// A ring and what belongs to whoever owns it. What an event touches comes first, in two cache lines.
struct alignas(64) ThreadSlot {
  EventClock clock;
  // The reservation of recorder::ReserveSequence that keeps the ring's pending number, 0 = none.
  uint64_t reservation;
  stacks::ThreadStacks* stacks;
  // Events since the last one whose time was taken; the owner's.
  uint32_t since_timed;
  Ring ring;
  // Place in the table.
  uint32_t place;
  // 0 = nobody.
  std::atomic<uint32_t> owner;
};

class RingTable {
 public:
  explicit RingTable(RingMemory& memory) : memory_(memory) {}

  // A ring for the calling thread, whose records begin with a ThreadRecord. Null: no memory.
  ThreadSlot* Acquire(uint32_t tid);
  // The thread ends; its records stay until they are drained.
  void Release(ThreadSlot* slot);

  // Slots 0 … size−1 exist for ever.
  uint32_t size() const { return size_.load(std::memory_order_acquire); }
  ThreadSlot& operator[](uint32_t place) const { return *slots_[place].load(std::memory_order_acquire); }

 private:
  // More threads than this at the same time are not recorded (and counted as lost).
  static constexpr uint32_t kMostSlots = 16384;

  ThreadSlot* Reuse(uint32_t tid);
  ThreadSlot* Add(uint32_t tid);

  RingMemory& memory_;
  Lock lock_;
  std::atomic<uint32_t> size_{0};
  std::atomic<ThreadSlot*> slots_[kMostSlots] = {};
  uint32_t first_free_hint_ = 0;
};

}  // namespace gpumemtrace::recorder
