// Folding through the real writer: the same stream of events, once kept whole and once within a bound that is
// far too small for it, must read the same in everything that folding promises.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "analyzer/analyzed_trace.h"
#include "tests/recorder/support/folding_program.h"

namespace gpumemtrace::tests {
namespace {

struct Outcome {
  std::unique_ptr<analyzer::AnalyzedTrace> trace;
  uint64_t passes = 0;
  uint64_t waits = 0;
  uint64_t size = 0;
  // Of all files.
  uint64_t largest = 0;
};

// The writer comes round once in `steps_per_turn` steps: the more, the faster are the events made.
Outcome Record(uint64_t seed, Mix mix, uint64_t steps, uint64_t bound, MeasuringLayer& layer,
               uint64_t steps_per_turn = 1) {
  Recording recording(bound, layer);
  Outcome outcome;
  Program program(recording.bench, seed, mix, [&] { recording.MakeRoom(); });
  uint64_t turns = 0;
  program.Run(steps, [&] {
    if (++turns % steps_per_turn != 0) return;
    recording.Turn();
    if (turns % 7 == 0) recording.Drain();
  });
  while (recording.folding.running()) recording.Turn();
  EXPECT_EQ(recording.bench.writer->Finish(), 0);
  outcome.passes = recording.folding.passes();
  outcome.waits = recording.waits;
  outcome.size = recording.bench.file.size();
  outcome.largest = layer.largest;
  analyzer::AnalyzeOptions options;
  options.reader.recover = false;
  outcome.trace = analyzer::Analyze(recording.bench.path, options);
  // Nothing is left beside the trace.
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(recording.bench.folder.path())) {
    files += entry.path().string().find(".fold-") != std::string::npos;
  }
  EXPECT_EQ(files, 0u);
  return outcome;
}

Outcome Record(uint64_t seed, Mix mix, uint64_t steps, uint64_t bound, uint64_t steps_per_turn = 1) {
  MeasuringLayer layer;
  return Record(seed, mix, steps, bound, layer, steps_per_turn);
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
  EXPECT_EQ(b.model.header.format_version(), 4u);
  EXPECT_EQ(a.model.header.format_version(), 4u);
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
    EXPECT_NEAR(bounded_leaks.at(place).second, leak.second, leak.second * 0.05);
  }
}

TEST_P(FoldTest, ReadsAsTheWholeTrace) {
  constexpr uint64_t kSteps = 8000;
  const Outcome whole = Record(GetParam(), Mix::kUsual, kSteps, 0);
  const Outcome bounded = Record(GetParam(), Mix::kUsual, kSteps, kBound);
  ASSERT_GT(bounded.passes, 1u) << "the bound was never reached: " << whole.largest;
  EXPECT_GT(whole.largest, 2 * kBound);
  EXPECT_LE(bounded.largest, kBound);
  ExpectSame(*whole.trace, *bounded.trace);
  EXPECT_EQ(bounded.trace->analyses.findings().steps.count, kSteps);
}

// The trace and the file that is made of it together, at every moment, whatever the events are and however
// fast they come.
class BoundTest : public ::testing::TestWithParam<std::tuple<Mix, uint64_t, uint64_t>> {};

