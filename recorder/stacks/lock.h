// A lock for cold paths that works in a forked child (see ResetAfterFork) and needs no destructor.
#pragma once

#include <sched.h>

#include <atomic>

namespace gpumemtrace::recorder::stacks {

class ColdLock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) sched_yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }
  // In a forked child, where the thread that held it does not exist.
  void ResetAfterFork() { held_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool> held_{false};
};

class ColdLockGuard {
 public:
  explicit ColdLockGuard(ColdLock& lock) : lock_(lock) { lock_.lock(); }
  ~ColdLockGuard() { lock_.unlock(); }
  ColdLockGuard(const ColdLockGuard&) = delete;
  ColdLockGuard& operator=(const ColdLockGuard&) = delete;

 private:
  ColdLock& lock_;
};

}  // namespace gpumemtrace::recorder::stacks
