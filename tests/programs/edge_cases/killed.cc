// Allocates and frees at random for ever. After every call has returned, the operation is entered in a shared
// file, so that after a SIGKILL a test knows what the trace must contain.
//
// File: one 64 KiB-aligned area per thread: u64 count; then records { u64 address; i64 size (negative: freed)
// }.
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "cases.h"
#include "tests/simulated_cuda/newest_cuda_runtime.h"

namespace {

constexpr size_t kThreads = 3;
constexpr size_t kRecords = 1 << 20;

struct Record {
  uint64_t address;
  int64_t size;
};

struct Area {
  std::atomic<uint64_t> count;
  uint64_t padding;
  Record records[kRecords];
};

void Work(Area* area, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Record> live;
  while (area->count < kRecords) {
    Record done{};
    if (live.size() < 20 || (live.size() < 400 && random() % 2 == 0)) {
      void* p = nullptr;
      const size_t size = (random() % 64 + 1) * 512;
      if (cudaMalloc(&p, size) != cudaSuccess) continue;
      done = {reinterpret_cast<uint64_t>(p), static_cast<int64_t>(size)};
      live.push_back(done);
    } else {
      const size_t at = random() % live.size();
      done = {live[at].address, -live[at].size};
      live[at] = live.back();
      live.pop_back();
      cudaFree(reinterpret_cast<void*>(done.address));
    }
    area->records[area->count] = done;
    area->count.fetch_add(1, std::memory_order_release);
  }
}

}  // namespace

EDGE_CASE(killed_at_random) {
  const int file = open(arguments.at(0).c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof(Area) * kThreads) != 0) return 1;
  void* memory = mmap(nullptr, sizeof(Area) * kThreads, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return 1;
  close(file);
  auto* areas = static_cast<Area*>(memory);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back(Work, areas + i, static_cast<unsigned>(i) + static_cast<unsigned>(getpid()));
  }
  for (auto& t : threads) t.join();
  return 0;
}
