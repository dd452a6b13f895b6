// Storage that fails: the trace stays valid, what is missing is counted and said, and nothing else is lost.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <random>
#include <set>

#include "recorder/file/trace_file.h"
#include "recorder/writer/writer.h"
#include "tests/recorder/process/workload.h"
#include "tests/recorder/support/writer_bench.h"

namespace gpumemtrace::tests {
namespace {

using recorder::Writer;

// The real file system with failures: `next` decides what happens to each call.
class FaultyLayer final : public recorder::FileLayer {
 public:
  enum class Fault { kNone, kError, kShort, kInterrupted };
  struct Decision {
    Fault fault = Fault::kNone;
    int error = EIO;
  };

  int64_t Write(int fd, const void* data, size_t bytes) override {
    ++writes;
    if (before_write) before_write(fd);
    const Decision decision = on_write ? on_write() : Decision{};
    if (decision.fault == Fault::kInterrupted) return -EINTR;
    if (decision.fault == Fault::kError) return -decision.error;
    if (decision.fault == Fault::kShort && bytes > 1) bytes /= 2;
    return recorder::FileLayer::Write(fd, data, bytes);
  }
  int Truncate(int fd, uint64_t bytes) override {
    return truncate_fails ? -EIO : recorder::FileLayer::Truncate(fd, bytes);
  }
  int TruncateNamed(const char* path, uint64_t bytes) override {
    return truncate_fails ? -EIO : recorder::FileLayer::TruncateNamed(path, bytes);
  }
  int Open(const char* path, int flags, mode_t mode) override {
    return open_error != 0 ? -open_error : recorder::FileLayer::Open(path, flags, mode);
  }
  int DuplicateAbove(int fd, int lowest) override {
    return duplicate_fails ? -EMFILE : recorder::FileLayer::DuplicateAbove(fd, lowest);
  }

  std::function<Decision()> on_write;
  // Between the look at a descriptor and the write.
  std::function<void(int fd)> before_write;
  bool truncate_fails = false;
  bool duplicate_fails = false;
  int open_error = 0;
  int writes = 0;
};
using Fault = FaultyLayer::Fault;

std::span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(TraceFile, AppendsAllOrNothing) {
  TemporaryFolder folder;
  FaultyLayer layer;
  recorder::TraceFile file(layer);
  ASSERT_EQ(file.Create((folder / "t").c_str()), 0);
  ASSERT_EQ(file.Append(Bytes("first ")), 0);
  // Half of it, then nothing more.
  int calls = 0;
  layer.on_write = [&] {
    return calls++ == 0 ? FaultyLayer::Decision{Fault::kShort} : FaultyLayer::Decision{Fault::kError, ENOSPC};
  };
  EXPECT_EQ(file.Append(Bytes("second ")), -ENOSPC);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "first ");
  // Short and interrupted writes are gone on with.
  calls = 0;
  layer.on_write = [&] {
    ++calls;
    return FaultyLayer::Decision{calls % 3 == 0   ? Fault::kInterrupted
                                 : calls % 3 == 1 ? Fault::kShort
                                                  : Fault::kNone};
  };
  EXPECT_EQ(file.Append(Bytes("third and long ")), 0);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "first third and long ");
  EXPECT_EQ(file.size(), 21u);
  file.Close();
}

TEST(TraceFile, TornEndIsCutWhenThatIsPossibleAgain) {
  TemporaryFolder folder;
  FaultyLayer layer;
  recorder::TraceFile file(layer);
  ASSERT_EQ(file.Create((folder / "t").c_str()), 0);
  ASSERT_EQ(file.Append(Bytes("good")), 0);
  int calls = 0;
  layer.on_write = [&] {
    return calls++ == 0 ? FaultyLayer::Decision{Fault::kShort} : FaultyLayer::Decision{Fault::kError};
  };
  layer.truncate_fails = true;
  EXPECT_EQ(file.Append(Bytes("1234")), -EIO);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "good12");
  layer.on_write = nullptr;
  // Nothing is put behind the torn part.
  EXPECT_EQ(file.Append(Bytes("more")), -EIO);
  layer.truncate_fails = false;
  EXPECT_EQ(file.Append(Bytes("more")), 0);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "goodmore");
  file.Close();
}

