// What an event costs in a program that has used the caches for itself since the last one, from stacks that
// differ from event to event: what a training step is like, and hot_path_benchmark.cc is not. A shared object
// that cold_path_benchmark.py loads into a real CPython, under the preloaded shim and on the simulated c10.
#include <sys/mman.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "tests/simulated_cuda/c10/reporting.h"

namespace {

constexpr c10::Device kDevice = {c10::DeviceType::CUDA, 0};
constexpr int64_t kBlock = 4096;
constexpr size_t kLine = 64;

// Other work: runs code and touches memory that it has not come by for a while.
class Work {
 public:
  // `code` and `data` bytes in all; of each, `code_once` and `data_once` at a time.
  void Prepare(size_t code, size_t code_once, size_t data, size_t data_once) {
    data_.assign(data / sizeof(uint64_t), 1);
    data_words_ = data_once / sizeof(uint64_t);
    if (code != 0) Generate(code / kLine, code_once / kLine);
  }

  void Run() {
    if (!chains_.empty()) {
      chains_[next_chain_]();
      next_chain_ = (next_chain_ + 1) % chains_.size();
    }
    uint64_t* words = data_.data() + next_word_;
    for (size_t i = 0; i < data_words_; i += kLine / sizeof(uint64_t)) words[i] += i;
    next_word_ = next_word_ + 2 * data_words_ > data_.size() ? 0 : next_word_ + data_words_;
  }

 private:
  // Lines of instructions, each ending in a jump to the next; four in a row lie together, as in functions.
  void Generate(size_t lines, size_t lines_of_a_chain) {
    void* pages =
        mmap(nullptr, lines * kLine, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return;
    auto* code = static_cast<unsigned char*>(pages);
    std::mt19937 random(7);
    std::vector<size_t> runs(lines / 4);
    for (size_t i = 0; i < runs.size(); ++i) runs[i] = i;
    std::shuffle(runs.begin(), runs.end(), random);
    const auto line = [&](size_t i) { return code + (runs[i / 4] * 4 + i % 4) * kLine; };
    for (size_t i = 0; i < runs.size() * 4; ++i) {
      unsigned char* at = line(i);
      const bool last = i % lines_of_a_chain == lines_of_a_chain - 1 || i == runs.size() * 4 - 1;
      if (i % lines_of_a_chain == 0) {
        void (*function)();
        std::memcpy(&function, &at, sizeof function);
        chains_.push_back(function);
      }
      for (int k = 0; k < 8; ++k) {
        const auto number = static_cast<uint32_t>(random());
        *at++ = 0x05;  // add eax, number
        std::memcpy(at, &number, sizeof number);
        at += sizeof number;
      }
      if (last) {
        *at = 0xc3;  // ret
      } else {
        const auto distance = static_cast<int32_t>(line(i + 1) - (at + 5));
        *at = 0xe9;  // jmp
        std::memcpy(at + 1, &distance, sizeof distance);
      }
    }
  }

  std::vector<uint64_t> data_;
  std::vector<void (*)()> chains_;
  size_t data_words_ = 0;
  size_t next_word_ = 0;
  size_t next_chain_ = 0;
};

Work g_work;
bool g_measuring = false;
size_t g_allocated = 0;
std::vector<uint64_t> g_allocations;
std::vector<uint64_t> g_releases;

__attribute__((noinline)) void Report(void* pointer, int64_t size) {
  const uint64_t begun = __rdtsc();
  _mm_lfence();
  c10::reportMemoryUsageToProfiler(pointer, size, g_allocated, size_t{1} << 30, kDevice);
  _mm_lfence();
  const uint64_t ended = __rdtsc();
  if (g_measuring) (size > 0 ? g_allocations : g_releases).push_back(ended - begun);
}

// One of 1024 ways down, ten frames long.
template <int kLevel, int kFunction>
__attribute__((noinline)) void Way(int bits, void* pointer, int64_t size) {
  if constexpr (kLevel == 0) {
    Report(pointer, size);
  } else if ((bits & 1) != 0) {
    Way<kLevel - 1, (kFunction * 2 + 1) % 64>(bits >> 1, pointer, size);
  } else {
    Way<kLevel - 1, kFunction * 2 % 64>(bits >> 1, pointer, size);
  }
  __asm__ volatile("" ::: "memory");
}

void Tell(const char* name, const char* what, std::vector<uint64_t>& ticks) {
  if (ticks.empty()) return;
  std::sort(ticks.begin(), ticks.end());
  std::printf("%s %s: median %llu, lower quarter %llu ticks\n", name, what,
              static_cast<unsigned long long>(ticks[ticks.size() / 2]),
              static_cast<unsigned long long>(ticks[ticks.size() / 4]));
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void prepare(size_t code, size_t code_once, size_t data, size_t data_once) {
  g_work.Prepare(code, code_once, data, data_once);
}
EXPORT void measure() {
  g_measuring = true;
}
// An allocation and its release, other work before each.
EXPORT void event(int place) {
  void* pointer = reinterpret_cast<void*>(0x7f0000000000 + place * kBlock);
  const int way = place * 37 & 1023;
  g_work.Run();
  g_allocated += kBlock;
  Way<10, 0>(way, pointer, kBlock);
  g_work.Run();
  g_allocated -= kBlock;
  Way<10, 0>(way, pointer, -kBlock);
}
EXPORT void tell(const char* name) {
  Tell(name, "allocation", g_allocations);
  Tell(name, "release", g_releases);
  std::fflush(stdout);
}
