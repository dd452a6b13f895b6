// The events that the driver records and that the tests expect: the i-th event of a thread is known from i.
#pragma once

#include <cstdint>

#include "recorder/event.h"

namespace gpumemtrace::tests {

inline constexpr const char* kDriverNames[] = {"", "cudaMalloc", "cudaFree", "c10::allocate", "c10::free"};

// Event `i` of thread `thread`: blocks are allocated and freed with a lag of up to 8; every 16th event is a
// segment.
inline recorder::Event WorkloadEvent(uint64_t thread, uint64_t i) {
  recorder::Event event;
  event.device = static_cast<int16_t>(thread % 4);
  event.space = recorder::Space::kDevice;
  event.stream = thread % 3 == 0 ? 0 : 0x1000 + thread;
  const uint64_t base = 0x7f0000000000 + (thread << 32);
  if (i % 16 == 15) {
    event.kind = recorder::EventKind::kAllocate;
    event.api = 1;
    event.address = base + 0x80000000 + i * 4096;
    event.size = (2 << 20) + i;
    event.argument[1] = i;
  } else if (i % 16 < 8) {
    event.kind = recorder::EventKind::kBlockAllocate;
    event.api = 3;
    event.address = base + (i % 16) * 0x10000;
    event.size = 512 * (1 + i % 5);
    event.argument[0] = i * 512;
    event.argument[1] = 2 << 20;
  } else {
    // Ends event i − 8, which is a block.
    const recorder::Event birth = WorkloadEvent(thread, i - 8);
    event = birth;
    event.kind = recorder::EventKind::kBlockFree;
    event.api = 4;
    event.argument[0] = i * 256;
  }
  return event;
}

}  // namespace gpumemtrace::tests