int DescriptorOf(const std::string& path) {
  struct stat wanted;
  if (stat(path.c_str(), &wanted) != 0) return -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = atoi(entry.path().filename().c_str());
    struct stat status;
    if (fstat(fd, &status) == 0 && status.st_dev == wanted.st_dev && status.st_ino == wanted.st_ino)
      return fd;
  }
  return -1;
}

TEST(TraceFile, DescriptorIsHighClosedOnExecAndTakenBack) {
  TemporaryFolder folder;
  recorder::TraceFile file;
  ASSERT_EQ(file.Create((folder / "t").c_str()), 0);
  const int fd = DescriptorOf(folder / "t");
  EXPECT_GE(fd, 40);
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  // The host takes the number for a file of its own.
  const int own = open((folder / "own").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(dup2(own, fd), fd);
  ASSERT_EQ(file.Append(Bytes("ours")), 0);
  EXPECT_EQ(ReadFileBytes(folder / "own"), "");
  EXPECT_EQ(ReadFileBytes(folder / "t"), "ours");
  // It still has its number.
  EXPECT_EQ(write(fd, "theirs", 6), 6);
  EXPECT_EQ(ReadFileBytes(folder / "own"), "theirs");
  close(own);
  close(fd);
  // Another file under our name is not ours.
  const int second = DescriptorOf(folder / "t");
  ASSERT_EQ(rename((folder / "t").c_str(), (folder / "moved").c_str()), 0);
  ASSERT_EQ(close(second), 0);
  const int impostor = open((folder / "t").c_str(), O_RDWR | O_CREAT, 0600);
  EXPECT_EQ(file.Append(Bytes("more")), -ESTALE);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "");
  close(impostor);
  // It is found again when it comes back.
  ASSERT_EQ(rename((folder / "moved").c_str(), (folder / "t").c_str()), 0);
  EXPECT_EQ(file.Append(Bytes("more")), 0);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "oursmore");
  file.Close();
  EXPECT_EQ(DescriptorOf(folder / "t"), -1);
}

// The host closes the descriptor, or gives its number to a file of its own, between our look at it and the
// write.
TEST(TraceFile, WhatStraysIsSeenAndWrittenOnceMore) {
  TemporaryFolder folder;
  FaultyLayer layer;
  recorder::TraceFile file(layer);
  ASSERT_EQ(file.Create((folder / "t").c_str()), 0);
  ASSERT_EQ(file.Append(Bytes("first ")), 0);
  const int own = open((folder / "own").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600);
  ASSERT_EQ(write(own, "theirs ", 7), 7);
  const auto once = [&](auto what) {
    layer.before_write = [&layer, what](int fd) {
      layer.before_write = nullptr;
      what(fd);
    };
  };
  once([](int fd) { close(fd); });
  EXPECT_EQ(file.Append(Bytes("second ")), 0);
  EXPECT_EQ(file.strayed(), 0u);
  once([own](int fd) { dup2(own, fd); });
  EXPECT_EQ(file.Append(Bytes("third ")), 0);
  EXPECT_EQ(file.strayed(), 6u);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "first second third ");
  EXPECT_EQ(ReadFileBytes(folder / "own"), "theirs third ");
  // Half of a packet strays, and nothing of theirs is cut when the rest fails.
  int calls = 0;
  layer.on_write = [&] {
    return ++calls == 1 ? FaultyLayer::Decision{Fault::kShort} : FaultyLayer::Decision{Fault::kError, ENOSPC};
  };
  once([own](int fd) { dup2(own, fd); });
  EXPECT_EQ(file.Append(Bytes("fourth")), -ENOSPC);
  EXPECT_EQ(file.strayed(), 9u);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "first second third ");
  EXPECT_EQ(ReadFileBytes(folder / "own"), "theirs third fou");
  layer.on_write = nullptr;
  EXPECT_EQ(file.Append(Bytes("fourth")), 0);
  EXPECT_EQ(ReadFileBytes(folder / "t"), "first second third fourth");
  // One that is taken each time.
  layer.before_write = [own](int fd) { dup2(own, fd); };
  EXPECT_EQ(file.Append(Bytes("fifth")), -ESTALE);
  layer.before_write = nullptr;
  EXPECT_EQ(ReadFileBytes(folder / "t"), "first second third fourth");
  close(own);
  file.Close();
}

