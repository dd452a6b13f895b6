// A preload for cpu_torch_step.py: reports what PyTorch's CPU allocator gives and takes as its CUDA allocator
// does, through the function that the shim hooks, as memory of device 0. Sizes are the C library's, which
// also knows them at the release. Counts the ticks of the processor's counter that each report takes, in the
// caches as the step leaves them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <x86intrin.h>

struct Device {
  int8_t type;
  int8_t index;
};
typedef void Report(void* pointer, int64_t size, int64_t allocated, int64_t reserved, struct Device device);

#define REPORT "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE"
extern Report shims_report __asm__(REPORT) __attribute__((weak));

static Report* report;
static int64_t allocated;

// How many reports took so many ticks; longer ones were interrupted. Of one thread: the program has no other
// that allocates.
enum { kMostTicks = 8192 };
static uint32_t ticks[2][kMostTicks];

// PyTorch's libraries are not in the global scope; the caller is one of them.
static void find_report(void* caller) {
  Dl_info info;
  report = shims_report;
  if (report == NULL && dladdr(caller, &info) != 0) {
    report = (Report*)dlsym(dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD), REPORT);
  }
}

static void tell(void* pointer, int64_t sign, void* caller) {
  const struct Device device = {1, 0};
  if (pointer == NULL) return;
  const int64_t size = sign * (int64_t)malloc_usable_size(pointer);
  const int64_t now = __atomic_add_fetch(&allocated, size, __ATOMIC_RELAXED);
  if (report == NULL) find_report(caller);
  const uint64_t begun = __rdtsc();
  _mm_lfence();
  report(pointer, size, now, (int64_t)1 << 32, device);
  _mm_lfence();
  const uint64_t taken = __rdtsc() - begun;
  if (taken < kMostTicks) ++ticks[sign < 0][taken];
}

// The mean of allocations (0) or releases (1) without the slowest tenth, and forgets them.
double cpu_as_device_ticks(int released);
double cpu_as_device_ticks(int released) {
  uint64_t count = 0;
  uint64_t sum = 0;
  uint64_t left;
  for (int i = 0; i < kMostTicks; ++i) count += ticks[released][i];
  left = count = count - count / 10;
  for (int i = 0; i < kMostTicks; ++i) {
    const uint64_t those = ticks[released][i] < left ? ticks[released][i] : left;
    sum += those * (uint64_t)i;
    left -= those;
    ticks[released][i] = 0;
  }
  return count != 0 ? (double)sum / (double)count : 0;
}

// c10::ProfiledCPUMemoryReporter::New and Delete.
void on_new(void* self, void* pointer, size_t size) __asm__("_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm");
void on_new(void* self, void* pointer, size_t size) {
  (void)self;
  if (size != 0) tell(pointer, 1, __builtin_return_address(0));
}
void on_delete(void* self, void* pointer) __asm__("_ZN3c1025ProfiledCPUMemoryReporter6DeleteEPv");
void on_delete(void* self, void* pointer) {
  (void)self;
  tell(pointer, -1, __builtin_return_address(0));
}
