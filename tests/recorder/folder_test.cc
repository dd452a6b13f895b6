// The folded file itself, read from trace.proto alone: every packet number and every event is accounted for,
// however many passes there were and whatever was folded, merged or copied. What the analyzer makes of it is
// in fold_test.cc.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "gpumemtrace/trace.pb.h"
#include "recorder/writer/decompressor.h"
#include "tests/recorder/support/folding_program.h"

namespace gpumemtrace::tests {
namespace {

// What can be said of a trace without decoding columns.
struct Tally {
  uint64_t packets = 0;
  uint64_t events = 0;
  uint64_t kept = 0;
  uint64_t windows = 0;
  uint64_t merged = 0;
  uint64_t marks = 0;
  size_t largest_packet = 0;
  uint64_t births = 0;
  bool ended = false;
};

// Adds failures for whatever is not as trace.proto says.
Tally Read(const std::string& bytes) {
  Tally tally;
  Trace trace;
  EXPECT_TRUE(trace.ParseFromString(bytes));
  uint64_t next_packet = 0;
  uint64_t next_index = 0;
  const Folded* window = nullptr;
  uint64_t last_kept = 0;
  for (const Packet& packet : trace.packet()) {
    const Content& content = packet.content();
    tally.largest_packet = std::max(tally.largest_packet, packet.ByteSizeLong());
    EXPECT_EQ(content.packet_index(), next_packet);
    next_packet = content.packet_index() + 1;
    ++tally.packets;
    tally.marks += static_cast<uint64_t>(content.mark_size());
    if (content.has_compressed_definitions()) {
      recorder::Decompressor decompressor;
      recorder::ByteBuffer out;
      const std::string& data = content.compressed_definitions().data();
      EXPECT_TRUE(decompressor.Decompress({reinterpret_cast<const uint8_t*>(data.data()), data.size()},
                                          content.compressed_definitions().raw_size(), out));
      Content inner;
      EXPECT_TRUE(inner.ParseFromArray(out.data(), static_cast<int>(out.size())));
      tally.marks += static_cast<uint64_t>(inner.mark_size());
    }
    tally.ended |= content.has_end();
    if (!content.has_folded()) {
      EXPECT_EQ(window, nullptr) << "a window does not end";
      if (content.has_events()) {
        EXPECT_EQ(content.events().first_index(), next_index);
        next_index += content.events().count();
        tally.events += content.events().count();
      }
      continue;
    }
    const Folded& folded = content.folded();
    EXPECT_EQ(folded.begin(), window == nullptr);
    if (folded.begin()) {
      EXPECT_EQ(folded.first_index(), next_index);
      last_kept = 0;
      tally.kept = 0;
    }
    window = &folded;
    if (content.has_events()) {
      EXPECT_TRUE(content.events().restart());
      EXPECT_GE(content.events().first_index(), std::max(last_kept, folded.first_index()));
      last_kept = content.events().first_index() + content.events().count();
      EXPECT_LE(last_kept, folded.last_index() + 1);
      tally.kept += content.events().count();
    }
    if (folded.has_stacks()) {
      const Compressed& compressed = folded.stacks();
      recorder::Decompressor decompressor;
      recorder::ByteBuffer out;
      FoldedStacks stacks;
      if (compressed.codec() == Column::ZSTD) {
        EXPECT_TRUE(decompressor.Decompress(
            {reinterpret_cast<const uint8_t*>(compressed.data().data()), compressed.data().size()},
            compressed.raw_size(), out));
        EXPECT_TRUE(stacks.ParseFromArray(out.data(), static_cast<int>(out.size())));
      } else {
        EXPECT_TRUE(stacks.ParseFromString(compressed.data()));
      }
      for (int i = 0; i < stacks.site_size(); ++i) {
        EXPECT_LE(stacks.least_count(i), stacks.count(i));
        EXPECT_GE(stacks.most_count(i), stacks.count(i));
        EXPECT_GE(stacks.most_bytes(i), stacks.bytes(i));
        tally.births += stacks.births(i);
      }
    }
    if (folded.end()) {
      EXPECT_EQ(folded.events(), folded.last_index() + 1 - folded.first_index());
      EXPECT_EQ(folded.events_dropped() + tally.kept, folded.events());
      EXPECT_GE(folded.packets(), 1u);
      next_packet = content.packet_index() + folded.packets();
      next_index = folded.last_index() + 1;
      tally.events += folded.events();
      ++tally.windows;
      tally.merged += folded.windows() > 1;
      window = nullptr;
    }
  }
  EXPECT_EQ(window, nullptr);
  return tally;
}

struct Result {
  std::string bytes;
  uint64_t passes = 0;
  uint64_t copied = 0;
  uint64_t largest = 0;
};

Result Record(Mix mix, uint64_t steps, uint64_t bound) {
  MeasuringLayer layer;
  Recording recording(bound, layer);
  Program program(recording.bench, 7, mix, [&] { recording.MakeRoom(); });
  program.Run(steps, [&] { recording.Turn(); });
  EXPECT_EQ(recording.bench.writer->Finish(), 0);
  recording.folding.Cancel();
  return {ReadFileBytes(recording.bench.path), recording.folding.passes(),
          recording.folding.copied_stretches(), layer.largest};
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class FolderTest : public ::testing::TestWithParam<Mix> {};

TEST_P(FolderTest, AccountsForEveryPacketAndEvent) {
  constexpr uint64_t kSteps = kSanitized ? 3000 : 8000;
  const Result whole = Record(GetParam(), kSteps, 0);
  const Result bounded = Record(GetParam(), kSteps, kBound);
  const Tally all = Read(whole.bytes);
  const Tally folded = Read(bounded.bytes);
  EXPECT_EQ(all.windows, 0u);
  EXPECT_GT(bounded.passes, 1u);
  EXPECT_EQ(folded.events, all.events);
  EXPECT_EQ(folded.marks, all.marks);
  EXPECT_EQ(all.marks, GetParam() == Mix::kNoMarks ? 0 : kSteps);
  EXPECT_TRUE(folded.ended);
  EXPECT_LT(folded.largest_packet, size_t{512} << 10);
  if (GetParam() == Mix::kOnlyGrows) {
    // There is next to nothing to drop: such stretches are copied, and none becomes larger (with a bound
    // packets are smaller).
    EXPECT_GT(bounded.copied, 0u);
    EXPECT_LE(bounded.bytes.size(), whole.bytes.size() + whole.bytes.size() / 6 + (64 << 10));
  } else {
    EXPECT_GT(folded.windows, 8u);
    EXPECT_GT(folded.births, all.events / 8);
    EXPECT_LE(bounded.largest, kBound);
    if (!kSanitized) {
      EXPECT_LT(bounded.bytes.size(), whole.bytes.size() / 2);
    }
  }
}

// One thread: ThreadSanitizer's build leaves them out (CMakeLists.txt).
INSTANTIATE_TEST_SUITE_P(Mixes, FolderTest,
                         ::testing::Values(Mix::kUsual, Mix::kManySites, Mix::kNoMarks, Mix::kOnlyGrows));

// With the session's writer thread, and threads that make events as fast as they can.
TEST(Folder, ThreadsOfAWholeProcessKeepTheBound) {
  constexpr uint64_t kThreads = 3;
  constexpr uint64_t kEvents = kSanitized ? 60'000 : 1'000'000;
  TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder.path().c_str()) != 0) _exit(2);
    setenv("GPUMEMTRACE_QUIET", "1", 1);
    setenv("GPUMEMTRACE_STACKS", "none", 1);
    setenv("GPUMEMTRACE_OUT", "trace.pb", 1);
    setenv("GPUMEMTRACE_MAX_BYTES", "1M", 1);
    execl(GPUMEMTRACE_RECORDER_DRIVER, "driver", "events", std::to_string(kThreads).c_str(),
          std::to_string(kEvents).c_str(), nullptr);
    _exit(2);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const std::string bytes = ReadFileBytes(folder / "trace.pb");
  EXPECT_LE(bytes.size(), kBound);
  const Tally tally = Read(bytes);
  EXPECT_EQ(tally.events, kThreads * kEvents);
  EXPECT_TRUE(tally.ended);
  // Under a sanitizer it would take minutes to come near the least bound that there is.
  if (!kSanitized) {
    EXPECT_GT(tally.windows, 0u);
  }
}

}  // namespace
}  // namespace gpumemtrace::tests