TEST(Writer, TellsOfWhatStrayed) {
  FaultyLayer layer;
  WriterBench bench(recorder::RingPlace::kPrivate, layer);
  auto& slot = bench.NewThread(1, "main");
  const int own = open((bench.folder / "own").c_str(), O_RDWR | O_CREAT | O_APPEND, 0600);
  layer.before_write = [&](int fd) {
    layer.before_write = nullptr;
    dup2(own, fd);
  };
  recorder::Event event = WorkloadEvent(0, 0);
  event.sequence = 1;
  ASSERT_TRUE(bench.Put(slot, event, 1000));
  ASSERT_EQ(bench.writer->Drain(Writer::Order::kEverything), 0);
  ASSERT_EQ(bench.writer->Finish(), 0);
  close(own);
  const DecodedTrace trace = bench.Decode();
  EXPECT_EQ(trace.events.size(), 1u);
  ASSERT_EQ(trace.notes.size(), 1u);
  EXPECT_NE(trace.notes[0].find("took the descriptor"), std::string::npos);
}

TEST(TraceFile, WorksWithoutAHighDescriptor) {
  TemporaryFolder folder;
  FaultyLayer layer;
  layer.duplicate_fails = true;
  recorder::TraceFile file(layer);
  ASSERT_EQ(file.Create((folder / "t").c_str()), 0);
  EXPECT_EQ(file.Append(Bytes("x")), 0);
  file.Close();
}

// AddressSanitizer takes seven times as long.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kFailingSeeds = 2;
constexpr int kFailingPhases = 48;
#else
constexpr int kFailingSeeds = 6;
constexpr int kFailingPhases = 48;
#endif

class FailingStorage : public testing::TestWithParam<int> {};

// Random failures between random drains. What the trace holds, and what the statistics call lost, is all
// there was; stacks and sites survive gaps.
TEST_P(FailingStorage, ValidAtEveryMomentAndHonest) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  FaultyLayer layer;
  WriterBench bench(recorder::RingPlace::kSharedMemory, layer);
  std::vector<recorder::ThreadSlot*> slots;
  for (uint64_t i = 0; i < 3; ++i) slots.push_back(&bench.NewThread(100 + i, "worker"));
  uint64_t recorded = 0;
  uint64_t next[3] = {};
  uint64_t gaps = 0;
  for (int phase = 0; phase < kFailingPhases; ++phase) {
    const uint64_t mood = random() % 4;
    layer.on_write = [&random, mood]() -> FaultyLayer::Decision {
      if (mood == 0) return {Fault::kError, random() % 2 == 0 ? ENOSPC : EIO};
      if (mood == 1 && random() % 3 == 0) return {Fault::kError, EDQUOT};
      if (mood == 2 && random() % 2 == 0) return {Fault::kShort};
      return {};
    };
    layer.truncate_fails = random() % 5 == 0;
    for (int i = 0; i < 2000; ++i) {
      const size_t which = random() % 3;
      recorder::Event event = WorkloadEvent(which, next[which]++);
      event.api = event.api % 4;
      event.sequence = recorded + 1;
      // A stack of its own now and then, so that definitions are lost if they can be.
      uint64_t stack = 0;
      if (random() % 50 == 0) {
        stack = 1'000'000 + recorded;
        auto* record = bench.New<ring_file::StackRecord>(*slots[which], ring_file::RecordKind::kStack, 24);
        if (record != nullptr) {
          record->number = stack;
          record->native_count = 3;
          for (uint64_t f = 0; f < 3; ++f) reinterpret_cast<uint64_t*>(record + 1)[f] = stack * 8 + f;
          slots[which]->ring.Publish();
        } else {
          stack = 0;
        }
      }
      if (!bench.Put(*slots[which], event, recorded * 1000, stack)) {
        gaps += bench.writer->Drain(Writer::Order::kEverything) != 0;
        ASSERT_TRUE(bench.Put(*slots[which], event, recorded * 1000, 0));
      }
      ++recorded;
    }
    bench.writer->Drain(Writer::Order::kExact);
    if (phase % 12 == 11) bench.Decode();
    if (HasFailure()) return;
  }
  layer.on_write = nullptr;
  layer.truncate_fails = false;
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  EXPECT_TRUE(trace.ended);
  EXPECT_EQ(trace.events.size() + trace.lost_in_statistics, recorded);
  std::set<uint64_t> sequences;
  for (const DecodedEvent& event : trace.events) {
    EXPECT_TRUE(sequences.insert(event.sequence).second);
    if (!event.native.empty()) {
      EXPECT_EQ(event.native.size(), 3u);
      EXPECT_EQ(event.native[0].offset, (1'000'000 + event.sequence - 1) * 8);
    }
    if (HasFailure()) return;
  }
  if (trace.lost_in_statistics != 0) {
    EXPECT_GT(gaps, 0u);
    bool said = false;
    for (const std::string& note : trace.notes)
      said |= note.find("could not be written") != std::string::npos;
    EXPECT_TRUE(said);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FailingStorage, testing::Range(1, kFailingSeeds + 1));

