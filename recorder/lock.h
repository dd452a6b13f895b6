// A lock for the recorder's slow paths, on a futex. It is never taken on the warm path and never while a
// function of the host runs.
#pragma once

#include <atomic>
#include <cstdint>

#include "recorder/system.h"

namespace gpumemtrace::recorder {

// Times that this thread took, or tried to take, a Lock: a test sees that the warm path does not.
inline __thread uint64_t t_lock_acquisitions = 0;

class Lock {
 public:
  bool TryAcquire() {
    ++t_lock_acquisitions;
    uint32_t free = 0;
    return state_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  void Acquire() {
    if (TryAcquire()) return;
    // 2 = somebody waits.
    while (state_.exchange(2, std::memory_order_acquire) != 0) {
      sys::FutexWait(Word(), 2, 1'000'000'000);
    }
  }
  // False when it could not be had in this time.
  bool AcquireFor(uint64_t timeout_ns) {
    if (TryAcquire()) return true;
    const uint64_t end = sys::MonotonicNs() + timeout_ns;
    while (state_.exchange(2, std::memory_order_acquire) != 0) {
      const uint64_t now = sys::MonotonicNs();
      if (now >= end) return false;
      sys::FutexWait(Word(), 2, end - now);
    }
    return true;
  }
  void Release() {
    if (state_.exchange(0, std::memory_order_release) == 2) sys::FutexWake(Word(), 1);
  }

 private:
  const uint32_t* Word() const { return reinterpret_cast<const uint32_t*>(&state_); }

  std::atomic<uint32_t> state_{0};
};

class LockGuard {
 public:
  explicit LockGuard(Lock& lock) : lock_(lock) { lock_.Acquire(); }
  ~LockGuard() { lock_.Release(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Lock& lock_;
};

}  // namespace gpumemtrace::recorder
