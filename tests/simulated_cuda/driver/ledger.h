// The exact list of what is live, kept in shared memory, so that a test can read it after the process was
// killed at any moment.
//
// File layout, little endian: char magic[8] "SIMCUDA1"; u64 generation (odd while a slot changes);
// u64 slots_used; u64 overflow; then kCalls × { char name[48]; u64 count }; then kSlots ×
// { u64 address; u64 size; i32 device; u32 kind; u32 call; u32 live }.
#pragma once

#include <atomic>
#include <cstdint>

namespace simulated_cuda::ledger {

inline constexpr uint32_t kCalls = 512;
inline constexpr uint32_t kSlots = 1u << 18;

struct CallCount {
  char name[48];
  std::atomic<uint64_t> count;
};

struct Slot {
  uint64_t address;
  uint64_t size;
  int32_t device;
  uint32_t kind;
  uint32_t call;
  std::atomic<uint32_t> live;
};

struct Shared {
  char magic[8];
  std::atomic<uint64_t> generation;
  std::atomic<uint64_t> slots_used;
  std::atomic<uint64_t> overflow;
  CallCount calls[kCalls];
  Slot slots[kSlots];
};

// The ledger of this process, opened at the first call.
Shared& Get();
// A child of fork() gets a ledger of its own.
void ForgetAfterFork();

// Number of a function, given once per name.
uint32_t RegisterCall(const char* name);
void CountCall(uint32_t call);

// Both are called with the driver's mutex held.
uint32_t Add(uint64_t address, uint64_t size, int device, uint32_t kind, uint32_t call);
void Remove(uint32_t slot);

}  // namespace simulated_cuda::ledger
