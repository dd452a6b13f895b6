// One thread's ring: a stream of records with one producer, its thread, and one consumer at a time, whoever
// holds the drain lock. Layout and rules: proto/gpumemtrace/ring_file.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "proto/gpumemtrace/ring_file.h"

namespace gpumemtrace::recorder {

inline constexpr uint64_t kNothingPending = ~uint64_t{0};
// A record must fit into a packet beside others.
inline constexpr uint64_t kLongestRecord = uint64_t{72} << 10;

// Counters of the thread that owns the ring; the writer adds them up. They survive the thread.
struct RingCounters {
  std::atomic<uint64_t> events{0};
  std::atomic<uint64_t> stack_hits{0};
  std::atomic<uint64_t> stack_misses{0};
  std::atomic<uint64_t> timed_events{0};
  std::atomic<uint64_t> timed_ns{0};
  std::atomic<uint64_t> full{0};

  // Only the owner writes: no locked instruction is needed.
  static void Add(std::atomic<uint64_t>& counter, uint64_t n) {
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
};

// Asks for a cache line to be brought here for writing. The builtin takes the instruction for that on x86-64
// only when the compiler is told of a newer processor; processors without it ignore it.
inline void PrefetchForStore(const void* line) {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw (%0)" : : "r"(line));
#else
  __builtin_prefetch(line, 1);
#endif
}

class Ring {
 public:
  Ring(ring_file::RingHeader* header, uint64_t capacity, uint32_t index, bool in_file)
      : header_(header),
        data_(reinterpret_cast<uint8_t*>(header) + ring_file::kRingDataOffset),
        capacity_(capacity),
        tail_seen_(0),
        index_(index),
        in_file_(in_file) {}

  uint32_t index() const { return index_; }
  // False: private memory, which does not survive the process and is not in the ring file.
  bool in_file() const { return in_file_; }
  uint64_t capacity() const { return capacity_; }
  // Longer records are refused, so that a few always fit.
  uint64_t longest_record() const { return capacity_ / 4 < kLongestRecord ? capacity_ / 4 : kLongestRecord; }

  // --- the owner ---

  // Room for a record of `bytes` (a multiple of 8), or null when the ring is too full. Nothing is visible
  // to the consumer before Publish.
  void* Reserve(uint64_t bytes) {
    uint64_t head = Head().load(std::memory_order_relaxed);
    uint64_t needed = bytes;
    const uint64_t to_end = capacity_ - (head & (capacity_ - 1));
    if (to_end < bytes) needed += to_end;
    if (head + needed - tail_seen_ > capacity_) {
      tail_seen_ = Tail().load(std::memory_order_acquire);
      if (head + needed - tail_seen_ > capacity_) return nullptr;
    }
    if (to_end < bytes) {
      auto* pad = reinterpret_cast<ring_file::RecordHeader*>(data_ + (head & (capacity_ - 1)));
      *pad = {static_cast<uint32_t>(to_end), ring_file::RecordKind::kPad, 0, 0};
      head += to_end;
    }
    reserved_end_ = head + bytes;
    return data_ + (head & (capacity_ - 1));
  }
  // Makes the record of the last Reserve, and a pad before it, visible.
  void Publish() { Head().store(reserved_end_, std::memory_order_release); }

  // Asks for the lines that the next record will be written to: the writer has read them since they were last
  // ours, so that the first store would wait for another core. What is behind the end is only a hint, too.
  void PrefetchNext() {
    constexpr uint64_t kLine = 64;
    const uint8_t* next = data_ + (reserved_end_ & (capacity_ - 1));
    PrefetchForStore(next + kLine);
    PrefetchForStore(next + 2 * kLine);
  }

  // More than half of the ring waits to be drained, as far as the owner knows.
  bool HalfFull() {
    const uint64_t head = Head().load(std::memory_order_relaxed);
    if (head - tail_seen_ <= capacity_ / 2) return false;
    tail_seen_ = Tail().load(std::memory_order_acquire);
    return head - tail_seen_ > capacity_ / 2;
  }

  std::atomic_ref<uint64_t> Pending() { return std::atomic_ref<uint64_t>(header_->pending); }

  // --- the consumer ---

  uint64_t HeadPosition() { return Head().load(std::memory_order_acquire); }
  uint64_t TailPosition() { return Tail().load(std::memory_order_relaxed); }
  const ring_file::RecordHeader* At(uint64_t position) const {
    return reinterpret_cast<const ring_file::RecordHeader*>(data_ + (position & (capacity_ - 1)));
  }
  void SetTail(uint64_t position) { Tail().store(position, std::memory_order_release); }

  ring_file::RingHeader* header() { return header_; }

 private:
  std::atomic_ref<uint64_t> Head() { return std::atomic_ref<uint64_t>(header_->head); }
  std::atomic_ref<uint64_t> Tail() { return std::atomic_ref<uint64_t>(header_->tail); }

  // In the order of use: an event touches what comes first (see ThreadSlot).
  ring_file::RingHeader* const header_;
  uint8_t* const data_;
  const uint64_t capacity_;
  // The owner's copy of the tail; refreshed when the ring looks full.
  uint64_t tail_seen_;
  uint64_t reserved_end_ = 0;

 public:
  RingCounters counters;

 private:
  const uint32_t index_;
  const bool in_file_;
};

}  // namespace gpumemtrace::recorder
