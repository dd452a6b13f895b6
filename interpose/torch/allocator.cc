// See allocator.h. These hooks run for every tensor, under the allocator's mutex, with or without the GIL:
// they take no lock, call nothing of CUDA, and never ask for the GIL (the lock order is GIL, then mutex).
#include "interpose/torch/allocator.h"

#include <cerrno>

#include "interpose/activation.h"
#include "interpose/torch/autograd.h"
#include "interpose/torch/stream.h"
#include "recorder/event.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose::torch {

constinit std::atomic<bool> blocks_seen{false};

namespace {

using recorder::EventKind;

// Inlined: the event is made where it is recorded.
__attribute__((always_inline)) inline void RecordBlock(HookId id, EventKind kind, uint64_t address,
                                                       uint64_t size, uint64_t allocated, uint64_t reserved,
                                                       int device, uint16_t flags) {
  const int saved_errno = errno;
  recorder::Event event;
  event.kind = kind;
  event.space = recorder::Space::kDevice;
  event.api = ApiOf(id);
  event.device = static_cast<int16_t>(device);
  event.address = address;
  event.size = size;
  event.flags = flags;
  event.argument[0] = allocated;
  event.argument[1] = reserved;
  event.stream = CurrentStream(device);
  if (kind != EventKind::kBlockFree) {
    event.forward_stack = ForwardStackOfRunningNode();
  }
  recorder::Record(event);
  errno = saved_errno;
}

__attribute__((always_inline)) inline void RecordUsage(HookId id, const void* pointer, int64_t size,
                                                       uint64_t allocated, uint64_t reserved, Device device,
                                                       uint16_t flags) {
  // The CPU allocator reports through the same function.
  if (device.type != kCuda || size == 0) {
    return;
  }
  if (!blocks_seen.load(std::memory_order_relaxed)) [[unlikely]] {
    if (!Enabled()) {
      return;
    }
    blocks_seen.store(true, std::memory_order_relaxed);
  }
  const bool allocates = size > 0;
  RecordBlock(id, allocates ? EventKind::kBlockAllocate : EventKind::kBlockFree,
              reinterpret_cast<uint64_t>(pointer), static_cast<uint64_t>(allocates ? size : -size), allocated,
              reserved, device.index, flags);
}

}  // namespace

[[gnu::hot]] void ReportMemoryUsage(Call<void, void*, int64_t, uint64_t, uint64_t, Device> call,
                                    void* pointer, int64_t size, uint64_t total_allocated,
                                    uint64_t total_reserved, Device device) {
  RecordUsage(call.id, pointer, size, total_allocated, total_reserved, device, recorder::kNoFlags);
  call(pointer, size, total_allocated, total_reserved, device);
}

// 1.7 to 1.9: without totals, and `pointer` is the allocator's own block, a unique key while it lives.
void ReportMemoryUsageWithoutTotals(Call<void, void*, int64_t, Device> call, void* pointer, int64_t size,
                                    Device device) {
  RecordUsage(call.id, pointer, size, 0, 0, device, recorder::kWithoutTotals);
  call(pointer, size, device);
}

void ReportOutOfMemory(Call<void, int64_t, uint64_t, uint64_t, Device> call, int64_t size,
                       uint64_t total_allocated, uint64_t total_reserved, Device device) {
  if (device.type == kCuda && Enabled()) {
    RecordBlock(call.id, EventKind::kBlockOutOfMemory, 0, static_cast<uint64_t>(size), total_allocated,
                total_reserved, device.index, recorder::kNoFlags);
  }
  call(size, total_allocated, total_reserved, device);
}

}  // namespace gpumemtrace::interpose::torch

namespace gpumemtrace::interpose {
GPUMEMTRACE_TORCH_ALLOCATOR_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
