// What a capture costs. Native stacks of about 35 frames from the outermost to the innermost, as under
// PyTorch; the Python part is measured inside an interpreter by scripts that load the probe
// (tests/recorder/stacks).
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "recorder/stacks/eh_frame.h"
#include "recorder/stacks/libunwind_api.h"
#include "recorder/stacks/modules.h"
#include "recorder/stacks/native.h"
#include "recorder/stacks/own_code.h"
#include "recorder/stacks/stacks.h"

namespace gpumemtrace::recorder::stacks {
namespace {

ThreadStacks* Stacks() {
  static auto* stacks = [] {
    SetOwnCode({});
    PrepareEhFrame();
    PrepareLibunwind();
    auto* memory = static_cast<ThreadStacks*>(
        mmap(nullptr, kThreadStacksSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memory->generation = UnloadGeneration();
    return memory;
  }();
  return stacks;
}

class NoSink final : public DefinitionSink {
 public:
  bool DefineModule(const ModuleDefinition&) override { return true; }
  bool DefineCode(const CodeDefinition&) override { return true; }
  bool DefineStack(const StackDefinition&) override { return true; }
};

// Distinct functions, so that every frame has a return address and a rule of its own.
using Body = void (*)(benchmark::State& state);
template <int kDepth>
__attribute__((noinline)) void Frame(benchmark::State& state, Body body) {
  if constexpr (kDepth == 0) {
    body(state);
  } else {
    Frame<kDepth - 1>(state, body);
  }
  __asm__ volatile("" ::: "memory");
}

// The last frame that stays the same from one capture to the next is `kFresh` frames further out.
template <int kDepth>
__attribute__((noinline)) uint64_t Fresh(ThreadStacks& stacks, int side) {
  uint64_t result;
  if constexpr (kDepth == 0) {
    result = WalkNative(stacks, nullptr, 128).hash;
  } else {
    // Two calls: each capture returns to another place than the last one did.
    result = (side & 1) != 0 ? Fresh<kDepth - 1>(stacks, side) + 1 : Fresh<kDepth - 1>(stacks, side) + 2;
  }
  __asm__ volatile("" ::: "memory");
  return result;
}

void Same(benchmark::State& state) {
  ThreadStacks& stacks = *Stacks();
  size_t frames = 0;
  for (auto _ : state) {
    const NativeWalk walk = WalkNative(stacks, nullptr, 128);
    frames = walk.count;
    benchmark::DoNotOptimize(walk.hash);
  }
  state.counters["frames"] = static_cast<double>(frames);
}

template <int kFresh>
void PartlyFresh(benchmark::State& state) {
  ThreadStacks& stacks = *Stacks();
  int side = 0;
  for (auto _ : state) {
    const uint64_t hash = Fresh<kFresh>(stacks, ++side);
    benchmark::DoNotOptimize(hash);
  }
  state.counters["frames"] = static_cast<double>(WalkNative(stacks, nullptr, 128).count + kFresh);
}

void AllFresh(benchmark::State& state) {
  ThreadStacks& stacks = *Stacks();
  size_t frames = 0;
  for (auto _ : state) {
    stacks.remembered_count = 0;
    const NativeWalk walk = WalkNative(stacks, nullptr, 128);
    frames = walk.count;
    benchmark::DoNotOptimize(walk.hash);
  }
  state.counters["frames"] = static_cast<double>(frames);
}

void Libunwind(benchmark::State& state) {
  ThreadStacks& stacks = *Stacks();
  size_t frames = 0;
  for (auto _ : state) {
    const NativeWalk walk = WalkByLibunwind(stacks, nullptr, 128, 0);
    frames = walk.count;
    benchmark::DoNotOptimize(walk.hash);
  }
  state.counters["frames"] = static_cast<double>(frames);
}

void WholeCapture(benchmark::State& state) {
  ThreadStacks& stacks = *Stacks();
  NoSink sink;
  const CaptureOptions options;
  for (auto _ : state) benchmark::DoNotOptimize(Capture(stacks, options, sink));
}

// With what main and the benchmark library add, about 35 frames.
constexpr int kDepth = 25;

void NativeSameStack(benchmark::State& state) {
  Frame<kDepth>(state, Same);
}
void NativeTenFreshFrames(benchmark::State& state) {
  Frame<kDepth - 10>(state, PartlyFresh<10>);
}
void NativeTwentyFreshFrames(benchmark::State& state) {
  Frame<kDepth - 20>(state, PartlyFresh<20>);
}
void NativeAllFresh(benchmark::State& state) {
  Frame<kDepth>(state, AllFresh);
}
void NativeByLibunwind(benchmark::State& state) {
  Frame<kDepth>(state, Libunwind);
}
void CaptureSameStack(benchmark::State& state) {
  Frame<kDepth>(state, WholeCapture);
}

BENCHMARK(NativeSameStack);
BENCHMARK(NativeTenFreshFrames);
BENCHMARK(NativeTwentyFreshFrames);
BENCHMARK(NativeAllFresh);
BENCHMARK(NativeByLibunwind);
BENCHMARK(CaptureSameStack);

}  // namespace
}  // namespace gpumemtrace::recorder::stacks

BENCHMARK_MAIN();
