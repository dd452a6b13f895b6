// What an allocation and its release cost on the whole way through the shim: the hook in front of PyTorch's
// report, the stacks, the ring. A shared object that hot_path_benchmark.py loads into a real CPython, under
// the preloaded shim and on the simulated c10; it measures with Google Benchmark from 20 Python and 35 native
// frames deep.
#include <benchmark/benchmark.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/simulated_cuda/c10/reporting.h"

namespace {

constexpr c10::Device kDevice = {c10::DeviceType::CUDA, 0};
constexpr int64_t kBlock = 4096;
constexpr int kBatch = 256;

double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A process-wide place for each thread's blocks, so that no address is alive twice.
void* Address(uint64_t thread, uint64_t i) {
  return reinterpret_cast<void*>(0x7f0000000000 + (thread << 32) + i * kBlock);
}

__attribute__((noinline)) void Allocate(uint64_t thread, uint64_t i, int64_t size, size_t allocated) {
  c10::reportMemoryUsageToProfiler(Address(thread, i), size, allocated, size_t{1} << 30, kDevice);
}
__attribute__((noinline)) void Free(uint64_t thread, uint64_t i, int64_t size, size_t allocated) {
  c10::reportMemoryUsageToProfiler(Address(thread, i), -size, allocated, size_t{1} << 30, kDevice);
}

// Distinct functions, so that every frame has a return address and an unwind rule of its own.
template <int kDepth, typename Body>
__attribute__((noinline)) void Deep(Body& body) {
  if constexpr (kDepth == 0) {
    body();
  } else {
    Deep<kDepth - 1>(body);
  }
  __asm__ volatile("" ::: "memory");
}
// With the hook's caller and what lies between this and the interpreter (ctypes, libffi, the benchmark
// library), about 35 native frames above the interpreter's loop.
constexpr int kNativeFrames = 20;

// What a program does between its allocations: takes about a millisecond, in which the writer thread catches
// up, and half a MiB of the caches. Back to back, events come faster than they can be compressed, and what
// would be measured is the compression; that is what Threads is for.
__attribute__((noinline)) void Work() {
  static std::vector<uint64_t> memory(size_t{512} << 7);
  const double end = Seconds() + 1e-3;
  do {
    for (uint64_t& word : memory) word = word * 5 + 1;
  } while (Seconds() < end);
  benchmark::ClobberMemory();
}

// One batch of allocations and their releases; each part is timed as a whole.
template <bool kFrees>
void Batches(benchmark::State& state) {
  std::vector<double> batches;
  auto body = [&state, &batches] {
    for (auto _ : state) {
      Work();
      const double begun = Seconds();
      size_t allocated = 0;
      for (int i = 0; i < kBatch; ++i) {
        allocated += kBlock;
        Allocate(0, static_cast<uint64_t>(i), kBlock, allocated);
      }
      const double middle = Seconds();
      for (int i = 0; i < kBatch; ++i) {
        allocated -= kBlock;
        Free(0, static_cast<uint64_t>(i), kBlock, allocated);
      }
      const double end = Seconds();
      batches.push_back(kFrees ? end - middle : middle - begun);
      state.SetIterationTime(batches.back());
    }
  };
  Deep<kNativeFrames>(body);
  // Other programs of the machine are in the mean.
  std::nth_element(batches.begin(), batches.begin() + batches.size() / 2, batches.end());
  state.counters["median_ns"] = batches[batches.size() / 2] * 1e9 / kBatch;
}

// Every thread allocates and frees as fast as it can.
void Threads(benchmark::State& state) {
  const auto thread = static_cast<uint64_t>(state.thread_index()) + 1;
  auto body = [&state, thread] {
    for (auto _ : state) {
      for (int i = 0; i < kBatch; ++i) Allocate(thread, static_cast<uint64_t>(i), kBlock, kBlock);
      for (int i = 0; i < kBatch; ++i) Free(thread, static_cast<uint64_t>(i), kBlock, kBlock);
    }
  };
  Deep<kNativeFrames>(body);
  state.SetItemsProcessed(state.iterations() * kBatch * 2);
}

// Threads that live for 16 events, eight at a time.
void ShortLivedThreads(benchmark::State& state) {
  const auto count = static_cast<uint64_t>(state.range(0));
  for (auto _ : state) {
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < count; ++t) {
      threads.emplace_back([t] {
        for (uint64_t i = 0; i < 8; ++i) Allocate(100 + t % 8, i, kBlock, kBlock);
        for (uint64_t i = 0; i < 8; ++i) Free(100 + t % 8, i, kBlock, kBlock);
      });
      if (threads.size() < 8) continue;
      for (std::thread& thread : threads) thread.join();
      threads.clear();
    }
    for (std::thread& thread : threads) thread.join();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// A training loop's events: 420 places that allocate, each with a size of its own; two thirds of the blocks
// die soon, the others at the end of the step. With `changes` the sizes follow a length that is another one
// in each step.
using Place = void (*)(uint64_t, int64_t, size_t);
template <size_t kPlace>
__attribute__((noinline)) void At(uint64_t i, int64_t size, size_t allocated) {
  Allocate(0, i, size, allocated);
  __asm__ volatile("" ::: "memory");
}
constexpr size_t kPlaces = 420;
template <size_t... kIndices>
constexpr std::array<Place, kPlaces> Places(std::index_sequence<kIndices...>) {
  return {&At<kIndices>...};
}
constexpr auto kAllocate = Places(std::make_index_sequence<kPlaces>());

void Steps(int steps, bool changes) {
  std::mt19937 random(1);
  auto body = [&] {
    size_t allocated = 0;
    const auto release = [&allocated](uint64_t i, int64_t size) {
      allocated -= static_cast<size_t>(size);
      Free(0, i * 1024, size, allocated);
    };
    for (int step = 0; step < steps; ++step) {
      const uint64_t length = changes ? 16 + random() % 144 : 64;
      const auto size_of = [length](size_t place) {
        const uint64_t bytes = place % 7 == 0 ? 2048 * (place % 5 + 1) : length * 512 * (place % 11 + 1);
        return static_cast<int64_t>((bytes + 511) / 512 * 512);
      };
      for (size_t place = 0; place < kPlaces; ++place) {
        const int64_t size = size_of(place);
        allocated += static_cast<size_t>(size);
        kAllocate[place](place * 1024, size, allocated);
        if (place % 3 == 2) {
          release(place - 1, size_of(place - 1));
          release(place, size);
        }
      }
      for (size_t place = 0; place < kPlaces; place += 3) release(place, size_of(place));
    }
  };
  Deep<kNativeFrames>(body);
}

}  // namespace

// Runs the benchmarks whose names match `filter`, each for `seconds` or, with 0, for one iteration; `name`
// goes before every name.
extern "C" __attribute__((visibility("default"))) void run_benchmarks(const char* name, const char* filter,
                                                                      double seconds, int most_threads,
                                                                      int short_lived) {
  const std::string prefix(name);
  const auto limit = [seconds](benchmark::internal::Benchmark* benchmark) {
    return seconds > 0 ? benchmark->MinTime(seconds) : benchmark->Iterations(1);
  };
  // A batch comes with a millisecond of other work.
  const auto batches = seconds > 0 ? static_cast<int64_t>(seconds * 1000) : 1;
  benchmark::RegisterBenchmark((prefix + "/allocate").c_str(), Batches<false>)
      ->Iterations(batches)
      ->UseManualTime();
  benchmark::RegisterBenchmark((prefix + "/free").c_str(), Batches<true>)
      ->Iterations(batches)
      ->UseManualTime();
  for (int threads = 1; threads <= most_threads; threads *= 2) {
    limit(benchmark::RegisterBenchmark((prefix + "/threads").c_str(), Threads))
        ->Threads(threads)
        ->UseRealTime();
  }
  benchmark::RegisterBenchmark((prefix + "/short_lived_threads").c_str(), ShortLivedThreads)
      ->Arg(short_lived)
      ->Iterations(1)
      ->UseRealTime();
  std::string program = "hot_path_benchmark";
  std::string wanted = std::string("--benchmark_filter=") + filter;
  char* arguments[] = {program.data(), wanted.data(), nullptr};
  int count = 2;
  benchmark::Initialize(&count, arguments);
  benchmark::RunSpecifiedBenchmarks();
  std::fflush(nullptr);
}

// Two events for each of 420 blocks in each step.
extern "C" __attribute__((visibility("default"))) long run_steps(int steps, int changes) {
  Steps(steps, changes != 0);
  return static_cast<long>(steps) * static_cast<long>(kPlaces) * 2;
}
