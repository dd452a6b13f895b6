// Preloaded in front of the shim, or alone: takes the time of every call of the functions that a training
// step of PyTorch calls most and that the shim stands in front of, in the caches as the step leaves them.
// timed_calls() is called through ctypes by tests/gpu/workloads/torch_steps.py.
//   cc -shared -fPIC -O2 -o timed_calls.so timed_calls.c -ldl
#include "torch_calls.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

// How many calls took so many ticks of the processor's counter; longer ones were interrupted. Two threads of
// PyTorch take turns here (the one that runs backward works while the other waits), so that nothing is
// counted at once.
enum { kMostTicks = 1 << 14 };
enum { kAllocate, kRelease, kNode, kSetStream, kKinds };
static const char* const names[kKinds] = {"allocation", "release", "node", "set_stream"};
// [0] on the program's first thread, [1] on others.
static uint32_t ticks[kKinds][2][kMostTicks];
static uint64_t longer[kKinds][2];

static uint64_t ticks_begun;
static struct timespec begun;

__attribute__((constructor)) static void begin(void) {
  clock_gettime(CLOCK_MONOTONIC, &begun);
  ticks_begun = __rdtsc();
}

static int other_thread(void) {
  static __thread int other = -1;
  if (other < 0) other = getpid() != (int)syscall(SYS_gettid);
  return other;
}

static inline uint64_t start(void) {
  _mm_lfence();
  const uint64_t now = __rdtsc();
  _mm_lfence();
  return now;
}

static inline void count(int kind, uint64_t from) {
  _mm_lfence();
  const uint64_t taken = __rdtsc() - from;
  if (taken < kMostTicks) {
    ++ticks[kind][other_thread()][taken];
  } else {
    ++longer[kind][other_thread()];
  }
}

void report(void* pointer, int64_t size, uint64_t allocated, uint64_t reserved, uint16_t device) {
  static Report* original;
  if (original == NULL) original = (Report*)find_next("libc10.so", REPORT_SYMBOL);
  if ((device & 0xff) != 1) {  // not CUDA
    original(pointer, size, allocated, reserved, device);
    return;
  }
  const uint64_t from = start();
  original(pointer, size, allocated, reserved, device);
  count(size > 0 ? kAllocate : kRelease, from);
}

uint64_t next(void) {
  static Next* original;
  if (original == NULL) original = (Next*)find_next("libtorch_cpu.so", NEXT_SYMBOL);
  const uint64_t from = start();
  const uint64_t number = original();
  count(kNode, from);
  return number;
}

void set_stream(Stream stream) {
  static SetStream* original;
  if (original == NULL) original = (SetStream*)find_next("libc10_cuda.so", SET_STREAM_SYMBOL);
  const uint64_t from = start();
  original(stream);
  count(kSetStream, from);
}

// A JSON object {kind and thread: [calls, mean ns without the slowest tenth]} of the calls since the last
// time, which it forgets.
void timed_calls(char* text, size_t bytes);
void timed_calls(char* text, size_t bytes) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const double ns = (double)(now.tv_sec - begun.tv_sec) * 1e9 + (double)(now.tv_nsec - begun.tv_nsec);
  const double ns_per_tick = ns / (double)(__rdtsc() - ticks_begun);
  size_t used = (size_t)snprintf(text, bytes, "{");
  for (int kind = 0; kind < kKinds; ++kind) {
    for (int other = 0; other < 2; ++other) {
      uint32_t* those = ticks[kind][other];
      uint64_t calls = longer[kind][other];
      double sum = 0;
      for (int i = 0; i < kMostTicks; ++i) calls += those[i];
      if (calls == 0) continue;
      const uint64_t kept = calls - calls / 10;
      uint64_t left = kept;
      for (int i = 0; i < kMostTicks; ++i) {
        const uint64_t taken = those[i] < left ? those[i] : left;
        sum += (double)taken * i;
        left -= taken;
        those[i] = 0;
      }
      longer[kind][other] = 0;
      used += (size_t)snprintf(text + used, bytes - used, "%s\"%s%s\": [%llu, %.2f]", used > 1 ? ", " : "",
                               names[kind], other ? ", backward" : "", (unsigned long long)calls,
                               sum / (double)(kept - left) * ns_per_tick);
    }
  }
  snprintf(text + used, bytes - used, "}");
}
