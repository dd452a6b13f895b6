// How much memory the recorder takes: 64 MiB at most for 16 threads and 100,000 distinct stacks, and no more
// however long it runs, and while a pass over the trace is at work, whatever the bound.
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "recorder/fold/folding.h"
#include "recorder/memory/pages.h"
#include "recorder/stacks/thread_stacks.h"
#include "tests/recorder/process/workload.h"
#include "tests/recorder/support/writer_bench.h"

namespace gpumemtrace::tests {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Rings included: they are mapped and touched from the start.
size_t ResidentBytes() {
  size_t all = 0;
  size_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// What of that is the test program and its libraries.
size_t ProgramBytes(const std::string& ring_file) {
  std::ifstream maps("/proc/self/smaps");
  size_t bytes = 0;
  bool program = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first.back() != ':') {
      const size_t path = line.find('/');
      program = path != std::string::npos && line.compare(path, std::string::npos, ring_file) != 0;
    } else if (program && first == "Rss:") {
      size_t kib = 0;
      words >> kib;
      bytes += kib << 10;
    }
  }
  return bytes;
}

constexpr uint64_t kWorkers = 16;
constexpr uint64_t kStacks = 100000;
// Segments that each worker has at a time.
constexpr uint64_t kSegments = 2048;
constexpr size_t kLimit = size_t{64} << 20;

// Stack `i` has 35 native and 20 Python frames; like stacks of one program, it shares its outer frames with
// others and differs in the inner ones.
void DefineStack(WriterBench& bench, recorder::ThreadSlot& slot, uint64_t i) {
  constexpr uint32_t kNative = 35;
  constexpr uint32_t kPython = 20;
  const auto new_record = [&]() {
    return bench.New<ring_file::StackRecord>(slot, ring_file::RecordKind::kStack, kNative * 8 + kPython * 16);
  };
  auto* record = new_record();
  if (record == nullptr) {
    ASSERT_EQ(bench.writer->Drain(recorder::Writer::Order::kEverything), 0);
    record = new_record();
  }
  record->number = 1 + i;
  record->native_count = kNative;
  record->python_count = kPython;
  auto* native = reinterpret_cast<uint64_t*>(record + 1);
  auto* python = reinterpret_cast<ring_file::PythonFrame*>(native + kNative);
  const auto group = [i](uint32_t level) {
    return level < 2 ? i : level < 5 ? i / 8 : level < 9 ? i / 100 : i / 2000;
  };
  for (uint32_t f = 0; f < kNative; ++f) native[f] = 0x10000 + f * 0x100 + group(f) % 40 * 4;
  native[1] += i / 40 % 2500 * 0x10000;
  for (uint32_t f = 0; f < kPython; ++f) {
    python[f] = {0, static_cast<int32_t>(2 * (group(f + 2) % 400) + f * 1000), 0};
  }
  slot.ring.Publish();
}

