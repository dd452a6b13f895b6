// How the cost of an event grows with the number of threads that record at once: COUNT threads report a burst
// of allocations and releases to PyTorch's profiler hook, all at the same moment, and then wait some
// milliseconds, so that the writer thread keeps up. Prints the median of the nanoseconds that one call took a
// thread.
//
//     cc -O2 -pthread scaling.c .../torch/lib/libc10.so -o scaling;  scaling COUNT
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct Device {
  signed char type;
  signed char index;
};
// c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device), 1.10 and later.
extern void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void*, int64_t, size_t, size_t,
                                                                  struct Device);

enum { kBlocks = 64, kRounds = 30, kMostThreads = 256 };
static const long kPauseNs = 10 * 1000 * 1000;
static int thread_count;
static pthread_barrier_t barrier;
static double taken[kMostThreads * kRounds];

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void* Run(void* argument) {
  const long thread = (long)argument;
  const struct Device device = {1, 0};
  for (int round = -5; round < kRounds; ++round) {
    const struct timespec pause = {0, kPauseNs};
    nanosleep(&pause, NULL);
    pthread_barrier_wait(&barrier);
    // Once without being timed: after a pause everything is cold, whatever the shim does.
    double begun = 0;
    for (int i = -kBlocks; i < kBlocks; ++i) {
      if (i == 0) begun = Now();
      char* address = (char*)0x7f0000000000 + (thread << 32) + (i & (kBlocks - 1)) * 4096;
      _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(address, 4096, 4096, 1 << 30, device);
      _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(address, -4096, 0, 1 << 30, device);
    }
    if (round >= 0) taken[thread * kRounds + round] = (Now() - begun) / (2 * kBlocks);
  }
  return NULL;
}

static int Compare(const void* a, const void* b) {
  const double difference = *(const double*)a - *(const double*)b;
  return difference < 0 ? -1 : difference > 0;
}

int main(int count, char** arguments) {
  thread_count = count > 1 ? atoi(arguments[1]) : 1;
  if (thread_count < 1 || thread_count > kMostThreads) return 2;
  pthread_barrier_init(&barrier, NULL, (unsigned)thread_count);
  pthread_t threads[kMostThreads];
  for (long i = 0; i < thread_count; ++i) pthread_create(&threads[i], NULL, Run, (void*)i);
  for (long i = 0; i < thread_count; ++i) pthread_join(threads[i], NULL);
  qsort(taken, (size_t)thread_count * kRounds, sizeof taken[0], Compare);
  printf("%.1f\n", taken[(size_t)thread_count * kRounds / 2]);
  return 0;
}
