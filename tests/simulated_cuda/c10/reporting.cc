// libc10.so: the originals that the shim forwards to; they count what reaches them.
#include "reporting.h"

#include <atomic>

namespace {
std::atomic<uint64_t> g_calls{0};
std::atomic<int64_t> g_sum{0};
std::atomic<uint64_t> g_out_of_memory{0};
}  // namespace

namespace c10 {

#if SIMULATED_TORCH >= 110
void reportMemoryUsageToProfiler(void*, int64_t size, Total, Total, Device device) {
#else
void reportMemoryUsageToProfiler(void*, int64_t size, Device device) {
#endif
  if (device.type != DeviceType::CUDA) return;
  g_calls.fetch_add(1, std::memory_order_relaxed);
  g_sum.fetch_add(size, std::memory_order_relaxed);
}

#if SIMULATED_TORCH >= 113
void reportOutOfMemoryToProfiler(int64_t, Total, Total, Device) {
  g_out_of_memory.fetch_add(1, std::memory_order_relaxed);
}
#endif

bool memoryProfilingEnabled() {
  return false;
}

}  // namespace c10

extern "C" void simulatedC10Reports(uint64_t* calls, int64_t* sum, uint64_t* out_of_memory) {
  *calls = g_calls;
  *sum = g_sum;
  *out_of_memory = g_out_of_memory;
}
