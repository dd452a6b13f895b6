// Set-up, fork handling, accounting and address ranges of the simulated driver.
#include "state.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <new>

namespace simulated_cuda {
namespace {

size_t EnvironmentNumber(const char* name, size_t otherwise) {
  const char* text = getenv(name);
  return text != nullptr && *text != '\0' ? strtoull(text, nullptr, 0) : otherwise;
}

// Devices start 4 TiB apart, in a part of the address space that neither mmap nor sanitizers use.
constexpr uint64_t kFirstAddress = uint64_t{0x20} << 40;
constexpr uint64_t kDeviceStride = uint64_t{4} << 40;

State* NewState() {
  auto* state = new State;
  const size_t count = EnvironmentNumber("SIMULATED_CUDA_DEVICES", 1);
  state->device_count = static_cast<int>(count > kMaxDevices ? kMaxDevices : count);
  state->context_bytes = EnvironmentNumber("SIMULATED_CUDA_CONTEXT_BYTES", 256 * kMiB);
  for (int i = 0; i < kMaxDevices; ++i) {
    Device& device = state->devices[i];
    device.total = EnvironmentNumber("SIMULATED_CUDA_DEVICE_BYTES", size_t{8} << 30);
    const uint64_t base = kFirstAddress + static_cast<uint64_t>(i) * kDeviceStride;
    device.addresses.Configure(base, base + kDeviceStride);
    const uint64_t low = 0x10000000u + static_cast<uint64_t>(i) * 0x0c000000u;
    device.low_addresses.Configure(low, low + 0x0c000000u);
    device.primary = {i, true, 0};
    device.default_pool = {i, true, false, 0, 0, 0, 0, 0, 0};
    device.current_pool = &device.default_pool;
    state->pools.insert(&device.default_pool);
  }
  pthread_atfork([] { Mutex().lock(); }, [] { Mutex().unlock(); },
                 [] {
                   // A recursive mutex remembers a thread id that the child no longer has: make it anew.
                   new (&Mutex()) std::recursive_mutex;
                   State& child = GetState();
                   if (child.initialized) child.forked = true;
                   ledger::ForgetAfterFork();
                 });
  return state;
}

}  // namespace

std::recursive_mutex& Mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

State& GetState() {
  static State* const state = NewState();
  return *state;
}

CUresult Enter() {
  const State& state = GetState();
  return state.initialized && !state.forked ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

uint64_t AddressSpace::Take(size_t size, size_t alignment) {
  const size_t span = RoundUp(size, alignment);
  auto& list = free_[span];
  if (!list.empty()) {
    const uint64_t address = list.back();
    list.pop_back();
    return address;
  }
  const uint64_t address = RoundUp(next_, alignment);
  if (span == 0 || address + span > limit_) return 0;
  next_ = address + span;
  return address;
}

void AddressSpace::GiveBack(uint64_t address, size_t size, size_t alignment) {
  free_[RoundUp(size, alignment)].push_back(address);
}

bool Charge(int device, size_t bytes) {
  Device& d = DeviceAt(device);
  if (bytes > d.total - d.used) return false;
  d.used += bytes;
  return true;
}

void Uncharge(int device, size_t bytes) {
  DeviceAt(device).used -= bytes;
}

void Register(uint64_t address, Allocation allocation, uint32_t call) {
  allocation.slot = ledger::Add(address, allocation.size, allocation.device, allocation.kind, call);
  GetState().allocations[address] = allocation;
}

std::map<uint64_t, Allocation>::iterator Find(uint64_t address) {
  auto& all = GetState().allocations;
  auto it = all.upper_bound(address);
  if (it == all.begin()) return all.end();
  --it;
  return address < it->first + (it->second.size != 0 ? it->second.size : 1) ? it : all.end();
}

CUresult Release(uint64_t address) {
  auto& all = GetState().allocations;
  const auto it = all.find(address);
  if (it == all.end()) return CUDA_ERROR_INVALID_VALUE;
  const Allocation allocation = it->second;
  all.erase(it);
  ledger::Remove(allocation.slot);
  if (allocation.device >= 0 && allocation.charged != 0) Uncharge(allocation.device, allocation.charged);
  if (allocation.pool != nullptr) PoolReturn(*allocation.pool, allocation.size);
  if (allocation.kind == SIMULATED_CUDA_GRAPH) {
    // The address stays with the graph, the bytes stay in the device's graph pool until it is trimmed.
    DeviceAt(allocation.device).graph_used -= allocation.size;
  } else if (allocation.host != nullptr) {
    munmap(allocation.host, allocation.span);
  } else if (allocation.span != 0) {
    Device& device = DeviceAt(allocation.device);
    (allocation.low ? device.low_addresses : device.addresses).GiveBack(address, allocation.span, 1);
  }
  return CUDA_SUCCESS;
}

void FreeContextAllocations(CUcontext context) {
  std::vector<uint64_t> addresses;
  for (const auto& [address, allocation] : GetState().allocations) {
    if (allocation.context == context) addresses.push_back(address);
  }
  for (const uint64_t address : addresses) Release(address);
}

}  // namespace simulated_cuda

extern "C" uint64_t simulatedCudaUsed(int device) {
  const std::lock_guard lock(simulated_cuda::Mutex());
  return simulated_cuda::DeviceAt(device).used;
}
