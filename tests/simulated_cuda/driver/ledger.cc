// The shared ledger and the questions a test can ask it.
#include "ledger.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <vector>

#include "simulated_cuda.h"
#include "state.h"

namespace simulated_cuda::ledger {
namespace {

std::atomic<Shared*> g_shared{nullptr};
// Names by number; a name registered before a fork keeps its number in the child.
std::atomic<uint32_t> g_calls{0};
const char* g_names[kCalls];

std::mutex& NamesMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::vector<uint32_t>& FreeSlots() {
  static auto* const slots = new std::vector<uint32_t>;
  return *slots;
}

int OpenFile() {
  const char* pattern = getenv("SIMULATED_CUDA_LEDGER");
  if (pattern == nullptr || *pattern == '\0') return -1;
  std::string path = pattern;
  if (size_t at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file >= 0 && ftruncate(file, sizeof(Shared)) != 0) {
    close(file);
    return -1;
  }
  return file;
}

}  // namespace

Shared& Get() {
  if (Shared* shared = g_shared.load(std::memory_order_acquire)) return *shared;
  std::lock_guard lock(NamesMutex());
  if (Shared* shared = g_shared.load(std::memory_order_acquire)) return *shared;
  const int file = OpenFile();
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                      file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, file, 0);
  if (file >= 0) close(file);
  if (memory == MAP_FAILED) abort();
  auto* shared = static_cast<Shared*>(memory);
  memcpy(shared->magic, "SIMCUDA1", 8);
  for (uint32_t i = 0; i < g_calls; ++i)
    strncpy(shared->calls[i].name, g_names[i], sizeof shared->calls[i].name - 1);
  g_shared.store(shared, std::memory_order_release);
  return *shared;
}

void ForgetAfterFork() {
  g_shared.store(nullptr, std::memory_order_relaxed);
  FreeSlots().clear();
}

uint32_t RegisterCall(const char* name) {
  Shared& shared = Get();
  std::lock_guard lock(NamesMutex());
  for (uint32_t i = 0; i < g_calls; ++i) {
    if (strcmp(g_names[i], name) == 0) return i;
  }
  const uint32_t call = g_calls;
  if (call == kCalls) abort();
  g_names[call] = name;
  strncpy(shared.calls[call].name, name, sizeof shared.calls[call].name - 1);
  g_calls = call + 1;
  return call;
}

void CountCall(uint32_t call) {
  Get().calls[call].count.fetch_add(1, std::memory_order_relaxed);
}

uint32_t Add(uint64_t address, uint64_t size, int device, uint32_t kind, uint32_t call) {
  Shared& shared = Get();
  uint32_t slot;
  if (!FreeSlots().empty()) {
    slot = FreeSlots().back();
    FreeSlots().pop_back();
  } else if (shared.slots_used < kSlots) {
    slot = static_cast<uint32_t>(shared.slots_used.fetch_add(1));
  } else {
    shared.overflow.fetch_add(1);
    return kSlots;
  }
  Slot& s = shared.slots[slot];
  shared.generation.fetch_add(1);
  s.address = address;
  s.size = size;
  s.device = device;
  s.kind = kind;
  s.call = call;
  s.live.store(1, std::memory_order_release);
  shared.generation.fetch_add(1);
  return slot;
}

void Remove(uint32_t slot) {
  if (slot >= kSlots) return;
  Get().slots[slot].live.store(0, std::memory_order_release);
  FreeSlots().push_back(slot);
}

}  // namespace simulated_cuda::ledger

using namespace simulated_cuda;

extern "C" size_t simulatedCudaLive(SimulatedCudaAllocation* out, size_t capacity) {
  std::lock_guard lock(Mutex());
  ledger::Shared& shared = ledger::Get();
  size_t count = 0;
  for (uint64_t i = 0; i < shared.slots_used; ++i) {
    const ledger::Slot& slot = shared.slots[i];
    if (slot.live == 0) continue;
    if (count < capacity) {
      SimulatedCudaAllocation& a = out[count];
      a = {slot.address, slot.size, slot.device, slot.kind, {}};
      strncpy(a.api, shared.calls[slot.call].name, sizeof a.api - 1);
    }
    ++count;
  }
  return count;
}

extern "C" uint64_t simulatedCudaCalls(const char* function) {
  ledger::Shared& shared = ledger::Get();
  for (const ledger::CallCount& call : shared.calls) {
    if (strcmp(call.name, function) == 0) return call.count;
  }
  return 0;
}

extern "C" void simulatedCudaDump(int descriptor) {
  const size_t count = simulatedCudaLive(nullptr, 0);
  std::vector<SimulatedCudaAllocation> live(count);
  simulatedCudaLive(live.data(), count);
  for (const SimulatedCudaAllocation& a : live) {
    dprintf(descriptor, "%#llx %llu %d %u %s\n", static_cast<unsigned long long>(a.address),
            static_cast<unsigned long long>(a.size), a.device, a.kind, a.api);
  }
}