TEST(Memory, BoundedForManyStacksAndFlatOverTime) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory hides ours";
  size_t before = ResidentBytes();
  const size_t program = ProgramBytes("");
  WriterBench bench(recorder::RingPlace::kSharedMemory, recorder::SystemFileLayer(), uint64_t{1} << 20);
  // Small enough for the trace to be folded at the end.
  constexpr uint64_t kBound = uint64_t{8} << 20;
  bench.writer->SetBound(kBound);
  std::vector<recorder::ThreadSlot*> slots;
  for (uint64_t i = 0; i < kWorkers; ++i) slots.push_back(&bench.NewThread(1000 + i, "worker"));
  uint64_t sequence = 0;
  std::vector<uint64_t> next(kWorkers);
  const auto put = [&](uint64_t t, recorder::Event event, uint64_t stack) {
    event.sequence = ++sequence;
    if (bench.Put(*slots[t], event, sequence * 1000, stack)) return;
    ASSERT_EQ(bench.writer->Drain(recorder::Writer::Order::kEverything), 0);
    ASSERT_TRUE(bench.Put(*slots[t], event, sequence * 1000, stack));
  };
  const auto record_events = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t t = i % kWorkers;
      // Each stack belongs to one thread and allocates one size.
      const uint64_t stack = 1 + t + kWorkers * (next[t] % (kStacks / kWorkers));
      recorder::Event event = WorkloadEvent(t, next[t]);
      event.api = 0;
      // Frees have no stack.
      const bool is_free = event.kind == recorder::EventKind::kBlockFree;
      if (!is_free) event.size = 512 * (1 + stack % 5);
      put(t, event, is_free ? 0 : stack);
      // Where a segment comes, one that came long ago goes, and the block that no event of its own frees.
      const auto end = [&](uint64_t birth, recorder::EventKind kind) {
        recorder::Event ends = WorkloadEvent(t, birth);
        ends.api = 0;
        ends.kind = kind;
        if (kind == recorder::EventKind::kFree) ends.size = ends.argument[1] = 0;
        put(t, ends, 0);
      };
      if (event.kind == recorder::EventKind::kAllocate) {
        end(next[t] - 8, recorder::EventKind::kBlockFree);
        if (next[t] >= 16 * kSegments) end(next[t] - 16 * kSegments, recorder::EventKind::kFree);
      }
      ++next[t];
    }
  };
  for (uint64_t i = 0; i < kStacks; ++i) {
    DefineStack(bench, *slots[i % kWorkers], i);
    record_events(1);
    if (HasFatalFailure()) return;
  }
  // What threads remember about their stacks, as after many captures of up to 128 frames of each kind: every
  // place of the caches, and the frames of the last stack.
  constexpr size_t kFrames = 128;
  for (recorder::ThreadSlot* slot : slots) {
    recorder::stacks::ThreadStacks& known = *slot->stacks;
    memset(known.stacks, 1, sizeof known.stacks);
    memset(known.codes, 1, sizeof known.codes);
    memset(known.modules, 1, sizeof known.modules);
    memset(static_cast<void*>(known.remembered), 1, kFrames * sizeof known.remembered[0]);
    memset(static_cast<void*>(known.fresh), 1, kFrames * sizeof known.fresh[0]);
    memset(static_cast<void*>(known.python_memory.remembered), 1,
           kFrames * sizeof(recorder::stacks::RememberedPythonFrame));
    memset(static_cast<void*>(known.python_memory.fresh), 1,
           kFrames * sizeof(recorder::stacks::RememberedPythonFrame));
    memset(static_cast<void*>(known.python_memory.sums), 1,
           kFrames * sizeof(recorder::stacks::PythonFrameSum));
    memset(static_cast<void*>(known.python_memory.fresh_places), 1,
           kFrames * sizeof(recorder::stacks::KnownPythonPlace));
    memset(static_cast<void*>(known.python_memory.places), 1, sizeof known.python_memory.places);
    memset(static_cast<void*>(known.paths), 1, sizeof known.paths);
    memset(static_cast<void*>(known.python), 1, kFrames * sizeof known.python[0]);
  }
  record_events(400000);
  // The code that ran for the first time is nobody's memory.
  before += ProgramBytes(bench.memory.path()) - program;
  const size_t after_first = ResidentBytes() - before;
  record_events(400000);
  const size_t after_second = ResidentBytes() - before;
  record_events(400000);
  const size_t after_third = ResidentBytes() - before;
  EXPECT_LE(after_third, kLimit);
  EXPECT_LE(after_third, after_second + (size_t{1} << 20));
  printf("%zu KiB for %llu threads and %llu stacks, %zu KiB after a million events\n", after_first >> 10,
         static_cast<unsigned long long>(kWorkers), static_cast<unsigned long long>(kStacks),
         after_third >> 10);

  // While it is at work a pass over the trace has every birth place and everything that is alive in its
  // memory once more, and it gives that back.
  recorder::Folding folding(*bench.writer, bench.file, recorder::SystemFileLayer(), kBound);
  size_t while_folding = 0;
  for (int turn = 0; turn < 100000 && folding.passes() < 2; ++turn) {
    record_events(2000);
    if (HasFatalFailure()) return;
    if (folding.ready()) folding.Complete();
    if (folding.passes() < 2) folding.Begin();
    folding.Work(size_t{64} << 10);
    while_folding = std::max(while_folding, ResidentBytes() - before);
  }
  EXPECT_EQ(folding.passes(), 2u);
  EXPECT_FALSE(folding.running());
  const size_t after_folding = ResidentBytes() - before;
  EXPECT_LE(while_folding, kLimit);
  EXPECT_LE(after_folding, after_third + (size_t{1} << 20));
  printf("%zu KiB while folding, %zu KiB after it\n", while_folding >> 10, after_folding >> 10);

  // With a large bound the parts of the trace are long, and so are the windows that a pass makes of them: all
  // of it may become one, if only memory allowed it. A pass of 2 GiB is not needed to see that.
  bench.writer->SetBound(uint64_t{2} << 30);
  record_events(500000);
  if (HasFatalFailure()) return;
  ASSERT_EQ(bench.writer->Drain(recorder::Writer::Order::kEverything), 0);
  const recorder::Array<recorder::TraceGroup>& groups = bench.writer->groups();
  const auto folder = std::make_unique<recorder::Folder>(recorder::SystemFileLayer());
  const std::string path = bench.folder / "large";
  ASSERT_EQ(folder->Begin(bench.file, path.c_str(),
                          {.groups = groups.span(),
                           .keep_from = groups.size() - 1,
                           .size = bench.file.size(),
                           .peaks = {},
                           .window_bytes = ~uint64_t{0},
                           .most_windows = 1}),
            0);
  size_t while_folding_large = 0;
  int result = 0;
  while ((result = folder->Turn(size_t{16} << 10)) == 0) {
    while_folding_large = std::max(while_folding_large, ResidentBytes() - before);
  }
  EXPECT_EQ(result, 1);
  EXPECT_LE(while_folding_large, kLimit);
  printf("%zu KiB while folding all of it at once\n", while_folding_large >> 10);
  folder->Abandon();
  ASSERT_EQ(bench.writer->Finish(), 0);
}

}  // namespace
}  // namespace gpumemtrace::tests
