// The state of the simulated driver: devices, contexts, invented addresses, live allocations. One mutex
// guards it all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "ledger.h"
#include "simulated_cuda.h"

// Makes cuda.h declare every ABI version of a function under its exported name.
#define __CUDA_API_VERSION_INTERNAL
#include "newest_cuda.h"

// First line of every driver function: counts the call and refuses it before cuInit and in a child of a
// process that had CUDA up, as the real driver does.
#define DRIVER_CALL()                                                                              \
  static const uint32_t call = ::simulated_cuda::ledger::RegisterCall(__func__);                   \
  ::simulated_cuda::ledger::CountCall(call);                                                       \
  if (const CUresult refused = ::simulated_cuda::Enter(); refused != CUDA_SUCCESS) return refused; \
  const std::lock_guard driver_lock(::simulated_cuda::Mutex());                                    \
  (void)call

#define EXPORT extern "C" __attribute__((visibility("default")))

struct CUctx_st {
  int device;
  bool primary;
  size_t bytes;
};

struct CUmemPoolHandle_st {
  int device;  // -1: a host pool
  bool is_default;
  bool destroyed;
  size_t used, used_high;
  size_t reserved, reserved_high;
  uint64_t threshold;
  size_t outstanding;
};

namespace simulated_cuda {

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr int kMaxDevices = 16;

constexpr size_t RoundUp(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::recursive_mutex& Mutex();
CUresult Enter();

// Invented addresses that nobody may touch. A freed range is given out again for the next request of its
// size, as real allocators do.
class AddressSpace {
 public:
  void Configure(uint64_t base, uint64_t limit) { next_ = base, limit_ = limit; }
  // 0 when the range is used up.
  uint64_t Take(size_t size, size_t alignment);
  void GiveBack(uint64_t address, size_t size, size_t alignment);

 private:
  uint64_t next_ = 0;
  uint64_t limit_ = 0;
  std::map<size_t, std::vector<uint64_t>> free_;
};

struct Device {
  size_t total = 0;
  size_t used = 0;
  AddressSpace addresses;
  // 32-bit addresses of the ABI of CUDA 2.
  AddressSpace low_addresses;
  CUctx_st primary{};
  int primary_references = 0;
  CUmemPoolHandle_st default_pool{};
  CUmemoryPool current_pool = nullptr;
  size_t local_bytes = 0;
  size_t graph_used = 0, graph_used_high = 0;
  size_t graph_reserved = 0, graph_reserved_high = 0;
};

struct Allocation {
  size_t size = 0;
  // Bytes of device memory that belong to this allocation alone; 0 for those carved from a pool.
  size_t charged = 0;
  size_t span = 0;  // length of its range of addresses
  int device = -1;
  SimulatedCudaKind kind = SIMULATED_CUDA_DEVICE;
  CUcontext context = nullptr;
  CUmemoryPool pool = nullptr;
  void* host = nullptr;  // real memory behind it
  bool low = false;
  uint32_t slot = ledger::kSlots;
};

struct State {
  std::atomic<bool> initialized{false};
  // Set in a child of a process in which CUDA was up.
  std::atomic<bool> forked{false};
  int device_count = 1;
  size_t context_bytes = 0;
  Device devices[kMaxDevices];
  std::map<uint64_t, Allocation> allocations;
  std::set<CUcontext> contexts;
  std::set<CUmemoryPool> pools;
  uint64_t next_handle = 0x10000;
};

State& GetState();

// Null when the thread has no current context.
CUcontext CurrentContext();
Device* CurrentDevice();
inline Device& DeviceAt(int ordinal) {
  return GetState().devices[ordinal];
}

// Takes or returns bytes of a device; false when it has not enough.
bool Charge(int device, size_t bytes);
void Uncharge(int device, size_t bytes);

// Enters an allocation into the state and the ledger.
void Register(uint64_t address, Allocation allocation, uint32_t call);
// Releases whatever is at `address`; the pools' and graphs' counters follow.
CUresult Release(uint64_t address);
// The allocation that contains `address`, or end().
std::map<uint64_t, Allocation>::iterator Find(uint64_t address);

// Stream-ordered memory.
void PoolTake(CUmemPoolHandle_st& pool, size_t size);
bool PoolReserve(CUmemPoolHandle_st& pool, size_t size);
void PoolReturn(CUmemPoolHandle_st& pool, size_t size);
// What a synchronization does: reserves above the release threshold go back to the device.
void PoolsReleaseUnused();

// Drops what belongs to a context (not physical memory, not pools).
void FreeContextAllocations(CUcontext context);

}  // namespace simulated_cuda
