// Folding through the real writer: the same stream of events, once kept whole and once within a bound that is
// far too small for it, must read the same in everything that folding promises.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "analyzer/analyzed_trace.h"
#include "recorder/fold/folding.h"
#include "tests/recorder/support/writer_bench.h"

namespace gpumemtrace::tests {
namespace {

using recorder::Event;
using recorder::EventKind;
using recorder::Space;

constexpr uint64_t kBound = uint64_t{1} << 20;

// A program with a steady loop of temporaries of many sizes, something that leaks, something that is replaced
// now and then, plain cudaMallocs that come and go, and two high moments.
class Program {
 public:
  Program(WriterBench& bench, uint64_t seed)
      : bench_(bench), random_(seed), slot_(bench.NewThread(77, "main")) {
    for (uint64_t place = 1; place <= kPlaces; ++place) {
      auto* stack =
          bench_.New<ring_file::StackRecord>(slot_, ring_file::RecordKind::kStack, sizeof(uint64_t));
      stack->number = place;
      stack->native_count = 1;
      *reinterpret_cast<uint64_t*>(stack + 1) = 0x10000 * place;
      slot_.ring.Publish();
    }
  }

  // Calls `after` now and then.
  template <typename After>
  void Run(uint64_t steps, After after) {
    for (uint64_t step = 0; step < steps; ++step) {
      Mark(step);
      const uint64_t temporaries = 40 + (step == steps / 3 ? 600 : step == steps / 2 ? 300 : 0);
      std::vector<uint64_t> made;
      for (uint64_t i = 0; i < temporaries; ++i) {
        made.push_back(Allocate(1 + random_() % 12, 512 * (1 + random_() % 64), 0));
        if (made.size() > 3 && random_() % 3 == 0) {
          const size_t which = random_() % made.size();
          Free(made[which]);
          made.erase(made.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      for (const uint64_t block : made) Free(block);
      if (step % 5 == 0) Allocate(20, 4096, 0);  // leaks
      if (step % 40 == 0) {
        if (replaced_ != 0) Free(replaced_);
        replaced_ = Allocate(21, 8192 * (1 + step % 7), 0);
      }
      if (step % 16 == 3) {
        const uint64_t segment = Segment((2 << 20) + (step % 3 << 20));
        if (step % 32 == 3) FreeSegment(segment);
      }
      after();
    }
  }

 private:
  static constexpr uint64_t kPlaces = 32;
  struct Block {
    uint64_t address;
    uint64_t size;
    int16_t device;
  };

  void Put(Event event, uint64_t stack) {
    event.sequence = sequence_++;
    time_ns_ += 1000 * (1 + random_() % 50);
    while (!bench_.Put(slot_, event, time_ns_, stack)) bench_.writer->Drain(recorder::Writer::Order::kExact);
  }
  uint64_t Allocate(uint16_t place, uint64_t size, int16_t device) {
    const uint64_t number = ++made_;
    Event event;
    event.kind = EventKind::kBlockAllocate;
    event.space = Space::kDevice;
    event.api = 3;
    event.device = static_cast<int16_t>(device + (place % 4 == 3 ? 1 : 0));
    event.address = 0x7f0000000000 + number * 0x10000;
    event.size = size;
    event.argument[0] = allocated_[event.device] += size;
    event.argument[1] = reserved_[event.device] = std::max(
        reserved_[event.device], (allocated_[event.device] + (2 << 20) - 1) & ~uint64_t{(2 << 20) - 1});
    blocks_[number] = {event.address, size, event.device};
    Put(event, place);
    return number;
  }
  void Free(uint64_t number) {
    const Block block = blocks_.at(number);
    blocks_.erase(number);
    Event event;
    event.kind = EventKind::kBlockFree;
    event.space = Space::kDevice;
    event.api = 3;
    event.device = block.device;
    event.address = block.address;
    event.size = block.size;
    event.argument[0] = allocated_[event.device] -= block.size;
    event.argument[1] = reserved_[event.device];
    Put(event, 0);
  }
  uint64_t Segment(uint64_t size) {
    Event event;
    event.kind = EventKind::kAllocate;
    event.space = Space::kDevice;
    event.api = 1;
    event.device = 0;
    event.address = 0x600000000000 + (++segments_ << 24);
    event.size = size;
    Put(event, 30);
    return event.address;
  }
  void FreeSegment(uint64_t address) {
    Event event;
    event.kind = EventKind::kFree;
    event.space = Space::kDevice;
    event.api = 2;
    event.device = 0;
    event.address = address;
    Put(event, 0);
  }
  void Mark(uint64_t step) {
    ring_file::MarkRecord* record = nullptr;
    while ((record = bench_.New<ring_file::MarkRecord>(slot_, ring_file::RecordKind::kMark, 0)) == nullptr) {
      bench_.writer->Drain(recorder::Writer::Order::kExact);
    }
    record->header.detail = 4;  // STEP
    record->header.flags = 1;
    record->sequence = sequence_++;
    record->time_ns = time_ns_ += 1000;
    record->number = step;
    slot_.ring.Publish();
    bench_.next_sequence = sequence_;
  }

  WriterBench& bench_;
  std::mt19937_64 random_;
  recorder::ThreadSlot& slot_;
  uint64_t sequence_ = 1;
  uint64_t time_ns_ = 1'000'000'000;
  uint64_t made_ = 0;
  uint64_t segments_ = 0;
  uint64_t replaced_ = 0;
  std::map<uint64_t, Block> blocks_;
  std::map<int, uint64_t> allocated_;
  std::map<int, uint64_t> reserved_;
};

struct Outcome {
  std::unique_ptr<analyzer::AnalyzedTrace> trace;
  uint64_t passes = 0;
  uint64_t largest = 0;
};

Outcome Record(uint64_t seed, uint64_t steps, uint64_t bound,
               recorder::FileLayer& layer = recorder::SystemFileLayer()) {
  WriterBench bench(recorder::RingPlace::kPrivate, layer);
  bench.writer->SetRestartBytes(kBound / 256);
  recorder::Folding folding(*bench.writer, bench.file, layer, bound);
  Outcome outcome;
  Program program(bench, seed);
  uint64_t turns = 0;
  program.Run(steps, [&] {
    if (++turns % 7 == 0) EXPECT_EQ(bench.writer->Drain(recorder::Writer::Order::kExact), 0);
    if (folding.ready()) folding.Complete();
    folding.Begin();
    folding.Work(16 << 10);
    outcome.largest = std::max(outcome.largest, bench.file.size());
  });
  while (folding.running()) {
    folding.Work(16 << 10);
    if (folding.ready()) folding.Complete();
  }
  EXPECT_EQ(bench.writer->Finish(), 0);
  outcome.passes = folding.passes();
  analyzer::AnalyzeOptions options;
  options.reader.recover = false;
  outcome.trace = analyzer::Analyze(bench.path, options);
  // Nothing is left beside the trace.
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(bench.folder.path())) {
    files += entry.path().string().find(".fold-") != std::string::npos;
  }
  EXPECT_EQ(files, 0u);
  return outcome;
}

using PlaceKey = std::tuple<int, int, int32_t, uint64_t>;

PlaceKey KeyOf(const analyzer::TraceModel& model, analyzer::SiteId site, int level) {
  const analyzer::StackNode& node = model.Node(model.Site(site).native_stack);
  return {level, static_cast<int>(model.Site(site).space), model.Site(site).device,
          model.Frame(node.frame).offset};
}

// By stack, kind of memory and device: births, bytes born, count and bytes alive at the end.
std::map<PlaceKey, std::array<uint64_t, 4>> Births(const analyzer::AnalyzedTrace& trace) {
  std::map<PlaceKey, std::array<uint64_t, 4>> result;
  for (const analyzer::OriginSummary& origin : trace.analyses.findings().origins) {
    auto& sums = result[KeyOf(trace.model, origin.site, static_cast<int>(origin.level))];
    sums[0] += origin.births;
    sums[1] += origin.born_bytes;
    sums[2] += origin.live_count;
    sums[3] += origin.live_bytes;
  }
  return result;
}

// Birth index, address and size of everything that is alive at the end.
std::set<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>> Alive(const analyzer::AnalyzedTrace& trace) {
  std::set<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>> result;
  for (const analyzer::Allocation& allocation : trace.ledger.allocations()) {
    if (allocation.live) {
      result.emplace(allocation.birth_index, allocation.address, allocation.size, allocation.birth_time_us);
    }
  }
  return result;
}

class FoldTest : public ::testing::TestWithParam<uint64_t> {};

// Everything that folding promises.
void ExpectSame(const analyzer::AnalyzedTrace& a, const analyzer::AnalyzedTrace& b) {
  EXPECT_FALSE(b.read.damage.any()) << b.read.damage.first_fault;
  EXPECT_EQ(b.model.header.format_version(), 2u);
  EXPECT_EQ(a.model.header.format_version(), 1u);
  EXPECT_TRUE(b.model.has_end);
  EXPECT_GT(b.ledger.folded_windows(), 0u);
  EXPECT_GT(b.ledger.folded_events(), a.ledger.events() / 4);

  EXPECT_EQ(a.ledger.events(), b.ledger.events());
  EXPECT_EQ(a.ledger.block_events(), b.ledger.block_events());
  EXPECT_EQ(b.ledger.anomalies().unknown_frees, 0u);
  EXPECT_EQ(Births(a), Births(b));
  EXPECT_EQ(Alive(a), Alive(b));
  for (const auto& [device, check] : b.ledger.self_checks())
    EXPECT_EQ(check.allocated_disagree, 0u) << device;

  // Peaks: moment and composition.
  const auto& peaks = a.analyses.findings().peaks;
  const auto& bounded_peaks = b.analyses.findings().peaks;
  ASSERT_EQ(peaks.size(), bounded_peaks.size());
  ASSERT_GE(peaks.size(), 3u);
  for (size_t i = 0; i < peaks.size(); ++i) {
    EXPECT_EQ(peaks[i].bytes, bounded_peaks[i].bytes);
    EXPECT_EQ(peaks[i].moment.index, bounded_peaks[i].moment.index);
    EXPECT_EQ(peaks[i].moment.time_us, bounded_peaks[i].moment.time_us);
    uint64_t sum = 0;
    uint64_t bounded_sum = 0;
    ASSERT_EQ(peaks[i].by_line.size(), bounded_peaks[i].by_line.size());
    for (size_t line = 0; line < peaks[i].by_line.size(); ++line) {
      EXPECT_EQ(peaks[i].by_line[line].bytes, bounded_peaks[i].by_line[line].bytes);
      EXPECT_EQ(peaks[i].by_line[line].count, bounded_peaks[i].by_line[line].count);
      sum += peaks[i].by_line[line].bytes;
      bounded_sum += bounded_peaks[i].by_line[line].bytes;
    }
    EXPECT_EQ(sum, bounded_sum);
    ASSERT_EQ(peaks[i].largest.size(), bounded_peaks[i].largest.size());
    for (size_t block = 0; block < peaks[i].largest.size(); ++block) {
      EXPECT_EQ(peaks[i].largest[block].birth_index, bounded_peaks[i].largest[block].birth_index);
      EXPECT_EQ(peaks[i].largest[block].death_index, bounded_peaks[i].largest[block].death_index);
      EXPECT_EQ(peaks[i].largest[block].bytes, bounded_peaks[i].largest[block].bytes);
    }
  }

  // Steps are marked: all of them are still there.
  EXPECT_EQ(a.analyses.findings().steps.count, b.analyses.findings().steps.count);

  // The growth of every line: what it is, and how much.
  const auto growth = [](const analyzer::AnalyzedTrace& trace) {
    std::map<std::pair<uint64_t, int>, std::pair<analyzer::GrowthKind, double>> result;
    for (const analyzer::GrowthFinding& finding : trace.analyses.findings().growth) {
      if (finding.kind != analyzer::GrowthKind::kLeak) continue;
      const analyzer::SiteId site = trace.analyses.findings().origins[finding.origins.front()].site;
      const analyzer::StackNode& node = trace.model.Node(trace.model.Site(site).native_stack);
      result[{trace.model.Frame(node.frame).offset, finding.device}] = {finding.kind, finding.bytes_per_step};
    }
    return result;
  };
  const auto leaks = growth(a);
  const auto bounded_leaks = growth(b);
  EXPECT_FALSE(leaks.empty());
  ASSERT_EQ(leaks.size(), bounded_leaks.size());
  for (const auto& [place, leak] : leaks) {
    ASSERT_TRUE(bounded_leaks.contains(place));
    EXPECT_NEAR(bounded_leaks.at(place).second, leak.second, leak.second * 0.02);
  }
}

TEST_P(FoldTest, ReadsAsTheWholeTrace) {
  constexpr uint64_t kSteps = 12000;
  const Outcome whole = Record(GetParam(), kSteps, 0);
  const Outcome bounded = Record(GetParam(), kSteps, kBound);
  ASSERT_GT(bounded.passes, 1u) << "the bound was never reached: " << whole.largest;
  EXPECT_GT(whole.largest, 2 * kBound);
  EXPECT_LE(bounded.largest, kBound);
  ExpectSame(*whole.trace, *bounded.trace);
  EXPECT_EQ(bounded.trace->analyses.findings().steps.count, kSteps);
}

// Storage that fails while a pass is at work: the trace stays as it was, and another pass is made later.
class FailingPasses final : public recorder::FileLayer {
 public:
  int Open(const char* path, int flags, mode_t mode) override {
    const int fd = recorder::FileLayer::Open(path, flags, mode);
    const bool other = strstr(path, ".fold-") != nullptr;
    if (other) ++passes;
    Remember(fd, other);
    return fd;
  }
  int DuplicateAbove(int fd, int lowest) override {
    const int high = recorder::FileLayer::DuplicateAbove(fd, lowest);
    Remember(high, others.contains(fd));
    return high;
  }
  int64_t Write(int fd, const void* data, size_t bytes) override {
    // The first pass fails in the middle, the second at its first packet.
    if (others.contains(fd) && ((passes == 1 && ++writes > 20) || passes == 2)) {
      ++failures;
      return -ENOSPC;
    }
    return recorder::FileLayer::Write(fd, data, bytes);
  }
  int64_t ReadAt(int fd, void* data, size_t bytes, uint64_t offset) override {
    if (passes == 3 && offset != 0) {
      ++failures;
      return -EIO;
    }
    return recorder::FileLayer::ReadAt(fd, data, bytes, offset);
  }
  int Rename(const char* from, const char* to) override {
    if (passes == 4) {
      ++failures;
      return -EACCES;
    }
    return recorder::FileLayer::Rename(from, to);
  }

  int passes = 0;
  int writes = 0;
  int failures = 0;

 private:
  void Remember(int fd, bool other) {
    if (other) {
      others.insert(fd);
    } else {
      others.erase(fd);
    }
  }
  std::set<int> others;
};

TEST(Fold, FailuresOfStorageChangeNothing) {
  constexpr uint64_t kSteps = 12000;
  FailingPasses layer;
  const Outcome whole = Record(5, kSteps, 0);
  const Outcome bounded = Record(5, kSteps, kBound, layer);
  EXPECT_GE(layer.failures, 4);
  ASSERT_GT(bounded.passes, 0u);
  ExpectSame(*whole.trace, *bounded.trace);
  bool told = false;
  for (const Note& note : bounded.trace->model.notes)
    told |= note.text().find("could not be folded") != std::string::npos;
  EXPECT_TRUE(told);
}

// The trace is moved away and somebody else's file takes its name: it is left alone.
TEST(Fold, AFileOfSomebodyElseIsNotReplaced) {
  WriterBench bench;
  bench.writer->SetRestartBytes(kBound / 256);
  recorder::Folding folding(*bench.writer, bench.file, recorder::SystemFileLayer(), kBound);
  Program program(bench, 3);
  bool moved = false;
  program.Run(6000, [&] {
    bench.writer->Drain(recorder::Writer::Order::kExact);
    folding.Begin();
    if (folding.running() && !moved) {
      moved = true;
      std::filesystem::rename(bench.path, bench.path + ".moved");
      std::ofstream(bench.path) << "theirs";
    }
    folding.Work(64 << 10);
    if (folding.ready()) folding.Complete();
  });
  EXPECT_TRUE(moved);
  folding.Cancel();
  folding.Work(1);
  EXPECT_EQ(ReadFileBytes(bench.path), "theirs");
  EXPECT_EQ(folding.passes(), 0u);
}

// SIGKILL while old windows are being folded: every event whose Record had returned is there, once.
TEST(Fold, NothingIsLostToSigkill) {
  constexpr uint64_t kThreads = 3;
  constexpr int kKills = 24;
  TemporaryFolder folder;
  std::mt19937_64 random(20261130);
  int folded = 0;
  int unfinished = 0;
  for (int number = 0; number < kKills; ++number) {
    const std::string counts_path = folder / "counts";
    const int fd = open(counts_path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    ASSERT_EQ(ftruncate(fd, 64 * kThreads), 0);
    void* memory = mmap(nullptr, 64 * kThreads, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    ASSERT_NE(memory, MAP_FAILED);
    const auto* counts = static_cast<const std::atomic<uint64_t>*>(memory);
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(folder.path().c_str()) != 0) _exit(2);
      setenv("GPUMEMTRACE_MAX_BYTES", "1M", 1);
      setenv("GPUMEMTRACE_QUIET", "1", 1);
      setenv("GPUMEMTRACE_OUT", "trace.pb", 1);
      execl(GPUMEMTRACE_RECORDER_DRIVER, "driver", "killed", "3", counts_path.c_str(), nullptr);
      _exit(2);
    }
    const uint64_t until = 100'000 + random() % 300'000;
    while (counts[0].load(std::memory_order_relaxed) < until && waitpid(child, nullptr, WNOHANG) == 0) {
      sched_yield();
    }
    // Every second one in the middle of a pass.
    const auto at_work = [&] {
      for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
        if (entry.path().string().find(".fold-") != std::string::npos) return true;
      }
      return false;
    };
    for (int i = 0; i < 3000 && number % 2 == 0 && !at_work(); ++i) sched_yield();
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    unfinished += at_work();
    analyzer::AnalyzeOptions options;
    const auto trace = analyzer::Analyze(folder / "trace.pb", options);
    ASSERT_EQ(trace->read.fault, analyzer::TraceFault::kNone);
    EXPECT_EQ(trace->read.damage.packets_lost, 0u) << trace->read.damage.first_fault;
    EXPECT_EQ(trace->read.damage.events_lost, 0u);
    EXPECT_EQ(trace->read.recovery.state, analyzer::RecoveryReport::State::kRead);
    uint64_t returned = 0;
    for (uint64_t thread = 0; thread < kThreads; ++thread) returned += counts[8 * thread].load();
    EXPECT_GE(trace->ledger.events(), returned);
    EXPECT_LE(trace->ledger.events(), returned + kThreads);
    EXPECT_EQ(trace->ledger.anomalies().unknown_frees, 0u);
    folded += trace->ledger.folded_windows() != 0;
    std::filesystem::remove(trace->model.header.ring_file());
    munmap(memory, 64 * kThreads);
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      std::filesystem::remove(entry.path());
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(folded, kKills / 4);
  EXPECT_GT(unfinished, kKills / 8);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FoldTest, ::testing::Values(1, 2, 3));

// Every window's highest moment is that of the whole run between its first and its last event.
TEST(Fold, WindowsKeepTheirPeaks) {
  struct Sums final : analyzer::LedgerObserver {
    std::map<int32_t, std::vector<std::pair<uint64_t, uint64_t>>> curve;
    std::map<int32_t, uint64_t> bytes;
    std::vector<analyzer::FoldedWindow> windows;
    void OnChanges(const analyzer::Ledger&, std::span<const analyzer::Change> changes) override {
      for (const analyzer::Change& change : changes) {
        if (change.level != analyzer::Level::kBlock) continue;
        uint64_t& now = bytes[change.device];
        if (change.kind == analyzer::ChangeKind::kBirth) now += change.size;
        if (change.kind == analyzer::ChangeKind::kDeath) now -= change.size;
        curve[change.device].emplace_back(change.index, now);
      }
    }
    void OnFolded(const analyzer::Ledger&, const analyzer::FoldedWindow& window) override {
      windows.push_back(window);
    }
  };
  const auto read = [](uint64_t bound) {
    auto sums = std::make_unique<Sums>();
    WriterBench bench;
    bench.writer->SetRestartBytes(kBound / 256);
    recorder::Folding folding(*bench.writer, bench.file, recorder::SystemFileLayer(), bound);
    Program program(bench, 9);
    program.Run(9000, [&] {
      bench.writer->Drain(recorder::Writer::Order::kExact);
      if (folding.ready()) folding.Complete();
      folding.Begin();
      folding.Work(64 << 10);
    });
    folding.Cancel();
    EXPECT_EQ(bench.writer->Finish(), 0);
    analyzer::TraceModel model;
    analyzer::Ledger ledger(model);
    ledger.AddObserver(sums.get());
    analyzer::ReaderOptions options;
    options.recover = false;
    EXPECT_FALSE(analyzer::ReadTrace(bench.path, options, model, ledger).damage.any());
    ledger.Finish();
    return sums;
  };
  const auto whole = read(0);
  const auto bounded = read(kBound);
  ASSERT_GT(bounded->windows.size(), 10u);
  size_t peaks = 0;
  for (const analyzer::FoldedWindow& window : bounded->windows) {
    for (const analyzer::FoldedPeak& peak : window.peaks) {
      if (!peak.blocks) continue;
      ++peaks;
      const auto& curve = whole->curve.at(peak.device);
      auto at = std::lower_bound(curve.begin(), curve.end(), std::make_pair(window.first_index, uint64_t{0}));
      uint64_t most = 0;
      uint64_t index = 0;
      for (; at != curve.end() && at->first <= window.last_index; ++at) {
        if (at->second > most) std::tie(index, most) = *at;
      }
      EXPECT_EQ(peak.bytes, most);
      EXPECT_EQ(peak.index, index);
    }
  }
  EXPECT_GT(peaks, 10u);
}

}  // namespace
}  // namespace gpumemtrace::tests