// Definitions that pile up while nothing can be written do not make a packet too large afterwards.
TEST(Writer, OldDefinitionsComeInPackets) {
  FaultyLayer layer;
  WriterBench bench(recorder::RingPlace::kPrivate, layer);
  auto& slot = bench.NewThread(1, "main");
  layer.on_write = [] { return FaultyLayer::Decision{Fault::kError, ENOSPC}; };
  std::mt19937_64 random(1);
  uint64_t sequence = 0;
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 200; ++i) {
      auto* record = bench.New<ring_file::StackRecord>(slot, ring_file::RecordKind::kStack, 8 * 8);
      ASSERT_NE(record, nullptr);
      record->number = random();
      record->native_count = 8;
      // Incompressible.
      for (uint64_t f = 0; f < 8; ++f) reinterpret_cast<uint64_t*>(record + 1)[f] = random();
      slot.ring.Publish();
      recorder::Event event = WorkloadEvent(0, 0);
      event.api = 0;
      event.sequence = ++sequence;
      ASSERT_TRUE(bench.Put(slot, event, 1000, record->number));
    }
    EXPECT_EQ(bench.writer->Drain(Writer::Order::kEverything), -ENOSPC);
  }
  layer.on_write = nullptr;
  ASSERT_EQ(bench.writer->Finish(), 0);
  const DecodedTrace trace = bench.Decode();
  EXPECT_LT(trace.largest_packet, size_t{512} << 10);
  EXPECT_EQ(trace.lost_in_statistics, sequence);
}

// A real file system that is full.
TEST(TraceFile, RealTmpfsThatFills) {
  TemporaryFolder folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "mounting needs privileges that this user does not have";
  }
  struct Unmount {
    const std::string& path;
    ~Unmount() { umount(path.c_str()); }
  } unmount{folder.path()};
  const std::string path = folder / "trace.pb";
  recorder::TraceFile file;
  ASSERT_EQ(file.Create(path.c_str()), 0);
  std::mt19937_64 random(1);
  std::string noise(30000, 'x');
  int error = 0;
  uint64_t good = 0;
  for (int i = 0; i < 100 && error == 0; ++i) {
    error = file.Append(Bytes(noise));
    if (error == 0) good += noise.size();
  }
  EXPECT_EQ(error, -ENOSPC);
  EXPECT_EQ(ReadFileBytes(path).size(), good);
  EXPECT_EQ(file.size(), good);
  // A ring file does not fit there either, and says why.
  recorder::RingMemory memory;
  recorder::RingMemoryOptions options;
  options.shared_memory_folder = folder.path().c_str();
  options.trace_path = path.c_str();
  memory.Create(options);
  EXPECT_STREQ(memory.path(), "");
  EXPECT_NE(std::string(memory.problem()).find("too little room"), std::string::npos) << memory.problem();
  file.Close();
}

}  // namespace
}  // namespace gpumemtrace::tests