TEST_P(BoundTest, IsKept) {
  const auto [mix, bound, steps_per_turn] = GetParam();
  uint64_t steps = bound / 160;
  if (mix == Mix::kManySites) steps /= 2;
  const Outcome whole = Record(11, mix, steps, 0);
  const Outcome bounded = Record(11, mix, steps, bound, steps_per_turn);
  EXPECT_GT(whole.size, bound) << "the program is too short";
  EXPECT_LE(bounded.largest, bound);
  EXPECT_GT(bounded.passes, 1u);
  const analyzer::AnalyzedTrace& a = *whole.trace;
  const analyzer::AnalyzedTrace& b = *bounded.trace;
  EXPECT_FALSE(b.read.damage.any()) << b.read.damage.first_fault;
  EXPECT_EQ(a.ledger.events(), b.ledger.events());
  EXPECT_EQ(b.ledger.anomalies().unknown_frees, 0u);
  EXPECT_EQ(Births(a), Births(b));
  EXPECT_EQ(Alive(a), Alive(b));
  // Steps that nobody marked are not promised (docs/limits.md).
  if (mix != Mix::kNoMarks) {
    EXPECT_EQ(a.analyses.findings().steps.count, b.analyses.findings().steps.count);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, BoundTest,
                         ::testing::Combine(::testing::Values(Mix::kUsual, Mix::kManySites, Mix::kNoMarks),
                                            ::testing::Values(kBound, 5 * kBound / 2),
                                            ::testing::Values(1, 1 << 20)));

// What is alive may not be dropped: the trace becomes larger than its bound, but not by a copy for every
// packet, and nothing is wrong in it.
TEST(Fold, WhatIsAliveIsKeptBeyondTheBound) {
  constexpr uint64_t kSteps = 6000;
  const Outcome whole = Record(4, Mix::kOnlyGrows, kSteps, 0);
  const Outcome bounded = Record(4, Mix::kOnlyGrows, kSteps, kBound);
  EXPECT_GT(whole.size, kBound);
  EXPECT_LE(bounded.size, whole.size + whole.size / 6);
  EXPECT_LT(bounded.passes, 64u);
  const analyzer::AnalyzedTrace& a = *whole.trace;
  const analyzer::AnalyzedTrace& b = *bounded.trace;
  EXPECT_FALSE(b.read.damage.any()) << b.read.damage.first_fault;
  EXPECT_EQ(a.ledger.events(), b.ledger.events());
  EXPECT_EQ(Births(a), Births(b));
  EXPECT_EQ(Alive(a), Alive(b));
}

// Storage that fails while a pass is at work: the trace stays as it was, and another pass is made later.
class FailingPasses final : public MeasuringLayer {
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
    return MeasuringLayer::Write(fd, data, bytes);
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
  constexpr uint64_t kSteps = 8000;
  FailingPasses layer;
  const Outcome whole = Record(5, Mix::kUsual, kSteps, 0);
  const Outcome bounded = Record(5, Mix::kUsual, kSteps, kBound, layer);
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
  MeasuringLayer layer;
  Recording recording(kBound, layer);
  WriterBench& bench = recording.bench;
  recorder::Folding& folding = recording.folding;
  Program program(bench, 3, Mix::kUsual, [&] { recording.MakeRoom(); });
  bool moved = false;
  program.Run(6000, [&] {
    recording.Drain();
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
  constexpr int kKills = 12;
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

// The host's limit on file sizes is a bound, too: nothing is lost to it, and nobody hears of it.
TEST(Fold, TheLimitOnFileSizesIsABound) {
  constexpr uint64_t kLimit = uint64_t{2} << 20;
  constexpr uint64_t kEvents = 1'200'000;
  TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{kLimit, RLIM_INFINITY};
    if (chdir(folder.path().c_str()) != 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    setenv("GPUMEMTRACE_QUIET", "1", 1);
    setenv("GPUMEMTRACE_STACKS", "none", 1);
    setenv("GPUMEMTRACE_OUT", "trace.pb", 1);
    execl(GPUMEMTRACE_RECORDER_DRIVER, "driver", "events", "2", std::to_string(kEvents).c_str(), nullptr);
    _exit(2);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_LE(std::filesystem::file_size(folder / "trace.pb"), kLimit);
  const auto trace = analyzer::Analyze(folder / "trace.pb", {});
  EXPECT_FALSE(trace->read.damage.any()) << trace->read.damage.first_fault;
  EXPECT_TRUE(trace->model.has_end);
  EXPECT_EQ(trace->ledger.events(), 2 * kEvents);
  EXPECT_EQ(trace->ledger.anomalies().unknown_frees, 0u);
  EXPECT_GT(trace->ledger.folded_windows(), 0u);
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
    MeasuringLayer layer;
    Recording recording(bound, layer);
    WriterBench& bench = recording.bench;
    Program program(bench, 9, Mix::kUsual, [&] { recording.MakeRoom(); });
    program.Run(9000, [&] {
      recording.Drain();
      recording.Turn(64 << 10);
    });
    recording.folding.Cancel();
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
