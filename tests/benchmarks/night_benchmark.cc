// A night in minutes: a synthetic training loop of as many events as wanted through the real recorder, with
// its stacks, rings, writer thread and folding. Meanwhile it watches how much lies on disk and how much
// memory the recorder holds. night_benchmark.py runs it with and without a bound and compares the reports.
//   usage: night_benchmark EVENTS THREADS   (in an empty folder; prints one line of JSON)
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "recorder/memory/pages.h"
#include "recorder/recorder.h"

namespace gpumemtrace::benchmarks {
namespace {

using recorder::Event;
using recorder::EventKind;

constexpr const char* kNames[] = {"", "cudaMalloc", "c10::allocate", "c10::free"};
// A step allocates so often and frees as often, as the transformer step of the measurements does.
constexpr uint64_t kPlaces = 420;
constexpr uint64_t kEventsPerStep = 2 * kPlaces;

// Distinct functions, so that every place has a stack of its own.
template <size_t kPlace>
__attribute__((noinline)) void RecordFrom(const Event& event) {
  recorder::Record(event);
  __asm__ volatile("" ::: "memory");
}
template <size_t... kPlace>
constexpr auto MakeRecorders(std::index_sequence<kPlace...>) {
  return std::array<void (*)(const Event&), sizeof...(kPlace)>{RecordFrom<kPlace>...};
}
constexpr auto kRecorders = MakeRecorders(std::make_index_sequence<kPlaces + 8>());
enum Special : size_t { kLeak = kPlaces, kReplaced, kCache, kBurst, kFrees };

// One thread of the program, on a device of its own.
class Loop {
 public:
  explicit Loop(uint64_t thread)
      : device_(static_cast<int16_t>(thread)), next_address_(0x7f0000000000 + (thread << 40)) {}

  void Run(uint64_t steps) {
    std::vector<Block> temporaries;
    for (uint64_t step = 0; step < steps; ++step) {
      recorder::RecordMark(recorder::MarkKind::kStep, recorder::MarkSource::kApi, nullptr, nullptr, step);
      for (uint64_t place = 0; place < kPlaces; ++place) {
        // Some sizes follow a length that changes with the step.
        const uint64_t size = 512 * (1 + place % 97 + (place % 3 == 0 ? step % 5 : 0));
        temporaries.push_back(Allocate(place, size));
        // Every other one lives for a moment, the rest until the step ends.
        if (place % 2 == 1) {
          Free(temporaries.back());
          temporaries.pop_back();
        }
      }
      // Two high moments; the highest is neither the first nor the last.
      const uint64_t burst = step == steps / 3 ? 900 : step == steps * 2 / 3 ? 700 : 0;
      for (uint64_t i = 0; i < burst; ++i) temporaries.push_back(Allocate(kBurst, 1 << 20));
      for (; !temporaries.empty(); temporaries.pop_back()) Free(temporaries.back());
      if (step % 16 == 0) Allocate(kLeak, 4096);
      if (step < 500) Allocate(kCache, 8192);
      if (step % 40 == 0) {
        if (replaced_.size != 0) Free(replaced_);
        replaced_ = Allocate(kReplaced, 8192 * (1 + step % 7));
      }
    }
  }

 private:
  struct Block {
    uint64_t address;
    uint64_t size;
  };

  Event New(EventKind kind, uint16_t api, const Block& block) const {
    Event event;
    event.kind = kind;
    event.space = recorder::Space::kDevice;
    event.api = api;
    event.device = device_;
    event.address = block.address;
    event.size = block.size;
    return event;
  }
  Block Allocate(size_t place, uint64_t size) {
    allocated_ += size;
    if (allocated_ > reserved_) {
      // As a caching allocator takes memory: first the driver's, then its own.
      const Block segment{next_address_, (allocated_ - reserved_ + (20 << 20)) & ~uint64_t{(2 << 20) - 1}};
      next_address_ += segment.size;
      reserved_ += segment.size;
      kRecorders[place](New(EventKind::kAllocate, 1, segment));
    }
    Block block{0, size};
    std::vector<uint64_t>& free = free_[size / 512 % kClasses];
    if (free.empty()) {
      block.address = next_address_;
      next_address_ += (size + 511) & ~uint64_t{511};
    } else {
      block.address = free.back();
      free.pop_back();
    }
    Event event = New(EventKind::kBlockAllocate, 2, block);
    event.argument[0] = allocated_;
    event.argument[1] = reserved_;
    kRecorders[place](event);
    return block;
  }
  void Free(const Block& block) {
    allocated_ -= block.size;
    Event event = New(EventKind::kBlockFree, 3, block);
    event.argument[0] = allocated_;
    event.argument[1] = reserved_;
    kRecorders[kFrees](event);
    free_[block.size / 512 % kClasses].push_back(block.address);
  }

  // No two sizes of the program share one.
  static constexpr size_t kClasses = 4099;
  const int16_t device_;
  uint64_t next_address_;
  uint64_t allocated_ = 0;
  uint64_t reserved_ = 0;
  Block replaced_{};
  std::vector<uint64_t> free_[kClasses];
};

uint64_t FilesHere() {
  uint64_t sum = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(".", error)) {
    const uint64_t size = entry.file_size(error);
    if (!error) sum += size;
  }
  return sum;
}

uint64_t ResidentBytes() {
  uint64_t total = 0;
  uint64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int Main(uint64_t events, uint64_t threads) {
  recorder::Initialize({kNames, static_cast<uint16_t>(std::size(kNames))});
  const uint64_t steps = std::max<uint64_t>(events / threads / kEventsPerStep, 1);
  std::atomic<bool> done{false};
  uint64_t largest = 0;
  uint64_t most_memory = 0;
  const auto begin = std::chrono::steady_clock::now();
  const uint64_t resident_before = ResidentBytes();
  std::thread watch([&] {
    while (!done.load()) {
      largest = std::max(largest, FilesHere());
      most_memory = std::max<uint64_t>(most_memory, recorder::MappedPages());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::vector<std::thread> all;
  for (uint64_t t = 0; t < threads; ++t) {
    all.emplace_back([steps, t] {
      Loop loop(t);
      loop.Run(steps);
    });
  }
  for (std::thread& thread : all) thread.join();
  const uint64_t resident_after = ResidentBytes();
  recorder::Finish();
  done.store(true);
  watch.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("{\"steps\": %" PRIu64
              ", \"seconds\": %.1f, \"cpu_seconds\": %.1f, \"largest_on_disk\": %" PRIu64
              ", \"size\": %" PRIu64 ", \"recorder_memory\": %" PRIu64 ", \"resident_grown\": %" PRIu64
              ", \"peak_resident\": %" PRIu64 "}\n",
              steps, seconds,
              static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                  static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6,
              largest, FilesHere(), most_memory, resident_after - resident_before,
              static_cast<uint64_t>(usage.ru_maxrss) * 1024);
  return 0;
}

}  // namespace
}  // namespace gpumemtrace::benchmarks

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: night_benchmark EVENTS THREADS\n");
    return 64;
  }
  return gpumemtrace::benchmarks::Main(std::strtoull(arguments[1], nullptr, 10),
                                       std::strtoull(arguments[2], nullptr, 10));
}
